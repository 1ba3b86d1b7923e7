"""The questions of a run: those it trains on by batch, and those held out."""

from __future__ import annotations

from collections.abc import Callable

from rw.data import replay
from rw.data.order import batch_indices
from rw.errors import DataError
from rw.protocol.dialogue import RouterProtocol
from rw.run_config import RunConfig
from rw.simulation import queries as simulated_queries
from rw.types import Query

QueryBatches = Callable[[int, int], list[Query]]  # (data batch index b, queries) -> the queries of that batch


def query_batches(config: RunConfig) -> QueryBatches:
    """The training queries as a pure function of b, so that a resumed run goes on where it stopped."""
    if config.data.source == "simulated":
        world_seed, seed = config.workers.world_seed, config.seed
        return lambda b, size: simulated_queries.batch(world_seed, b, size, "train", draw_seed=seed)
    train, _ = recorded_questions(config)
    if config.queries_per_batch > len(train):
        raise DataError(f"queries_per_batch={config.queries_per_batch} is more than the {len(train)} training queries")
    return lambda b, size: [train[index] for index in batch_indices(config.seed, b, len(train), size)]


def held_out_queries(config: RunConfig) -> tuple[list[Query], list[Query]]:
    """(validation, test): the questions of the run's evaluations. Neither is ever trained on."""
    evaluation, data = config.evaluation, config.data
    sizes = (evaluation.validation_queries if evaluation.every else 0, evaluation.test_queries)
    if data.source == "nq6":
        all_queries, _, _ = replay.load_nq6()
        _, *held_out = replay.split(all_queries, data.split_seed, data.test_queries, data.validation_queries)
        return tuple(queries[:size] for queries, size in zip(held_out, sizes, strict=True))
    world_seed = config.workers.world_seed
    return (
        simulated_queries.distinct(world_seed, sizes[0], "validation", config.seed),
        simulated_queries.distinct(world_seed, sizes[1], "test", draw_seed_of_test(config)),
    )


def draw_seed_of_test(config: RunConfig) -> int:
    """What draws the simulated test questions."""
    seed = config.evaluation.test_seed
    return config.seed if seed is None else seed


def recorded_questions(config: RunConfig) -> tuple[list[Query], replay.Answers]:
    """The questions a run trains on and the recorded answers to all."""
    all_queries, _, answers = replay.load_nq6()
    train, _, _ = replay.split(
        all_queries, config.data.split_seed, config.data.test_queries, config.data.validation_queries
    )
    return train, answers


def check_prompts(protocol: RouterProtocol, queries: QueryBatches, batches: int, size: int) -> None:
    """Raises DataError for the first query of batches 0, …, `batches` - 1 whose prompt is over the limit.

    A prompt is never cut, so such a query would end the run in its step; it must do so before anything is spent.
    """
    seen: set[str] = set()
    for b in range(batches):
        new = [query for query in queries(b, size) if query.prompt not in seen]
        for query in new:
            protocol.check_fits(query)
        seen.update(query.prompt for query in new)
