"""`--dry-run`: prints what a run may cost before its first call, and what its caps make of that.

Reads the config, its queries and tokenizer, and the workdir's ledger where there is one. Calls no Worker, needs no key,
takes no lock and writes nothing.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from rw.core.schedule import forced_ratio
from rw.estimate import ASSUMPTIONS, MEASURED_FROM, Estimate, Lengths, Phase, Range, WorkerTerms, estimate
from rw.evaluation.arms import scripted_routers
from rw.evaluation.spending_tables import Books
from rw.evaluation.table import Table, print_one, terminal
from rw.learner.placement import Placement
from rw.memory import DeviceMemory, abstract_mesh, device_memory, evaluation_memory, memory_table
from rw.model.qwen3 import shapes_of
from rw.parts import check_vocabulary, load_codec
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.questions import check_asked, generalisation_queries, held_out_queries, query_batches
from rw.run_config import RunConfig
from rw.sharding import check_tensor
from rw.types import Mode, Query, Role, WorkerCard
from rw.workdir import LEDGER, own_files
from rw.worker_pool import worker_endpoints
from rw.workers.ledger import read_ledger
from rw.workers.pricing import PriceTable
from rw.workers.request import worst_case_usd
from rw.workers.spending import Record, identity, phase, summarise

BATCHES = 4  # of the training questions, whose tokens are counted
ESTIMATES = ("low", "typical", "worst")
HEADS = ("calls low", *ESTIMATES[1:], "USD low", *ESTIMATES[1:])


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the workdir's ledger says of an earlier part of this run."""

    usd_by_worker: Mapping[str, tuple[float, int]] = dataclasses.field(default_factory=dict)  # (mean of a call, calls)
    calls_by_mode: Mapping[Mode, float] = dataclasses.field(default_factory=dict)  # mean of a rollout
    spent_usd: float = 0.0
    unknown_usd: float = 0.0


def dry_run_training(config: RunConfig, workdir_path: str) -> int:
    """Estimates a whole run; returns 0, or 2 where a cap cannot be enough."""
    return _dry_run(config, workdir_path, _training_phases(config, workdir_path))


def dry_run_warm_start(config: RunConfig, workdir_path: str) -> int:
    """Estimates a warm start; returns 0, or 2 where a cap cannot be enough."""
    there = warm_start_is_there(config, workdir_path)
    return _dry_run(config, workdir_path, [] if there else [warm_start_phase(config)])


def dry_run_calibration(config: RunConfig, workdir_path: str, queries: int) -> int:
    """Estimates a calibration, all of whose modes are forced; returns 0, or 2 where a cap cannot be enough."""
    phase = Phase("calibration", queries * config.rollouts_per_query, 0, mode=config.schedule.mode)
    return _dry_run(config, workdir_path, [phase], memory_of=evaluation_memory)


def dry_run_evaluation(config: RunConfig, workdir_path: str, free: int, forced: Sequence[Mode]) -> int:
    """Estimates an evaluation; returns 0, or 2 where a cap cannot be enough.

    Args:
        free: arms in which the router chooses its mode.
        forced: the modes of the others, one an arm.
    """
    queries = [*held_out_queries(config)[1], *generalisation_queries(config)]
    check_asked(config, queries)
    only, count = config.schedule.mode, free * len(queries)
    chosen = Phase("evaluation", 0, count) if only is None else Phase("evaluation", count, 0, mode=only)
    phases = [Phase(f"mode {mode.word} forced", len(queries), 0, mode=mode) for mode in forced]
    return _dry_run(config, workdir_path, [chosen, *phases], queries, evaluation_memory)


def _of_worker(measured: Measured, worker_id: str) -> tuple[float | None, int]:
    return measured.usd_by_worker.get(worker_id, (None, 0))


@dataclasses.dataclass(frozen=True)
class _Basis:
    """An estimate and what it rests on."""

    found: Estimate
    terms: Sequence[WorkerTerms]
    lengths: Lengths
    measured: Measured
    shortfalls: Sequence[str]  # caps that cannot be enough
    remarks: Sequence[str]


def training_estimate(config: RunConfig, workdir_path: str) -> tuple[Estimate, Sequence[str]]:
    """(calls and USD of a whole run, sentences on caps that cannot be enough); prints nothing."""
    basis = _basis(config, workdir_path, _training_phases(config, workdir_path))
    return basis.found, basis.shortfalls


def _training_phases(config: RunConfig, workdir_path: str) -> list[Phase]:
    warm = [] if warm_start_is_there(config, workdir_path) else [warm_start_phase(config)]
    return [*warm, *run_phases(config)]


def _basis(
    config: RunConfig, workdir_path: str, phases: Sequence[Phase], queries: Sequence[Query] | None = None
) -> _Basis:
    check_tensor(config.mesh.tensor, config.model.n_kv_heads)
    Placement(abstract_mesh(config.mesh), shapes_of(config.model), config.batch)  # refuses what a run would
    endpoints = worker_endpoints(config)
    prices = PriceTable.from_endpoints(endpoints)
    measured = read_measured(workdir_path, config.warmstart.policy == "drills")
    lengths, content = count_tokens(config, queries)
    terms = [
        WorkerTerms(worker.id, prices[worker.id], worker.max_output_tokens, *_of_worker(measured, worker.id))
        for worker in endpoints
    ]
    shows_previous = config.protocol.multi_previous == "reply"
    found = estimate(phases, terms, lengths, shows_previous, measured.calls_by_mode)
    reserved = {worker.id: worst_case_usd(prices, worker, content) for worker in endpoints}
    return _Basis(found, terms, lengths, measured, *judge_caps(config, found, reserved))


def _dry_run(
    config: RunConfig,
    workdir_path: str,
    phases: Sequence[Phase],
    queries: Sequence[Query] | None = None,
    memory_of: Callable[[RunConfig], DeviceMemory] = device_memory,
) -> int:
    """Prints the estimate; `queries` and `memory_of` are by default those of a training run."""
    basis = _basis(config, workdir_path, phases, queries)
    console = terminal()
    memory = memory_table(config, memory_of(config))
    tables = (*phase_tables(basis.found), mode_table(basis.found), worker_table(basis.found, basis.terms), memory)
    for table in tables:
        print_one(table, console)
    said = notes(config, basis.lengths, basis.measured, basis.terms)
    for sentence in (*said, *basis.remarks, *basis.shortfalls):
        console.print(sentence, markup=False, soft_wrap=True)
    console.print("Nothing was sent and nothing was spent.", markup=False, soft_wrap=True)
    return 2 if basis.shortfalls else 0


def warm_start_is_there(config: RunConfig, workdir_path: str) -> bool:
    """Whether the run begins from parameters that exist, so that no demonstration is collected."""
    workdir = pathlib.Path(workdir_path)
    kept = (workdir / "reference", pathlib.Path(config.init.path or workdir / "warmstart"))
    return config.init.source != "warmstart" or any(path.exists() for path in kept)


def warm_start_phase(config: RunConfig) -> Phase:
    """The demonstrations; drills are answered by Workers of our own."""
    rollouts = config.warmstart.steps * config.warmstart.queries_per_batch
    forced = rollouts * config.warmstart.forced_share
    is_free = config.warmstart.policy == "drills"
    return Phase("warm start (unpaid)" if is_free else "warm start", forced, rollouts - forced, is_free)


def run_phases(config: RunConfig) -> list[Phase]:
    """Training, validations and the final evaluation."""
    schedule, evaluation = config.schedule, config.evaluation
    assigned = sum(forced_ratio(b, *schedule.bounds) for b in range(config.steps)) / config.steps
    rollouts = config.steps * config.queries_per_batch * config.rollouts_per_query
    validation, test = (len(queries) for queries in held_out_queries(config))
    validated = {*range(0, config.steps, evaluation.every), config.steps} if evaluation.validates else ()
    arms, only = evaluation.arms, schedule.mode
    routers = sum(arm in arms for arm in ("trained", "warm_start"))
    scripted = len(scripted_routers(arms)) if config.workers.kind == "simulated" else 0  # elsewhere without a call
    each_mode = test * len(Mode) if "forced" in arms else 0
    if only is not None:
        return [
            Phase("training", rollouts, 0, mode=only),
            Phase("validation", len(validated) * validation, 0, mode=only),
            Phase("final evaluation", test * routers, test * scripted, mode=only),
            Phase("final, modes forced", each_mode, 0),
        ]
    return [
        Phase("training", rollouts * assigned, rollouts * (1 - assigned)),
        Phase("validation", 0, len(validated) * validation),
        Phase("final evaluation", each_mode, test * (routers + scripted)),
    ]


def run_queries(config: RunConfig) -> list[Query]:
    """The questions of a training run's first batches and those held out."""
    batches, size = query_batches(config), config.queries_per_batch
    queries = [query for b in range(min(BATCHES, config.steps)) for query in batches(b, size)]
    return queries + [query for held_out in held_out_queries(config) for query in held_out]


def count_tokens(config: RunConfig, queries: Sequence[Query] | None = None) -> tuple[Lengths, str]:
    """Lengths of the questions, by default `run_queries`, and a Worker's message with the longest.

    Raises:
        DataError: the prompt of one of them is over the limit, so that the run would not begin.
    """
    codec, prompts = load_codec(config.tokenizer.path), Prompts.load(config.protocol.templates)
    check_vocabulary(config, codec)
    queries = run_queries(config) if queries is None else queries
    card = WorkerCard("worker_1", "Any.")  # the first prompt names no Worker
    protocol = RouterProtocol(codec, prompts, (card,), config.protocol)
    for query in queries:
        protocol.check_fits(query)
    lengths = [len(codec.encode_text(query.prompt)) for query in queries]
    roles: Mapping[Mode, Iterable[Role | None]] = {Mode.SINGLE: [None], Mode.MULTI: [None], Mode.AGENTIC: Role}
    frame = {
        mode: float(np.mean([len(codec.encode_text(prompts.worker_message("", "", role))) for role in roles[mode]]))
        for mode in Mode
    }
    longest = queries[int(np.argmax(lengths))].prompt
    found = Lengths(float(np.mean(lengths)), float(max(lengths)), frame, float(config.protocol.response_budget))
    return found, prompts.worker_message(longest, "")


def read_measured(workdir_path: str | os.PathLike[str], drills: bool) -> Measured:
    """Mean cost of an answered call by Worker, with all that its attempts cost; nothing where there is no ledger."""
    records = [record for file in own_files(workdir_path, LEDGER) for record in read_ledger(file)[0]]
    total = Books.of("", records).total
    asked = [record for record in records if not (drills and phase(record) == "warm start")]
    by_worker = summarise(asked, lambda record: record["worker"])
    means = {
        worker: (found.spent_usd / found.calls, found.calls)
        for worker, found in by_worker.items()
        if found.calls >= MEASURED_FROM
    }
    return Measured(means, calls_by_mode(asked), total.spent_usd, total.unknown_usd)


def calls_by_mode(records: Iterable[Record]) -> dict[Mode, float]:
    """Mean answered calls of the rollouts that made any, for modes of which enough rollouts are known."""
    rollouts: dict[str, dict[tuple, set[tuple]]] = {}
    for record in records:
        if record["kind"] == "call" and record["accepted"] and record.get("mode"):
            *rollout, turn, call = identity(record)
            rollouts.setdefault(record["mode"], {}).setdefault(tuple(rollout), set()).add((turn, call))
    by_mode = {mode: [len(calls) for calls in rollouts.get(mode.word, {}).values()] for mode in Mode}
    return {mode: sum(counts) / len(counts) for mode, counts in by_mode.items() if len(counts) >= MEASURED_FROM}


def judge_caps(config: RunConfig, found: Estimate, reserved: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """(caps that cannot be enough, remarks on those that may not be).

    Args:
        reserved: by Worker, what has to be free under every cap before its shortest call is sent.
    """
    budget, shortfalls, remarks = config.budget, [], []
    caps = [("budget.run_usd", budget.run_usd, found.usd)]
    training = next((usd for phase, _, usd in found.phases if phase.name == "training"), None)
    if training is not None:
        caps.append(("budget.step_usd", budget.step_usd, training * (1 / config.steps)))
    for key, cap_usd, usd in caps:
        if cap_usd is None:
            continue
        said = f"{key}={cap_usd:g} USD, estimated {' / '.join(amount(getattr(usd, name)) for name in ESTIMATES)}"
        if cap_usd < usd.low:
            shortfalls.append(f"{said}: not enough for the low estimate; raise {key}.")
        else:
            name = next((name for name in ESTIMATES if cap_usd < getattr(usd, name)), None)
            remarks.append(f"{said}: {'enough for the worst.' if name is None else f'below the {name} estimate.'}")
    shortfalls += [
        f"{key}={cap_usd:g} USD: no call to {', '.join(too_dear)} could be sent, since one may cost up to "
        f"{amount(most)}; raise {key}, or lower max_output_tokens."
        for key, cap_usd, too_dear, most in _too_low_for_one_call(config, reserved)
    ]
    return shortfalls, remarks


def _too_low_for_one_call(
    config: RunConfig, reserved: Mapping[str, float]
) -> list[tuple[str, float, list[str], float]]:
    """(key, cap, Workers that it keeps from being asked even once, the most that a call to one of them may cost)."""
    budget = config.budget
    found: dict[tuple[str, float], dict[str, float]] = {}
    for worker_id, usd in reserved.items():
        own = budget.of_worker(worker_id)
        for key, cap_usd in (("budget.run_usd", budget.run_usd), ("budget.step_usd", budget.step_usd), own):
            if cap_usd is not None and cap_usd < usd:
                found.setdefault((key, cap_usd), {})[worker_id] = usd
    return [(*cap, list(workers), max(workers.values())) for cap, workers in found.items()]


def phase_tables(found: Estimate) -> tuple[Table, Table]:
    """Calls of every phase and of the run, then their USD: one table would be wider than a terminal of 80 columns."""
    calls = [(part.name, f"{part.rollouts:,.0f}", *_cells(calls, "{:,.0f}")) for part, calls, _ in found.phases]
    rollouts = f"{sum(part.rollouts for part, _, _ in found.phases):,.0f}"
    calls.append(("all", rollouts, *_cells(found.calls, "{:,.0f}")))
    usd = [(part.name, *_cells(usd)) for part, _, usd in found.phases]
    usd.append(("all", *_cells(found.usd)))
    return (
        Table("Calls of the whole run", ("phase", "rollouts", *ESTIMATES), tuple(calls)),
        Table("USD of the whole run", ("phase", *ESTIMATES), tuple(usd)),
    )


def mode_table(found: Estimate) -> Table:
    """Calls and USD of one rollout by mode."""
    rows = [(mode.word, *_cells(found.rollout_calls[mode], "{:g}"), *_cells(found.rollout_usd[mode])) for mode in Mode]
    columns = ("mode", *HEADS)
    return Table("One rollout", columns, tuple(rows))


def worker_table(found: Estimate, terms: Sequence[WorkerTerms]) -> Table:
    """USD of one call by Worker, and where the typical one comes from."""
    rows = [
        (
            worker.id,
            f"{worker.price.input:g}",
            f"{worker.price.output:g}",
            *_cells(found.call_usd[worker.id]),
            f"{worker.measured_calls} calls" if worker.measured_usd is not None else "assumed",
        )
        for worker in terms
    ]
    columns = ("Worker", "USD/M in", "USD/M out", *HEADS[3:], "typical from")
    return Table("One call", columns, tuple(rows))


def notes(config: RunConfig, lengths: Lengths, measured: Measured, terms: Sequence[WorkerTerms]) -> list[str]:
    """What the figures rest on."""
    lines = ["Low, typical and worst assume:", *(f"  - {assumption}" for assumption in ASSUMPTIONS)]
    lines.append(
        f"Questions: {lengths.question_mean:.0f} tokens on average and {lengths.question_longest:.0f} at most, by the "
        "router's tokenizer: of an evaluation all, of a training run the first batches and those held out."
    )
    known = sum(worker.measured_usd is not None for worker in terms)
    if measured.spent_usd or known:
        modes = ", ".join(mode.word for mode in measured.calls_by_mode) or "none"
        lines.append(
            f"This workdir's ledger holds {amount(measured.spent_usd)} USD of spending ({amount(measured.unknown_usd)} "
            f"unknown). Typical figures are as measured there, retries included, for the calls to {known} of "
            f"{len(terms)} Workers and for the number of calls in modes: {modes}."
        )
    if config.workers.kind != "http":
        lines.append("These Workers are served on loopback: the amounts are nominal and nobody is paid.")
    if config.workers.cassette_mode == "replay":
        lines.append("Calls are answered from the cassette: only those that it lacks are paid, with --allow-live.")
    return lines


def amount(usd: float) -> str:
    """USD with three digits."""
    return f"{usd:,.0f}" if usd >= 1000 else f"{usd:.3g}"


def _cells(found: Range, form: str | None = None) -> tuple[str, ...]:
    values = [getattr(found, name) for name in ESTIMATES]
    return tuple(amount(value) if form is None else form.format(value) for value in values)
