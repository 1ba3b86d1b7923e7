"""The speed benchmarks at a toy size: their parts run, do the work they say, and tell it as a table."""

import dataclasses
import json
import pathlib
import sys

import numpy as np
import pytest
import rollout_speed
import scaling_speed
import speed
import speed_ours
import speed_work as work
from rollout_simulation import Turn, context_at
from slow_workers import SlowWorkers

ROOT = pathlib.Path(__file__).parents[2]
TOY = work.SHAPES["toy"]
SIDE_BY_SIDE = """
import speed_work
def part(shape):
    runs = iter(range(100))
    return lambda: print("noise") or {"run": next(runs), "width": shape.width}
speed_work.take_part({"gen": part}, None)
"""


def test_rows_weights_and_advantages_are_what_is_told():
    rows, advantages = work.token_rows(TOY), work.advantages().reshape(-1, work.GROUP)
    assert rows.shape == (32, 256) and rows.min() >= 3 and rows.max() == TOY.vocab - 1
    assert np.abs(advantages.mean(1)).max() < 1e-6 and np.abs(advantages.std(1, ddof=1) - 1).max() < 1e-5
    matrices = {name: array for name, array in work.weights(TOY).items() if array.ndim == 2 and "layers" in name}
    assert sum(array.size for array in matrices.values()) == TOY.layers * TOY.layer_weights


def test_floors_count_every_operation():
    # One layer without width: attention alone, 4 operations a feature and pair of query and key.
    bare = work.Shape(layers=1, width=0, heads=1, kv_heads=1, head_dim=1, ff=0, vocab=0)
    pairs = 256 * 257 // 2
    assert work.step_floor(bare, flops=1.0, bytes_s=1.0) == 4 * 32 * 4 * pairs
    decoded = sum(range(129, 256))
    assert work.gen_floor(bare, flops=1.0, bytes_s=1e9) == 32 * 4 * (128 * 129 // 2 + decoded)
    assert work.gen_floor(bare, flops=1e9, bytes_s=1.0) == pytest.approx(32 * 8 * decoded, rel=1e-3)


@pytest.mark.full
def test_ours_samples_and_learns_the_work():
    engine = dataclasses.replace(speed_ours.ENGINE, slots=4, decode_widths=(4,), steps_per_dispatch=8)
    generation = speed_ours.Generation(TOY, engine)
    turns = generation.sample(list(work.token_rows(TOY)[:4, : work.PROMPT]), 9)
    generation.close()
    assert [len(turn.tokens) for turn in turns] == [9] * 4
    run = speed_ours.step(TOY)
    first, second = run(), run()
    assert 0 < second["grad_norm"] != first["grad_norm"] > 0


def test_participants_take_turns(tmp_path, monkeypatch):
    (tmp_path / "speed_fake.py").write_text(SIDE_BY_SIDE)
    monkeypatch.setattr(speed, "HERE", tmp_path)
    monkeypatch.setattr(speed, "ROOT", rollout_speed.__file__.rpartition("/")[0])  # where speed_work lies
    fake = speed.Participant("fake", "fake", "gen")
    with speed.started_all([fake, fake], {"fake": sys.executable}, "toy") as running:
        assert [one.answer()["run"] for one in running] == [0, 0]
        answers = [[one.run() for one in running] for _ in range(2)]
    assert [[one["run"] for one in row] for row in answers] == [[1, 1], [2, 2]]
    assert all(one["width"] == TOY.width and one["s"] >= 0 for row in answers for one in row)
    broken = dataclasses.replace(fake, part="nothing")
    with (
        speed.started_all([broken], {"fake": sys.executable}, "toy") as running,
        pytest.raises(RuntimeError, match="nothing"),
    ):
        running[0].answer()


def test_the_table_has_medians_floors_and_ratios():
    runs = {"rw": (2.0, 1.0, 4.0), "peer": (4.0, 3.0, 4.0)}
    rows = [
        {"name": name, "first": {}, "runs": [{"s": s, "cpu_s": 2 * s} for s in seconds]}
        for name, seconds in runs.items()
    ]
    ours, peer = speed.lines({"kind": "gen", "shape": "tiny", "rows": rows, "floor_s": 0.5})
    assert ours == "| gen tiny | rw | 2 (1–4) | 2,048 tok/s | 4 (2–8) | 25% | 1 (1–1) |"
    assert peer == "| gen tiny | peer | 4 (3–4) | 1,024 tok/s | 8 (6–8) | 12% | 2 (1–3) |"


def test_regimes_have_a_table():
    said = {"long_rows": True, "latency_s": 1.0, "update_share": 0.333, "ratio": [0.8, 0.7, 0.9]}
    said |= {"collect/perf/step_s": [10.0, 9.0, 11.0], "stream/perf/step_s": [8.0, 7.0, 9.0]}
    expected = "| 2,048 tokens | 1 | 33% | 10.00 (9.00–11.00) | 8.00 (7.00–9.00) | 0.80 (0.70–0.90) |"
    assert speed.regime_table(said)[-1] == expected


def test_the_table_of_the_readme_is_that_of_the_recorded_run():
    recorded = json.loads((ROOT / "configs" / "results" / "speed.json").read_text(encoding="utf-8"))
    expected = f"<!-- speed -->\n{speed.table(recorded)}\n<!-- end -->"
    assert expected in (ROOT / "README.md").read_text(encoding="utf-8"), f"it should read\n{expected}"


def test_rollouts_run_in_engine_and_barrier():
    case = rollout_speed.Case("toy", 4, (256,))
    trajectories = [(Turn(3, 0.3), Turn(5, None)), (Turn(2, None),), (Turn(4, 0.1), Turn(1, 0.2), Turn(2, None))]
    rollouts, workers = rollout_speed.Rollouts(case, slots=2, episodes=3), SlowWorkers()
    (row,) = rollouts.token_times([2], [64], 4)
    assert row[:2] == (2, 64) and row[2] > 0
    rollouts.engine.stats()
    ends = rollouts.run(rollouts.asynchronous(trajectories, workers))
    freely = rollouts.engine.stats()
    barrier_s = rollouts.run(rollouts.turn_barrier(trajectories, workers))
    in_step = rollouts.engine.stats()
    assert all(counters["sampled_tokens"] == 17 and not counters["compiled"] for counters in (freely, in_step))
    assert freely["evictions"] == in_step["evictions"] == 0
    rollouts.run(workers.close())
    rollouts.generation.close()
    assert len(ends) == 3 and ends == sorted(ends) and ends[-1] >= 0.3
    assert barrier_s >= 0.3 + 0.2  # every round waits for its slowest
    assert context_at(trajectories[2], 2, rollout_speed.LENGTHS) == 64 + 4 + 16 + 1 + 16


def test_tables_have_a_line_for_each_row():
    rows = [{"slots": 1, "token_ms": 0.5, "tokens_s": 2000.0}, {"slots": 256, "token_ms": 3.14159, "tokens_s": 81487.0}]
    assert scaling_speed.table(rows)[2:] == ["| 1 | 0.5 | 2,000 |", "| 256 | 3.14 | 81,487 |"]
