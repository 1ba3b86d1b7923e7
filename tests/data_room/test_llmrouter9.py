"""Recorded scores of nine models: what ships, its split, its modelled costs, and records that are refused."""

import collections
import json

import numpy as np
import pytest

from rw.data.llmrouter9 import DOMAINS, MODELS, REPLY_TOKENS, load_llmrouter9, modelled_cost_usd, split
from rw.errors import DataError
from rw.evaluation.recorded_matrices import scores_matrix


@pytest.fixture(scope="module")
def questions():
    return load_llmrouter9()


def test_the_packaged_file_holds_what_was_recorded(questions):
    assert len(questions) == 721 and {question.task for question in questions} == set(DOMAINS)
    means = np.array([question.scores for question in questions]).mean(0).round(2)
    assert dict(zip((model.name for model in MODELS), means, strict=True))["llama-3.1-nemotron-51b-instruct"] == 0.66
    assert np.array([question.scores for question in questions]).max(1).mean().round(3) == 0.831


def test_a_third_of_each_task_is_tested_by_seed_and_question_alone(questions):
    train, test = split(questions, 0)
    assert not {question.id for question in train} & {question.id for question in test}
    assert len(train) + len(test) == 721
    counts, tested = (collections.Counter(question.task for question in some) for some in (questions, test))
    assert all(tested[task] == round(count / 3) for task, count in counts.items())
    turned = split(questions[::-1], 0)[1]
    assert {question.id for question in turned} == {question.id for question in test}
    assert {question.id for question in split(questions, 1)[1]} != {question.id for question in test}


def test_costs_are_modelled_from_prices_and_assumed_tokens(questions):
    question = questions[0]
    tokens = -(-len(question.text) // 4) + REPLY_TOKENS
    assert modelled_cost_usd(question, MODELS[-1]) == pytest.approx(tokens * 0.9e-6)
    matrix = scores_matrix(questions[:3])
    assert matrix.about["modelled_cost"] and not matrix.has_answers
    assert matrix.cells[0][-1].cost_usd == modelled_cost_usd(questions[0], MODELS[-1])
    graded = scores_matrix([question for question in questions if any(0 < score < 1 for score in question.scores)])
    assert any(not cell.correct and cell.score > 0 for row in graded.cells for cell in row)


def record(**changes):
    scores = {model.name: 1.0 for model in MODELS}
    return json.dumps({"task_name": "math", "query": "1+1?\u2028now", "scores": scores, **changes}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([record(task_name="chess")], "line 1: unknown task 'chess'"),
        ([record(), record()], "line 2: its question was recorded before"),
        ([record(query=" ")], "the question is empty"),
        ([record(scores={})], "not a record of scores"),
        ([record(scores={model.name: 2 for model in MODELS})], "not between 0 and 1"),
        (["{"], "not a record of scores"),
    ],
)
def test_records_that_cannot_be_used_are_refused(tmp_path, lines, said):
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load_llmrouter9(path)


def test_a_separator_inside_a_text_ends_no_record(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(record() + "\n", encoding="utf-8")
    assert load_llmrouter9(path)[0].text == "1+1?\u2028now"
