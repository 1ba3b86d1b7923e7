"""A run's questions from prepared files: what is held out stays so, and what changed on the disk is noticed."""

import collections
import dataclasses

import pytest

from rw import questions
from rw.config import as_dict, default_config, freeze
from rw.data.prepared import write_queries
from rw.errors import ConfigError, DataError
from rw.learner.checkpoint import config_changes
from rw.questions import (
    draw_of_generalisation,
    file_questions,
    generalisation_queries,
    held_out_queries,
    passes,
    passes_line,
    query_batches,
    recorded_config,
)
from rw.run_config import MAY_CHANGE
from rw.types import Query


def made(dataset, count, first=0):
    return [Query(f"{dataset}/{k}", dataset, "any", f"{dataset}: {k}?", "1") for k in range(first, first + count)]


@pytest.fixture
def config_of(tmp_path):
    """config_of(train=[…], validation=[…], test=[…], **data keys) -> RunConfig, each split in a file of its own."""

    def make(steps=6, size=3, validate=0, test=0, **values):
        names = ("train", "validation", "test_split", "held_out")
        splits = {name: values.pop(name) for name in names if name in values}
        config = default_config()
        config.steps, config.queries_per_batch = steps, size
        config.evaluation.update(every=1 if validate else 0, validation_queries=validate or 1, test_queries=test)
        config.workers.kind = "http"
        endpoint = {"id": "w", "description": "d", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
        config.workers.endpoints = ({**endpoint, "input_price": 1.0, "output_price": 1.0},)
        config.data.source = "files"
        for name, queries in splits.items():
            path = tmp_path / f"{name}.jsonl"
            write_queries(path, queries, {"dataset": "any", "split": name, "dropped": {}, "sources": []})
            config.data[f"{name.removesuffix('_split')}_files"] = (str(path),)
        config.data.update(values)
        return freeze(config.to_dict())

    return make


def test_batches_follow_the_quotas_and_pass_over_the_files(config_of):
    config = config_of(train=[*made("a", 4), *made("b", 3)], quotas=("a:2/1", "b:1/2"))
    batches = query_batches(config)
    sets = [collections.Counter(query.dataset for query in batches(b, 3)) for b in range(4)]
    assert sets == [{"a": 2, "b": 1}, {"a": 1, "b": 2}] * 2
    assert passes(config)(4) == {"a": 6 / 4, "b": 2.0}
    assert passes_line(config).endswith("so often: a 2.25, b 3")
    assert len({query.id for query in batches(0, 7)}) == 7  # a warm start's batch is of all as one pool


def test_held_out_questions_are_spread_over_their_sets(config_of):
    config = config_of(
        train=made("a", 3), validation=made("a", 5, 10), test_split=[*made("b", 6), *made("c", 2)], validate=2, test=5
    )
    validation, test = held_out_queries(config)
    assert [query.id for query in validation] == ["a/10", "a/11"]
    assert [query.id for query in test] == ["b/0", "b/1", "b/2", "c/0", "c/1"]
    with pytest.raises(DataError, match=r"evaluation.test_queries=9 is more than the 8 of data.test_files"):
        held_out_queries(dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, test_queries=9)))


def test_a_held_out_question_that_is_trained_on_is_refused(config_of):
    copied = dataclasses.replace(made("a", 1)[0], id="other", prompt="A:  0?\n")
    with pytest.raises(DataError, match="question other of data.test_files asks what a/0 of data.train_files asks"):
        file_questions(config_of(train=made("a", 3), test_split=[copied], test=1).data)
    with pytest.raises(DataError, match="question a/2 is in data.train_files and again in data.validation_files"):
        file_questions(config_of(train=made("a", 3), validation=made("a", 2, 2), validate=1).data)


def test_what_is_held_out_altogether_is_asked_whole_and_stands_apart_from_the_rest(config_of):
    config = config_of(train=made("a", 3), test_split=made("b", 4), held_out=[*made("c", 2), *made("d", 1)], test=2)
    assert [query.id for query in held_out_queries(config)[1]] == ["b/0", "b/1"]
    assert [query.id for query in generalisation_queries(config)] == ["c/0", "c/1", "d/0"]
    (found,) = draw_of_generalisation(config).values()
    config_of(train=made("a", 3), test_split=made("b", 4), held_out=made("c", 2), test=2)
    assert draw_of_generalisation(config) != {"held_out_files": found}
    for name, other in (("train", made("a", 3)), ("test_split", made("b", 4))):
        copied = dataclasses.replace(other[0], id="other")
        with pytest.raises(DataError, match="question other of data.held_out_files asks what"):
            file_questions(config_of(**{"train": made("a", 3), name: other}, held_out=[copied]).data)
    plain = config_of(train=made("a", 3))
    assert generalisation_queries(plain) == [] and draw_of_generalisation(plain) == {}


def test_typography_and_the_line_of_the_answers_form_make_no_other_question(config_of):
    copied = Query("other", "math", "any", "\n  “Why” – how?\n\nPut the final answer by itself on the last line.", "1")
    trained = Query("own", "custom", "any", '"why" - how', "1")
    with pytest.raises(DataError, match="question other of data.validation_files asks what own of data.train_files"):
        file_questions(config_of(train=[*made("a", 1), trained], validation=[copied], validate=1).data)


def test_a_test_question_must_not_choose_the_best_router(config_of):
    copied = dataclasses.replace(made("b", 1)[0], id="other")
    with pytest.raises(DataError, match="question other of data.test_files asks what b/0 of data.validation_files"):
        file_questions(config_of(train=made("a", 3), validation=made("b", 2), test_split=[copied], test=1).data)


def test_a_file_that_is_not_there_is_named_with_what_makes_it(config_of):
    config = config_of(train_files=("nowhere/math.jsonl",))
    with pytest.raises(ConfigError, match="rw data prepare --dataset NAME .* --output nowhere/math.jsonl"):
        query_batches(config)


def test_a_quota_that_the_files_cannot_fill_is_refused(config_of):
    with pytest.raises(DataError, match="quota b:1: there are no questions of that data set to train on"):
        query_batches(config_of(train=made("a", 9), quotas=("a:2", "b:1")))
    with pytest.raises(DataError, match="queries_per_batch=3 is more than the 2 training queries"):
        query_batches(config_of(train=made("a", 2)))


def test_what_a_run_records_changes_with_what_its_files_hold_and_not_when_they_are_read_again(config_of):
    config = config_of(train=made("a", 5))
    before = recorded_config(config)
    assert before.keys() - as_dict(config).keys() == {"questions"} and recorded_config(config) == before
    config_of(train=made("a", 6))
    assert recorded_config(config)["questions"] != before["questions"]


def test_a_run_may_go_on_with_other_test_files_and_no_other_training_files(config_of):
    before, after = (
        dataclasses.replace(config_of(train=made("a", 5)).data, train_files=("a",), test_files=tested)
        for tested in ((), ("b",))
    )
    configs = [{"data": dataclasses.asdict(data)} for data in (before, after)]
    assert config_changes(*configs, MAY_CHANGE) == []
    configs[1]["data"]["train_files"] = ("c",)
    assert len(config_changes(*configs, MAY_CHANGE)) == 1


def test_files_are_read_once(config_of, monkeypatch):
    config, reads = config_of(train=made("a", 5)), []
    read = questions.read_queries
    monkeypatch.setattr(questions, "read_queries", lambda path: reads.append(path) or read(path))
    for _ in range(3):
        query_batches(config)(0, 3)
        held_out_queries(config)
    assert len(reads) == 1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"quotas": ("a:2",)}, "queries_per_batch=3: the quotas a:2 take 2 questions in batch 0"),
        ({"quotas": ("a2",)}, "data.quotas=.* quota 'a2' is not of the form .* 'paper' stands alone"),
        ({"quotas": ("paper",)}, r"queries_per_batch=3: the quotas math:4/3, .* take 32 questions in batch 0"),
        ({"source": "nq6"}, "data.source='nq6' with 1 data.train_files"),
        ({"source": "nq6", "train_files": (), "quotas": ("a:3",)}, "data.quotas=.* is for data.source='files'"),
        ({"quota_knowledge_reason": "5/8"}, "data.quota_knowledge_reason='5/8' is not one of 6/7, 7/6"),
    ],
)
def test_data_sections_that_make_no_batch_are_refused(config_of, changes, message):
    with pytest.raises(ConfigError, match=message):
        config_of(train=made("a", 5), **changes)


def test_evaluations_without_files_are_refused(config_of):
    with pytest.raises(ConfigError, match="evaluation.test_queries=5 without data.test_files"):
        config_of(train=made("a", 5), test=5)
    with pytest.raises(ConfigError, match="without data.validation_files: name some, or set evaluation.every=0"):
        config_of(train=made("a", 5), validate=2)


def test_only_workers_that_can_answer_files_are_accepted():
    config = default_config()
    config.data.update(source="files", train_files=("x.jsonl",))
    config.evaluation.update(every=0, test_queries=0)
    for kind in ("simulated", "replay"):
        config.workers.kind = kind
        with pytest.raises(ConfigError, match=f"workers.kind='{kind}' cannot answer .* it must be 'http'"):
            freeze(config.to_dict())
