"""Test-wide settings: CPU, eight fake devices for the sharding tests, one compile cache for a run and its children."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # xdist workers and subprocesses inherit it
    _CACHE = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="rw-compiled-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
_FLAGS = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in _FLAGS:
    _FLAGS = f"{_FLAGS} --xla_force_host_platform_device_count=8"
    if not os.environ.get("RW_TEST_FULL"):  # the fast tier's time goes into compiling what runs for milliseconds
        _FLAGS += " --xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] = _FLAGS.strip()

import hypothesis  # noqa: E402
import pytest  # noqa: E402

hypothesis.settings.register_profile("fast", max_examples=40, deadline=None, derandomize=True)
hypothesis.settings.register_profile("full", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("full" if os.environ.get("RW_TEST_FULL") else "fast")


def pytest_collection_modifyitems(items):
    """Tests marked `full` run only in the full tier."""
    if os.environ.get("RW_TEST_FULL"):
        return
    skip = pytest.mark.skip(reason="full tier only: launch/test.sh --full")
    for item in items:
        if "full" in item.keywords:
            item.add_marker(skip)
