"""What the phases of a step and the sampler's counters say of the device."""

import time

import jax
import numpy as np
import pytest

from rw.step_times import StepTimes, device_times


def test_shares_of_idle_time_by_hand():
    row = {"perf/step_s": 10.0, "perf/rollout_s": 8.0, "perf/train_s": 1.5, "sampler/idle_work_s": 3.5}
    row |= {"sampler/decode_s": 1.5, "sampler/prefill_s": 0.5}
    assert device_times(row) == {
        "perf/decode_s": 1.5, "perf/prefill_s": 0.5, "perf/decode_idle_share": 0.75, "perf/learner_idle_share": 0.5
    }  # fmt: skip
    assert device_times(row | {"perf/rollout_s": 1.0})["perf/decode_idle_share"] == 0  # clocks differ a little


@jax.jit
def double(x):
    return 2 * x


def test_phases_are_within_their_step():
    times = StepTimes()
    with times.phase("rollout"):
        time.sleep(0.01)
    with pytest.raises(KeyError), times.phase("train"):
        raise KeyError
    found = times.metrics()
    assert 0.01 <= found["perf/rollout_s"] <= found["perf/step_s"] and found["perf/compiled"] == 0
    assert found.keys() == {"perf/rollout_s", "perf/step_s", "perf/compiled"}
    for expected in (1, 0):
        times = StepTimes()
        double(np.ones(3, np.float32))
        assert times.metrics()["perf/compiled"] == expected
