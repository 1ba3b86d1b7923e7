"""What is said of places that hold no router."""

import pytest

from rw.errors import CheckpointError
from rw.saved_router import open_saved_router
from rw.workdir import Workdir


def test_a_run_that_has_only_begun_is_not_taken_for_damaged_parameters(tmp_path):
    with Workdir(tmp_path / "run"):
        with pytest.raises(CheckpointError, match="has not come to its first step yet"):
            open_saved_router(tmp_path / "run")
