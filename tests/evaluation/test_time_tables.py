"""Which episode of a run counts as the slowest of its mode."""

import pathlib

from rw.evaluation.history import History
from rw.evaluation.time_tables import PARTS, slowest_table


def row(step, duration, replayed=0, compiled=0):
    about = {"query_id": f"q{step}", "rollout": 0, "mode": "multi", "duration_s": duration, "replayed_turns": replayed}
    return {"step": step, "sampler/compiled": compiled, "perf/slowest": [about | dict.fromkeys(PARTS, 0.0)]}


def slowest_step(*rows):
    (found,) = slowest_table(History(pathlib.Path(), {}, rows, 0, {})).rows
    return int(found[1])


def test_the_slowest_is_one_that_was_sampled_by_programs_at_hand():
    assert slowest_step(row(1, 9.0, compiled=3), row(2, 5.0), row(3, 7.0), row(4, 8.0, replayed=2)) == 3


def test_one_that_compiled_comes_before_one_that_a_journal_had():
    assert slowest_step(row(1, 2.0, compiled=3), row(2, 1.0, compiled=1), row(3, 0.02, replayed=2)) == 1
    assert slowest_step(row(1, 0.03, compiled=1, replayed=2), row(2, 0.02, replayed=1)) == 2
