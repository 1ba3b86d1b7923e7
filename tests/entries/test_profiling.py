"""Which steps are traced, and what a trace holds."""

import functools
import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from rw.errors import ConfigError
from rw.profiling import Profile, named_steps
from rw.sampler.device import DeviceThread
from rw.step_times import StepTimes


@jax.jit
def work(x):
    with jax.named_scope("outer"):
        return jnp.sin(x @ x)


def piece():
    work(jnp.ones((8, 8))).block_until_ready()


@pytest.fixture
def device():
    thread = DeviceThread()
    yield thread
    thread.close()


@pytest.mark.parametrize(
    "text, steps", [("", set()), ("3", {3}), ("3,4", {3, 4}), ("1, 5-7", {1, 5, 6, 7}), ("2-2,", {2})]
)
def test_steps_are_named_one_by_one_or_in_ranges(text, steps):
    assert named_steps(text) == steps


@pytest.mark.parametrize("text", ["0", "-1", "a", "4-3", "1-2-3", "1;2", "1-500", "3.5", " ", ","])
def test_what_names_no_steps_is_refused(text):
    with pytest.raises(ConfigError, match="--profile"):
        named_steps(text)


def test_steps_that_are_over_are_refused_unless_they_were_traced(tmp_path, device):
    profile = Profile({2, 3}, tmp_path, device)
    profile.check(done=1, last=3)
    with pytest.raises(ConfigError, match="step 2 is over; --profile can name steps 3 to 4"):
        profile.check(done=2, last=4)
    with pytest.raises(ConfigError, match="step 3 comes after the last one.*name steps 1 to 2"):
        profile.check(done=0, last=2)
    with pytest.raises(ConfigError, match="no step is left"):
        profile.check(done=3, last=3)
    (tmp_path / "step_000002").mkdir()
    profile.check(done=2, last=3)


async def test_a_trace_holds_phases_device_work_and_scopes(tmp_path, device, capsys):
    profile = Profile({7}, tmp_path, device)
    async with profile.of(6):
        await device.run(piece)
    assert not any(tmp_path.iterdir())
    async with profile.of(7):
        with StepTimes().phase("rollout"):
            await device.run(functools.partial(piece))
    [trace] = tmp_path.glob("step_000007/plugins/profile/*/*.trace.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert {"rollout", "piece"} <= names
    [planes] = trace.parent.glob("*.xplane.pb")
    assert b"jit(work)/outer/" in planes.read_bytes()
    assert f"step 7: profile in {tmp_path}/step_000007" in capsys.readouterr().out.replace("\n", "")


async def test_a_trace_that_fails_costs_the_step_nothing(tmp_path, device, capsys):
    done = []
    jax.profiler.start_trace(tmp_path / "another")
    try:
        async with Profile({1}, tmp_path, device).of(1):
            done.append(1)
    finally:
        jax.profiler.stop_trace()
    assert done == [1] and "step 1: no profile" in capsys.readouterr().out
