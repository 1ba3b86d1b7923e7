"""The mixture of data sets: quotas, epochs, and batches that depend on (seed, b) alone."""

import collections

import grain
import pytest

from rw.data.mixture import POOL, Mixture
from rw.data.order import batch_indices
from rw.data.quotas import Quota, check_quotas, paper_quotas
from rw.errors import DataError
from rw.types import Query

SIZES = {
    "math": 11, "omni_math": 9, "apps": 13, "live_code_bench": 3, "super_gpqa": 20, "sat_bench": 17, "trivia_qa": 8
}  # fmt: skip


def questions(sizes):
    return [
        Query(f"{name}-{k}", name, "any", f"{name} {k}?", "yes") for name, size in sizes.items() for k in range(size)
    ]


def paper_mixture(seed=0, knowledge_reason="6/7"):
    return Mixture(questions(SIZES), [*map(Quota.parse, paper_quotas(knowledge_reason))], 32, seed)


def ids(batch):
    return [query.id for query in batch]


def counts(batch):
    return collections.Counter(query.dataset for query in batch)


@pytest.mark.parametrize("knowledge_reason, knowledge, reason", [("6/7", 6, 7), ("7/6", 7, 6)])
def test_batches_hold_the_papers_quotas_and_math_alternates(knowledge_reason, knowledge, reason):
    mixture = paper_mixture(knowledge_reason=knowledge_reason)
    for b in range(6):
        math = (4, 3) if b % 2 == 0 else (3, 4)
        assert [counts(mixture[b])[name] for name in SIZES] == [*math, 4, 3, knowledge, reason, 5]
        assert len(set(ids(mixture[b]))) == 32


@pytest.mark.parametrize("counts_", [(4,), (4, 3), (3, 4, 0), (1, 0, 0, 2)])
def test_every_epoch_of_a_set_holds_each_question_once_whatever_the_turns(counts_):
    size, batches = 7, 60
    drawn = [batch_indices(5, b, size, counts_) for b in range(batches)]
    assert [len(one) for one in drawn] == [counts_[b % len(counts_)] for b in range(batches)]
    assert all(len(set(one)) == len(one) for one in drawn)
    stream = [index for one in drawn for index in one]
    epochs = [stream[start : start + size] for start in range(0, len(stream) - size + 1, size)]
    assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > len(epochs) / 2


def test_sets_of_one_size_are_passed_over_in_different_orders():
    mixture = Mixture(questions({"a": 12, "b": 12}), [Quota("a", (4,)), Quota("b", (4,))], 8, 0)
    drawn = {name: {one.split("-")[1] for one in ids(mixture[0]) if one.startswith(name)} for name in "ab"}
    assert len(drawn["a"]) == 4 and drawn["a"] != drawn["b"]


def test_every_slice_of_a_batch_has_questions_of_several_sets():
    for b in range(20):
        halves = [counts(paper_mixture().dataset(shard, 2)[b]) for shard in range(2)]
        assert all(len(half) >= 5 for half in halves)


def test_a_batch_depends_on_seed_and_index_alone():
    first, again = paper_mixture(), paper_mixture()
    later = ids(first[7])
    assert ids(again[7]) == later == ids(first[7]) and ids(paper_mixture(seed=1)[7]) != later


def test_a_resumed_run_goes_on_behind_the_last_trained_batch_whatever_was_fetched_ahead():
    whole = [ids(batch) for batch in (paper_mixture()[b] for b in range(8))]
    ahead = iter(paper_mixture().dataset().to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=8)))
    trained = [ids(next(ahead)) for _ in range(3)]  # by now others lie in the buffer
    resumed = paper_mixture().dataset()
    assert trained + [ids(resumed[b]) for b in range(len(trained), 8)] == whole


@pytest.mark.parametrize("threads, ahead", [(0, 0), (1, 2), (5, 16)])
def test_workers_that_read_ahead_change_nothing(threads, ahead):
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    iterator = iter(paper_mixture().dataset().to_iter_dataset(options))
    direct = [ids(paper_mixture()[b]) for b in range(6)]
    assert [ids(next(iterator)) for _ in range(4)] == direct[:4]
    kept = iterator.get_state()
    assert ids(next(iterator)) == direct[4]
    iterator.set_state(kept)
    assert ids(next(iterator)) == direct[4] and ids(next(iterator)) == direct[5]


def test_hosts_get_slices_that_make_up_the_batch():
    whole, halves = paper_mixture().dataset(), [paper_mixture().dataset(shard, 4) for shard in range(4)]
    assert [name for half in halves for name in ids(half[3])] == ids(whole[3])
    with pytest.raises(DataError, match="shard 0 of 3: a batch of 32 has no such equal part"):
        paper_mixture().dataset(0, 3)


def test_without_quotas_all_questions_are_one_pool():
    pool = questions({"a": 5, "b": 6})
    mixture = Mixture(pool, (), 4, 9)
    assert [ids(mixture[b]) for b in range(5)] == [ids(pool[k] for k in batch_indices(9, b, 11, 4)) for b in range(5)]
    assert mixture.passes(11) == {POOL: 4.0}


def test_passes_count_how_often_each_set_was_gone_over():
    mixture = Mixture(questions({"a": 7, "b": 4}), [Quota("a", (4, 3)), Quota("b", (1, 2))], 5, 0)
    assert mixture.passes(0) == {"a": 0, "b": 0}
    assert mixture.passes(2) == {"a": 1.0, "b": 3 / 4}
    assert mixture.passes(5) == {"a": 18 / 7, "b": 7 / 4}


@pytest.mark.parametrize(
    "quotas, batch, message",
    [
        (("a:2", "c:2"), 4, "quota c:2: there are no questions of that data set to train on; those there: a, b"),
        (("a:2", "b:5"), 7, "b:5: a batch cannot hold so many different ones of 4 questions"),
        (("a:2", "b:3"), 4, r"the quotas a:2, b:3 take 5 questions in batch 0, and a batch holds 4"),
        (("a:2/3", "b:2"), 4, r"take 5 questions in batch 1"),
        (("a:2", "a:2"), 4, "data set a has 2 quotas"),
    ],
)
def test_quotas_that_cannot_be_had_are_refused(quotas, batch, message):
    with pytest.raises(DataError, match=message):
        Mixture(questions({"a": 3, "b": 4}), [*map(Quota.parse, quotas)], batch, 0)


@pytest.mark.parametrize("text", ["math", "math:", "math:0", "math:0/0", "math:-1", "math:1/", "ma th:1", ""])
def test_quotas_that_cannot_be_read_are_refused(text):
    with pytest.raises(DataError, match="not of the form dataset:n or dataset:n/m"):
        Quota.parse(text)


def test_quotas_are_written_as_they_are_read():
    assert [str(Quota.parse(text)) for text in paper_quotas()] == list(paper_quotas())
    check_quotas([*map(Quota.parse, paper_quotas("7/6"))], 32)
