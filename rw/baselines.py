"""`rw baselines --config FILE`: what scripted and learned routers earn on a config's test questions.

Every Worker is asked every question once, through the episodes, budgets and scorers of training; from these answers
follow all baselines that ask single calls, the learned ones with those to training questions. What calls would cost is
estimated, and confirmed where somebody is paid. Answers are kept in `<workdir>/matrix` and used again.

`rw baselines --outcomes llmrouter9` does the same on recorded scores, without a call.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rw import progress
from rw.arms import Arms, evaluated_arms
from rw.baseline_estimate import Work, confirm, costs_of, episodes_left, show
from rw.cli import ALLOW_LIVE, DRY_RUN, Arguments, run_entry
from rw.config import load_config
from rw.data import llmrouter9
from rw.errors import ConfigError, DataError
from rw.evaluate import check_workdir
from rw.evaluation.baselines import (
    EPISODES,
    NAMES,
    PREFIX,
    PROMPTED,
    choose_names,
    is_learned,
    learned_arms,
    single_call_arms,
    without_answers,
)
from rw.evaluation.embeddings import Embedding, HashedNgrams, SentenceEncoder
from rw.evaluation.learned_routers import LearnedRouter, without_questions_of
from rw.evaluation.outcomes import ArmResult, Outcome, arm_path, read_arm, write_arm
from rw.evaluation.recorded_matrices import scores_matrix
from rw.evaluation.response_matrix import MatrixQuestion, ResponseMatrix, rows_digest
from rw.evaluation.results import print_results, write_results
from rw.final_evaluation import published_router, router_arms
from rw.greedy import GreedyRouter, roll_out
from rw.initial import initial_router
from rw.interruptible import run_interruptible
from rw.matrix_episodes import copying_script, matrix_questions, recorded_matrix, saved_matrix
from rw.parts import Parts
from rw.processes import Processes
from rw.questions import (
    file_questions,
    generalisation_queries,
    held_out_queries,
    recorded_questions,
    spread_over_sets,
)
from rw.run_config import RunConfig
from rw.sampler.scripted import ScriptedSampler
from rw.simulation import queries as simulated_queries
from rw.types import Group, Mode, Query
from rw.workdir import Workdir

TRAIN_QUERIES = 512  # at most, where --train-queries does not say how many
OUTCOMES = ("llmrouter9",)
Embed = Callable[[Sequence[str]], Embedding]  # training texts -> vectors of any
AFTER_STOP = "the same command goes on, and pays for no answer twice"


@dataclasses.dataclass(frozen=True)
class Options:
    """What is asked for beside the config."""

    names: Sequence[str] = NAMES
    train_queries: int | None = None  # to learn from; None: TRAIN_QUERIES, or as many as there are
    matrix: str = ""  # another workdir, whose matrices are used
    encoder: str = ""  # of questions: a directory or name; empty: hashed n-grams
    yes: bool = False  # spend without asking

    @property
    def learned(self) -> list[str]:
        return [name for name in self.names if is_learned(name)]

    @property
    def needs_train(self) -> bool:
        return bool(self.learned) or "knn_multi" in self.names

    @property
    def needs_test(self) -> bool:
        return any(name not in EPISODES for name in self.names)


def main(argv: Sequence[str] | None = None) -> int:
    """`rw baselines`; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if any(word.partition("=")[0] == "--outcomes" for word in argv):
        argv += [] if any(word.partition("=")[0] == "--config" for word in argv) else ["--config", OUTCOMES[0]]
        return run_entry("baselines", argv, _on_outcomes, add_flags=_add_flags)
    if not argv:
        print("rw baselines: error: give --config FILE, or --outcomes llmrouter9 for recorded scores", file=sys.stderr)
        return 2
    return run_entry("baselines", argv, _on_config, functools.partial(_on_config, dry_run=True), _add_flags)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(DRY_RUN, action="store_true", help="estimate calls and USD; call nobody, change nothing")
    parser.add_argument(ALLOW_LIVE, action="store_true", help="in a replay: ask and pay for what was not recorded")
    parser.add_argument("--outcomes", help="instead of --config: recorded scores, llmrouter9")
    parser.add_argument(
        "--train-queries", type=int, metavar="N", help="questions to learn from (512 at most by default)"
    )
    parser.add_argument("--matrix", default="", metavar="DIR", help="use the response matrices of this other workdir")
    parser.add_argument("--encoder", default="", metavar="DIR_OR_NAME", help="a local sentence encoder (rw[encoder])")
    parser.add_argument(
        "--only", default="", metavar="A,B", help=f"these baselines: {', '.join(NAMES)}; or module:function"
    )
    parser.add_argument("--without", default="", metavar="A,B", help="all but these")
    parser.add_argument("--yes", action="store_true", help="spend what is estimated without being asked")


def _on_config(given: Arguments, dry_run: bool = False) -> int:
    config, flags = load_config(given.config, given.overrides), given.flags
    names = choose_names(_listed(flags.only), _listed(flags.without))
    options = Options(names, flags.train_queries, flags.matrix, flags.encoder, flags.yes)
    return baselines(config, given.workdir, options, dry_run)


def _on_outcomes(given: Arguments) -> int:
    flags = given.flags
    if flags.outcomes not in OUTCOMES:
        raise ConfigError(f"--outcomes {flags.outcomes!r} is not one of {', '.join(OUTCOMES)}")
    if given.config != OUTCOMES[0] or given.overrides:
        raise ConfigError("--outcomes takes the place of --config: give one of them")
    for name in ("matrix", "train_queries"):
        if getattr(flags, name):
            raise ConfigError(f"--{name.replace('_', '-')} is for --config: recorded scores have a split of their own")
    names = choose_names(_listed(flags.only), _listed(flags.without), without_answers())
    return recorded_baselines(given.workdir, names, flags.encoder)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def baselines(config: RunConfig, workdir_path: str, options: Options, dry_run: bool = False) -> int:
    """Answers the config's test questions in `workdir_path`, which nobody else may use meanwhile; returns the exit
    code. With `dry_run` only the estimate is printed.

    Raises:
        RwError: before anything is spent, where config, workdir or options cannot be used, or it was not confirmed.
    """
    if not dry_run:
        check_workdir(workdir_path)
    test = [*held_out_queries(config)[1], *generalisation_queries(config)]
    train = train_questions(config, options.train_queries) if options.needs_train else []
    needed = ({"train": train} if options.needs_train else {}) | ({"test": test} if options.needs_test else {})
    saved = {
        split: saved_matrix(config, workdir_path, split, queries, options.matrix) for split, queries in needed.items()
    }
    missing = {split: queries for split, queries in needed.items() if saved[split] is None}
    known = None
    if (train_matrix := saved.get("train")) is not None:
        known = trained_on(without_questions_of(train_matrix, matrix_questions(test)), embedding_name(options.encoder))
    own = [name for name in options.names if name in EPISODES]
    work = Work(missing, episodes_left(config, workdir_path, own, test, known), len(test))
    embed = None if dry_run else embedding_of(options.encoder)  # one that is not there is said before it costs
    if dry_run or not work.is_done:
        costs = costs_of(config, workdir_path, work)
        show(costs, nothing_sent=dry_run)
        if dry_run:
            return 2 if costs.shortfalls else 0
        confirm(config, costs, options.yes)
    body = functools.partial(_run, options=options, train_queries=train, embed=embed)
    return run_interruptible(config, workdir_path, body, AFTER_STOP, Processes())


async def _run(parts: Parts, options: Options, train_queries: Sequence[Query], embed: Embed) -> None:
    arms = evaluated_arms(parts)
    arms.set_aside(lambda arm: {})
    learning = None
    if options.needs_train:
        train = await recorded_matrix(parts, "train", train_queries, options.matrix)
        learning = Learning(train, matrix_questions(arms.queries), embed, parts.config.seed)
    if options.needs_test:
        test = await recorded_matrix(parts, "test", arms.queries, options.matrix)
        await _record_single_calls(arms, options.names, test, learning)
    if "knn_multi" in options.names:
        await _ask_two_in_turn(arms, learning)
    await _ask_untrained_router(arms, options.names)
    progress.say(progress.spent_line(parts.spent, parts.is_nominal))
    print_results(write_results(parts.workdir.path))


async def _record_single_calls(
    arms: Arms, names: Sequence[str], test: ResponseMatrix, learning: Learning | None
) -> None:
    about = {**arms.about(None), "matrix": rows_digest(test)}
    router = None if learning is None else learning.router
    learned = learned_arms(names)
    for arm, found in single_call_arms(names, test, arms.parts.config.seed, router):
        _forget_unless_same(arms.parts.workdir, arm, found)
        await arms.record(arm, {**about, **(learning.about if arm in learned else {})}, found)


def _forget_unless_same(workdir: Workdir, arm: str, found: Sequence[Outcome]) -> None:
    """Removes an arm that says something else: a header cannot tell how another version of rw learnt a router."""
    path = arm_path(workdir.path, arm)
    if path.is_file():
        with contextlib.suppress(DataError):
            if read_arm(path).outcomes == tuple(found):
                return
        path.unlink()


async def _ask_two_in_turn(arms: Arms, learning: Learning) -> None:
    """KNN-multi-round: the Worker that did best on like questions, then the next best, which reads the first reply."""
    parts, by_id = arms.parts, {query.id: query for query in arms.queries}
    ranked = learning.router("knn").ranked([question.text for question in learning.asked])
    workers = {
        query.id: [parts.worker_ids[row[min(turn, len(row) - 1)]] for turn in range(2)]
        for query, row in zip(arms.queries, ranked, strict=True)
    }
    script = copying_script(Mode.MULTI, lambda request: workers[request.episode.query_id], by_id.__getitem__)
    sampler = ScriptedSampler(parts.codec, script)

    async def rolled_out(label: str, scope: str, queries: Sequence[Query]) -> list[Group]:
        return await roll_out(parts, sampler, queries, label, scope)

    router = {"path": "", "what": "nearest neighbours, two rounds", "fingerprint": learning.digest}
    await arms.answer(f"{PREFIX}knn_multi", {**arms.about(None), **learning.about, "router": router}, rolled_out)


async def _ask_untrained_router(arms: Arms, names: Sequence[str]) -> None:
    """The router that training begins from, its mode free and each mode forced."""
    modes = {f"{PREFIX}{name}": PROMPTED[name] for name in names if name in PROMPTED}
    if not modes:
        return
    parts = arms.parts
    params = await initial_router(parts)
    weights, about = await published_router(arms, params, 0, "reference", "the router before any training")
    router = GreedyRouter(parts, len(arms.queries))
    try:
        await router_arms(arms, router, modes, weights, about)
    finally:
        await router.close()


class Learning:
    """Learned routers on the training questions that no test question repeats; each is fitted when it is asked for."""

    def __init__(self, train: ResponseMatrix, asked: Sequence[MatrixQuestion], embed: Embed, seed: int):
        self.train, self.asked = without_questions_of(train, asked), asked
        self._embedding, self._seed = embed(self.train.texts), seed
        self.digest = rows_digest(self.train)
        if left_out := len(train.questions) - len(self.train.questions):
            progress.say(f"{left_out} training questions are test questions too, and are not learnt from")

    @functools.cache  # noqa: B019, one object a command
    def router(self, name: str) -> LearnedRouter:
        """The router of that name."""
        return LearnedRouter(name, self.train, self._embedding, self._seed)

    @property
    def about(self) -> dict[str, Any]:
        """For the headers of its arms."""
        return trained_on(self.train, self._embedding.name)


def trained_on(train: ResponseMatrix, embedding: str) -> dict[str, Any]:
    """What learned routers know, for the headers of their arms."""
    return {"trained_on": {"questions": len(train.questions), "embedding": embedding, "matrix": rows_digest(train)}}


def recorded_baselines(workdir_path: str, names: Sequence[str], encoder: str = "", split_seed: int = 0) -> int:
    """The baselines on LLMRouter's recorded scores, a third of each task tested; returns the exit code."""
    check_workdir(workdir_path)
    embed = embedding_of(encoder)
    train, test = map(scores_matrix, llmrouter9.split(llmrouter9.load_llmrouter9(), split_seed))
    learning = Learning(train, test.questions, embed, split_seed)
    about = {
        "split": "test",
        "draw_seed": split_seed,
        "queries": len(test.questions),
        "source": OUTCOMES[0],
        "step": None,
        "greedy": True,
        "seed": split_seed,
        "modelled_cost": True,
        "matrix": rows_digest(test),
    }
    learned = learned_arms(names)
    with Workdir(workdir_path) as workdir:
        for arm, found in single_call_arms(names, test, split_seed, learning.router):
            result = ArmResult(arm, {**about, **(learning.about if arm in learned else {})}, found)
            write_arm(workdir.path, result)
            progress.say(progress.arm_line(result))
        progress.say(
            f"costs are modelled: the recorded prices, a token for {llmrouter9.CHARACTERS_A_TOKEN} characters of the "
            f"question and {llmrouter9.REPLY_TOKENS} tokens for every reply; they compare routers and are no bill"
        )
        print_results(write_results(workdir.path))
    return 0


def train_questions(config: RunConfig, count: int | None) -> list[Query]:
    """The questions that learned routers may know: of the training split, as many of each data set as can be.

    Raises:
        DataError: there are not as many.
    """
    if count is not None and count < 1:
        raise ConfigError(f"--train-queries {count} must be at least 1; --without leaves learned routers out")
    if config.data.source == "simulated":
        return simulated_queries.distinct(config.workers.world_seed, count or TRAIN_QUERIES, "train", config.seed)
    known = recorded_questions(config)[0] if config.data.source == "nq6" else file_questions(config.data).train
    if (count or 0) > len(known):
        raise DataError(f"--train-queries {count} is more than the {len(known)} training questions")
    return spread_over_sets(known, count or TRAIN_QUERIES)


def embedding_of(encoder: str) -> Embed:
    """What makes vectors of questions from the training ones; ConfigError where the encoder is not there."""
    if not encoder:
        return HashedNgrams
    loaded = SentenceEncoder(encoder, embedding_name(encoder))
    return lambda train: loaded


def embedding_name(encoder: str) -> str:
    """What the vectors of questions are called."""
    return f"encoder {encoder}" if encoder else HashedNgrams.name


if __name__ == "__main__":
    sys.exit(main())
