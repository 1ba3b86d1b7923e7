"""The questions of a run: those it trains on by batch, and those held out."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rw.config import as_dict
from rw.data import replay
from rw.data.answer_formats import without_line
from rw.data.config import DataConfig
from rw.data.mixture import POOL, Mixture
from rw.data.order import batch_indices
from rw.data.prepared import read_queries
from rw.data.wording import normalised
from rw.errors import ConfigError, DataError
from rw.protocol.dialogue import RouterProtocol
from rw.run_config import RunConfig
from rw.simulation import queries as simulated_queries
from rw.types import Query

SPLITS = ("train", "validation", "test", "held_out")
QueryBatches = Callable[[int, int], list[Query]]  # (data batch index b, queries) -> the queries of that batch


def query_batches(config: RunConfig) -> QueryBatches:
    """The training queries as a pure function of b, so that a resumed run goes on where it stopped.

    Batches of another size than the run's, those of its warm start, take all questions as one pool.
    """
    if config.data.source == "simulated":
        world_seed, seed = config.workers.world_seed, config.seed
        return lambda b, size: simulated_queries.batch(world_seed, b, size, "train", draw_seed=seed)
    train = recorded_questions(config)[0] if config.data.source == "nq6" else file_questions(config.data).train
    if config.queries_per_batch > len(train):
        raise DataError(f"queries_per_batch={config.queries_per_batch} is more than the {len(train)} training queries")
    batches = None if config.data.source == "nq6" else mixture(config).dataset()

    def batch(b: int, size: int) -> list[Query]:
        if batches is not None and size == config.queries_per_batch:
            return batches[b]
        return [train[index] for index in batch_indices(config.seed, b, len(train), size)]

    return batch


def mixture(config: RunConfig) -> Mixture:
    """What `data.source='files'` makes up the batches from."""
    return Mixture(file_questions(config.data).train, config.data.mixture(), config.queries_per_batch, config.seed)


def passes(config: RunConfig) -> Callable[[int], dict[str, float]]:
    """How often the first so many batches of a run pass over each of its data sets; nothing where questions are drawn
    without end."""
    if config.data.source == "simulated":
        return lambda batches: {}
    if config.data.source == "nq6":
        size = len(recorded_questions(config)[0])
        return lambda batches: {POOL: batches * config.queries_per_batch / size}
    return mixture(config).passes


def passes_line(config: RunConfig) -> str:
    """How often the whole run passes over each data set, in one line; empty where there are no passes."""
    found = passes(config)(config.steps)
    shown = ", ".join(f"{name} {count:.3g}" for name, count in found.items())
    return f"{config.steps} batches pass over the training questions so often: {shown}" if found else ""


def held_out_queries(config: RunConfig) -> tuple[list[Query], list[Query]]:
    """(validation, test): the questions of the run's evaluations. Neither is ever trained on."""
    evaluation, data = config.evaluation, config.data
    sizes = (evaluation.validation_queries if evaluation.validates else 0, evaluation.test_queries)
    if data.source == "files":
        found = file_questions(data)
        return _spread(found.validation, sizes[0], "validation"), _spread(found.test, sizes[1], "test")
    if data.source == "nq6":
        all_queries, _, _ = replay.load_nq6()
        _, *held_out = replay.split(all_queries, data.split_seed, data.test_queries, data.validation_queries)
        return tuple(queries[:size] for queries, size in zip(held_out, sizes, strict=True))
    world_seed = config.workers.world_seed
    return (
        simulated_queries.distinct(world_seed, sizes[0], "validation", config.seed),
        simulated_queries.distinct(world_seed, sizes[1], "test", draw_seed_of_test(config)),
    )


def generalisation_queries(config: RunConfig) -> list[Query]:
    """What `rw evaluate` asks beside the test questions: all of `data.held_out_files`."""
    return list(file_questions(config.data).held_out) if config.data.source == "files" else []


def check_asked(config: RunConfig, queries: Sequence[Query]) -> None:
    """Raises ConfigError where an evaluation has nothing to ask."""
    if not queries:
        files = ", and data.test_files or data.held_out_files" if config.data.source == "files" else ""
        raise ConfigError(f"this config has no test questions: set evaluation.test_queries{files}")


def draw_seed_of_test(config: RunConfig) -> int:
    """What draws the simulated test questions."""
    seed = config.evaluation.test_seed
    return config.seed if seed is None else seed


def draw_of_test(config: RunConfig) -> dict[str, Any]:
    """Which questions the test asks, as its records say it: by a seed, or by what the files hold."""
    if config.data.source == "files":
        return {"draw_seed": None, "files": file_questions(config.data).fingerprints["test"]}
    return {"draw_seed": config.data.split_seed if config.data.source == "nq6" else draw_seed_of_test(config)}


def draw_of_generalisation(config: RunConfig) -> dict[str, Any]:
    """The same of `generalisation_queries`; nothing where there are none."""
    if not config.data.held_out_files:
        return {}
    return {"held_out_files": file_questions(config.data).fingerprints["held_out"]}


def recorded_questions(config: RunConfig) -> tuple[list[Query], replay.Answers]:
    """The questions a run trains on and the recorded answers to all."""
    all_queries, _, answers = replay.load_nq6()
    train, _, _ = replay.split(
        all_queries, config.data.split_seed, config.data.test_queries, config.data.validation_queries
    )
    return train, answers


class FileQuestions(NamedTuple):
    """What the prepared files of a run hold."""

    train: tuple[Query, ...]
    validation: tuple[Query, ...]
    test: tuple[Query, ...]
    held_out: tuple[Query, ...]
    fingerprints: Mapping[str, str]  # of each split: sha256 (hex) of the checksums of its files


def file_questions(data: DataConfig) -> FileQuestions:
    """The questions of prepared files, all that they hold.

    Raises:
        ConfigError: a file that is not there, with the command that makes one.
        DataError: a file that cannot be used, an id that occurs twice, or a held-out question that is trained on.
    """
    paths = tuple(getattr(data, f"{name}_files") for name in SPLITS)
    for path in (path for some in paths for path in some):
        if not os.path.isfile(path):
            raise ConfigError(
                f"{path}, of the config's data section, is not there; make it: "
                f"rw data prepare --dataset NAME --input FILE|DIR|hub --output {path}"
            )
    stamps = tuple((path, os.stat(path).st_mtime_ns, os.stat(path).st_size) for some in paths for path in some)
    return _read_files(paths, stamps)


@functools.lru_cache(maxsize=2)
def _read_files(paths: Sequence[Sequence[str]], stamps: Sequence[tuple[str, int, int]]) -> FileQuestions:
    """`stamps` tell files that were changed from those read before."""
    read = [[read_queries(path) for path in some] for some in paths]
    splits = {name: tuple(q for one in files for q in one.queries) for name, files in zip(SPLITS, read, strict=True)}
    sums = ["".join(one.header["sha256"] for one in files) for files in read]
    seen: dict[str, str] = {}
    for name, queries in splits.items():
        for query in queries:
            if query.id in seen:
                raise DataError(
                    f"question {query.id} is in data.{seen[query.id]}_files and again in data.{name}_files; ids must "
                    "be different, and what is held out must not be trained on"
                )
            seen[query.id] = name
    asked: dict[str, tuple[str, str]] = {}
    for name, queries in splits.items():
        new: dict[str, tuple[str, str]] = {}
        for query in queries:
            text = _normalised(query)
            if text in asked:
                before, same = asked[text]
                raise DataError(
                    f"question {query.id} of data.{name}_files asks what {same} of data.{before}_files asks; what is "
                    "held out must not be trained on, nor choose the best router: prepare the files again with "
                    "--disjoint-from"
                )
            new.setdefault(text, (name, query.id))
        asked |= new
    fingerprints = {name: hashlib.sha256(sum_.encode()).hexdigest() for name, sum_ in zip(SPLITS, sums, strict=True)}
    return FileQuestions(**splits, fingerprints=fingerprints)


def recorded_config(config: RunConfig) -> dict[str, Any]:
    """The config as checkpoints and journals record it: with what the files of training questions hold, which their
    paths do not tell."""
    known = {} if config.data.source != "files" else {"train": file_questions(config.data).fingerprints["train"]}
    return {**as_dict(config), **({"questions": known} if known else {})}


def _normalised(query: Query) -> str:
    """A question but for case, spaces, typography and the line that says how to answer."""
    return normalised(without_line(query.prompt)) or query.prompt


def spread_over_sets(queries: Sequence[Query], size: int) -> list[Query]:
    """The first `size` questions, as many of each data set as can be, in the given order."""
    by_set: dict[str, list[int]] = {}
    for place, query in enumerate(queries):
        by_set.setdefault(query.dataset, []).append(place)
    in_turn = sorted((rank, place) for places in by_set.values() for rank, place in enumerate(places))
    return [queries[place] for place in sorted(place for _, place in in_turn[:size])]


def _spread(queries: Sequence[Query], size: int, name: str) -> list[Query]:
    """So many questions of the files; DataError where there are fewer."""
    if size > len(queries):
        raise DataError(f"evaluation.{name}_queries={size} is more than the {len(queries)} of data.{name}_files")
    return spread_over_sets(queries, size)


def check_prompts(protocol: RouterProtocol, queries: QueryBatches, batches: int, size: int) -> list[Query]:
    """All different queries of batches 0, …, `batches` - 1; DataError for the first whose prompt is over the limit.

    A prompt is never cut, so such a query would end the run in its step; it must do so before anything is spent.
    """
    seen: dict[str, Query] = {}
    for b in range(batches):
        new = {query.prompt: query for query in queries(b, size) if query.prompt not in seen}
        for query in new.values():
            protocol.check_fits(query)
        seen.update(new)
    return list(seen.values())
