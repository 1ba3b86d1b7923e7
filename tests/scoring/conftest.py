"""What tests of scorers share: a sandbox that isolates, or a reason to skip."""

import pytest

from rw.errors import SandboxError
from rw.scoring.sandbox import strongest_tier


@pytest.fixture
def tight_sandbox():
    """The strongest tier here; skips where nothing isolates programs."""
    try:
        return strongest_tier()
    except SandboxError as error:
        pytest.skip(str(error))
