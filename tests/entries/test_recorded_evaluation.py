"""The final evaluation on recorded answers: baselines come from the records, on the split's test questions alone."""

import pathlib

from rw.config import load_config
from rw.data.replay import load_nq6, split
from rw.evaluation.outcomes import read_arms
from rw.final_evaluation import FinalEvaluation
from rw.parts import open_parts
from rw.workdir import Workdir

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
RECORDED = [
    ("data.source", "nq6"),
    ("data.split_seed", "3"),
    ("workers.kind", "replay"),
    ("protocol.prompt_limit", "200"),
    ("engine.lengths", "(640,)"),
    ("batch.length_buckets", "(640,)"),
    ("evaluation.validation_queries", "40"),
    ("evaluation.test_queries", "120"),
    ("evaluation.arms", "('scripted', 'random', 'knn', 'oracle')"),
]


async def evaluated(tmp_path, *overrides):
    with Workdir(tmp_path / "run") as workdir:
        async with open_parts(load_config(TINY, [*RECORDED, *overrides]), workdir) as parts:
            await FinalEvaluation(parts, None).run(None, 0)
    return read_arms(tmp_path / "run")


async def test_baselines_answer_the_splits_test_questions(tmp_path):
    arms = await evaluated(tmp_path)
    assert sorted(arms) == ["knn", "oracle", "random", *(f"scripted_worker_{k}" for k in range(1, 7))]
    queries, _, _ = load_nq6()
    _, _, test = split(queries, 3, 120, 40)
    for arm in arms.values():
        assert [one.query_id for one in arm.outcomes] == [query.id for query in test]
        assert (arm.about["draw_seed"], arm.about["step"], arm.about["source"]) == (3, None, "nq6")
    right = {name: sum(one.correct for one in arm.outcomes) for name, arm in arms.items()}
    assert max(right, key=right.get) == "oracle" and right["scripted_worker_1"] > right["random"]


async def test_what_is_evaluated_is_not_evaluated_again_until_the_questions_change(tmp_path, capsys):
    await evaluated(tmp_path)
    capsys.readouterr()
    again = await evaluated(tmp_path)
    assert "test" not in capsys.readouterr().out
    other = await evaluated(tmp_path, ("data.split_seed", "4"))
    assert "oracle" in capsys.readouterr().out
    assert other["oracle"].outcomes != again["oracle"].outcomes
