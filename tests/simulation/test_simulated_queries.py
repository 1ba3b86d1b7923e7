"""Queries are pure functions of (seed, split, index); splits share no question; any batch is balanced over domains."""

import collections

import pytest

from rw.errors import ConfigError
from rw.simulation import queries
from rw.simulation.queries import SPLITS, batch, query, split_of
from rw.simulation.world import DOMAINS, World, read_question


def questions(split: str, count: int = 600, seed: int = 0) -> list[str]:
    return [query(seed, split, index).metadata["question"] for index in range(count)]


def test_a_query_reads_as_a_router_gets_it():
    first = query(0, "train", 0)
    assert first.id == "sim-train-000000"
    assert (first.dataset, first.domain) == ("simulated", "math")
    assert first.prompt == "math simple: take the price of koala, then plus 28.\nReply with one number."
    assert first.metadata["type"] == "math_chain"
    assert first.metadata["difficulty"] == "simple"
    assert first.reference == str((World(0).entry("recall", "koala", "price") + 28) % 30)


def test_references_are_the_worlds_answers():
    for asked in batch(7, 3, 25):
        assert asked.reference == str(World(7).answer(read_question(asked.prompt)))


def test_splits_share_no_question_whatever_the_seed():
    train = set(questions("train", seed=0)) | set(questions("train", seed=1))
    validation, test = set(questions("validation", seed=2)), set(questions("test", seed=3))
    assert not (train & validation or train & test or validation & test)
    for split, texts in (("train", train), ("validation", validation), ("test", test)):
        assert {split_of(text) for text in texts} == {split}


def test_split_shares_are_as_stated():
    assert sum(SPLITS.values()) == pytest.approx(1.0)
    found = collections.Counter(split_of(f"question {number}") for number in range(4000))
    for split, share in SPLITS.items():
        assert found[split] / 4000 == pytest.approx(share, abs=0.03)


def test_no_question_comes_twice_in_a_test_draw():
    assert len(set(questions("test", 1000))) == 1000


def test_questions_come_again_only_when_all_have_come():
    known = queries._ordered(read_question("know simple: which age suits otter?").kind, "validation", 0)
    place = DOMAINS.index("know")
    drawn = [query(0, "validation", 5 * turn + place).metadata["question"] for turn in range(len(known) + 1)]
    assert len(set(drawn)) == len(known)
    assert drawn[-1] == drawn[0]


@pytest.mark.parametrize("size", [5, 16, 32])
def test_batches_are_consecutive_and_balanced(size):
    first, second = batch(0, 0, size), batch(0, 1, size)
    assert [each.id for each in first + second] == [f"sim-train-{index:06d}" for index in range(2 * size)]
    for each in (first, second):
        counts = collections.Counter(asked.domain for asked in each)
        assert set(counts) == set(DOMAINS)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_both_difficulties_are_about_equally_frequent():
    tricky = sum(query(0, "train", index).metadata["difficulty"] == "tricky" for index in range(1000))
    assert 430 <= tricky <= 570


def test_equal_arguments_give_equal_queries_and_another_draw_gives_others():
    assert query(1, "train", 17) == query(1, "train", 17)
    assert query(1, "train", 17) != query(1, "train", 17, draw_seed=2)
    drawn = query(1, "train", 17, draw_seed=2)
    assert drawn.reference == str(World(1).answer(read_question(drawn.prompt)))


def test_unknown_splits_and_negative_indices_are_refused():
    with pytest.raises(ConfigError, match="'dev'.*train, validation, test"):
        query(0, "dev", 0)
    with pytest.raises(ConfigError, match="-1"):
        query(0, "train", -1)
