"""Every fault of a Worker in every mode, over HTTP: what becomes of the rollout, of the books, and of its neighbours.

Each step has, for each mode, a rollout whose Worker fails for good, one whose Worker fails once, and one that has the
same Workers and no fault. All of them run at once, so that what one of them breaks, another would notice.
"""

import asyncio
import collections
import contextlib
import dataclasses
import enum
import time

import pytest

from rw.errors import WorkerRefusedError
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.types import CallStatus, Mode, Status
from rw.workers.budget import Budget, BudgetConfig
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.faulty import REFUSALS, Fault
from rw.workers.http import HttpWorkerClient
from rw.workers.ledger import Ledger, booked_usd, read_ledger, spent_usd
from rw.workers.loopback import Completion, serve
from rw.workers.pricing import PriceTable
from rw.workers.retry import RetryPolicy

INPUT_TOKENS, OUTPUT_TOKENS, MAX_OUTPUT_TOKENS = 20, 5, 64
COST_USD = (INPUT_TOKENS * 10.0 + OUTPUT_TOKENS * 40.0) / 1e6
TEMPLATE_BYTES = 1024  # what a chat template may add to the content, as the client reckons
HASTE = 100.0  # seconds of the client's clock in one of ours; time-outs know no other than ours
LASTING, PASSING, HEALTHY = range(3)  # rollouts of every query
SIBLING_S = 0.4  # latency of a Worker before which something else must come; half of a time-out


class Port(enum.Enum):
    """Faults of the listening socket, which no single call can have."""

    CLOSED = "closed_port"
    STALLED = "stalled_port"


class Money(enum.Enum):
    """What a failed attempt may have cost."""

    NOTHING = "nothing"
    REPORTED = "reported"
    UNKNOWN = "unknown"  # its worst case


@dataclasses.dataclass(frozen=True)
class Row:
    """What a fault comes to: `cause` None where the reply is good all the same."""

    cause: str | None
    money: Money
    heals: bool = True  # with a retry, one of which is allowed here
    slow: bool = False  # ends by a time-out


NOTHING, REPORTED, UNKNOWN = Money.NOTHING, Money.REPORTED, Money.UNKNOWN
MATRIX = {
    Port.CLOSED: Row("connect", NOTHING),
    Port.STALLED: Row("timeout", UNKNOWN, slow=True),
    Fault.HANG: Row("timeout", UNKNOWN, slow=True),
    Fault.HANG_AFTER_HEADERS: Row("timeout", UNKNOWN, slow=True),
    Fault.HANG_IN_BODY: Row("timeout", UNKNOWN, slow=True),
    Fault.SLOW: Row("timeout", UNKNOWN, slow=True),
    Fault.RESET: Row("reset", UNKNOWN),
    Fault.RESET_IN_BODY: Row("reset", UNKNOWN),
    Fault.CUT_BODY: Row("reset", UNKNOWN),
    Fault.HTTP_429: Row("rate_limited", NOTHING),
    Fault.HTTP_429_RETRY_AFTER: Row("rate_limited", NOTHING),
    Fault.HTTP_429_RETRY_DATE: Row("rate_limited", NOTHING),
    Fault.HTTP_500: Row("server_error", NOTHING),
    Fault.HTTP_502_HTML: Row("server_error", NOTHING),
    Fault.HTTP_503_HTML: Row("server_error", NOTHING),
    Fault.HTTP_400: Row("client_error", NOTHING, heals=False),
    Fault.HTTP_404: Row("client_error", NOTHING, heals=False),
    Fault.HTML: Row("bad_response", UNKNOWN),
    Fault.TRUNCATED_JSON: Row("bad_response", UNKNOWN),
    Fault.WRONG_SCHEMA: Row("bad_response", UNKNOWN),
    Fault.NO_CHOICES: Row("bad_response", REPORTED),
    Fault.EMPTY_CHOICE: Row("empty_output", REPORTED),
    Fault.NO_USAGE: Row(None, UNKNOWN),
    Fault.NEGATIVE_USAGE: Row(None, UNKNOWN),
    Fault.ABSURD_USAGE: Row(None, UNKNOWN),
    Fault.DUPLICATE_CHUNKS: Row(None, REPORTED),
    Fault.CUT_STREAM: Row("bad_response", UNKNOWN),
    Fault.STREAM_ERROR: Row("server_error", NOTHING),
    Fault.HUGE_BODY: Row("bad_response", UNKNOWN),
    Fault.GZIP_BOMB: Row("bad_response", UNKNOWN),
}
STREAMED = MATRIX | {
    Fault.CUT_STREAM: Row("reset", UNKNOWN),
    Fault.STREAM_ERROR: Row("server_error", UNKNOWN),  # half of the answer had been written
}


def cases():
    """(fault, row, transport); those that end by a time-out are for the full tier, but for one."""
    for transport, matrix in (("never", MATRIX), ("always", STREAMED)):
        for fault, row in matrix.items():
            quick = not row.slow or (fault, transport) == (Fault.HANG_IN_BODY, "always")
            marks = () if quick else (pytest.mark.full,)
            name = "stream" if transport == "always" else "whole"
            yield pytest.param(fault, row, transport, id=f"{fault.value}-{name}", marks=marks)


def test_every_fault_is_in_the_matrix():
    assert set(MATRIX) | REFUSALS == {*Fault, *Port}


def turns_of(mode, victim):
    """A rollout whose `victim` is asked alone, last of three, or in the middle of a layer of three."""
    layer = ["worker_1", victim, "worker_3"]
    if mode is Mode.SINGLE:
        ask = [f'<route model="{victim}">Part.</route>']
    elif mode is Mode.MULTI:
        ask = [
            f'<route model="{worker}">Part {n}.</route>' for n, worker in enumerate(["worker_1", "worker_3", victim])
        ]
    else:
        routes = "".join(f'<route model="{w}" role="executor">Part {n}.</route>' for n, w in enumerate(layer))
        last = '<route model="worker_1" role="summarizer" refs="n1">Sum.</route>'
        ask = [routes + "<|im_end|>", last + "<|im_end|>"]
    return [f"<mode>{mode.word}</mode>", *ask, "<answer>4</answer>"]


VICTIM_CALL = {Mode.SINGLE: (1, 0), Mode.MULTI: (3, 0), Mode.AGENTIC: (1, 1)}  # its (turn, call)
CALLS = {Mode.SINGLE: 1, Mode.MULTI: 3, Mode.AGENTIC: 4}
ALL_VICTIMS = {(mode, rollout) for mode in Mode for rollout in (LASTING, PASSING)}


class WatchedLedger(Ledger):
    """Tells when the first call is booked of the layer that has a failing one."""

    def __init__(self, path):
        super().__init__(path)
        self.first_of_layer = asyncio.Event()

    def call(self, call, *fields, **named):
        super().call(call, *fields, **named)
        if (call.group, call.rollout, call.turn, call.call) == (Mode.AGENTIC, LASTING, 1, 0):
            self.first_of_layer.set()


class Stage:
    """Servers, client and pool of one step, with a fault in the rollouts that are to have it."""

    def __init__(self, fault, row, transport, ledger, victims=ALL_VICTIMS):
        self.fault, self.row, self.transport, self.ledger = fault, row, transport, ledger
        self.victims = victims  # (mode, rollout) of those with faults
        self.contents = {}  # of the latest request of each call, by call header
        self.budget = Budget(BudgetConfig(run_usd=1000.0))
        self.servers = {}

    def asked(self, mode, rollout):
        """The Worker whose call may fail. Ports cannot tell calls apart: those of two Workers are faulty throughout."""
        if isinstance(self.fault, Port) and (mode, rollout) in self.victims:
            return {LASTING: "worker_4", PASSING: "worker_5"}[rollout]
        return "worker_2"

    def handle(self, call):
        self.contents[call.call_header] = call.content
        return Completion("x is 4", INPUT_TOKENS, OUTPUT_TOKENS)

    def latency(self, call):
        """Beside the failing call of a layer one is answered before it fails; see `faults` and `wait_shortly`."""
        _, mode, rollout, turn, _ = map(int, call.call_header.split("/"))
        in_layer = (mode, rollout, turn) == (Mode.AGENTIC, LASTING, 1) and (mode, rollout) in self.victims
        slow = {"worker_2": not self.row.heals, "worker_3": self.row.slow}
        return SIBLING_S if in_layer and slow.get(call.model) else 0.0

    def faults(self, call, attempt):
        _, mode, rollout, turn, number = map(int, call.call_header.split("/"))
        if (mode, rollout) not in self.victims:
            return None
        if (mode, rollout, turn, call.model) == (Mode.AGENTIC, LASTING, 1, "worker_3") and self.row.cause:
            # The other call of the layer must not end before: where that one hangs, too, this one begins to later.
            return Fault.HTTP_429 if self.row.slow and attempt == 1 else Fault.HANG
        if call.model != "worker_2" or (turn, number) != VICTIM_CALL[mode] or isinstance(self.fault, Port):
            return None
        return self.fault if rollout == LASTING or attempt == 1 else None

    def worst_case_usd(self, mode, turn, call):
        """Of one attempt; the rollouts of a query ask the same."""
        input_bound = len(self.contents[header_of(mode, HEALTHY, turn, call)].encode()) + TEMPLATE_BYTES
        return (input_bound * 10.0 + MAX_OUTPUT_TOKENS * 40.0) / 1e6

    async def wait_shortly(self, seconds):
        """The client's waits, at a hundredth; before a retry a port is opened, and a layer's first call is answered."""
        await self.servers["worker_5"].accept_connections()
        if (Mode.AGENTIC, LASTING) in self.victims:
            await self.ledger.first_of_layer.wait()
        await asyncio.sleep(seconds / HASTE)

    @contextlib.asynccontextmanager
    async def workers(self):
        main = await serve(self.handle, latency=self.latency, faults=self.faults)
        self.servers = {f"worker_{k}": main for k in (1, 2, 3)}
        self.servers |= {f"worker_{k}": await serve(self.handle) for k in (4, 5)}
        for worker in ("worker_4", "worker_5"):
            if self.fault is Port.CLOSED:
                await self.servers[worker].refuse_connections()
            else:
                await self.servers[worker].stall_connections()
        endpoints = [
            WorkerEndpoint(
                id=worker,
                description="It answers.",
                base_url=server.base_url,
                model=worker,
                input_price=10.0,
                output_price=40.0,
                max_output_tokens=MAX_OUTPUT_TOKENS,
                send_call_header=True,
                stream=self.transport,
            )
            for worker, server in self.servers.items()
        ]
        config = ClientConfig(
            attempt_timeout_s=2 * SIBLING_S if self.row.slow else 20.0,
            first_byte_timeout_s=20.0,
            call_deadline_s=None,
            max_body_bytes=100_000,
            retry=RetryPolicy(1, 1, 1, 1, 1, 1, 1, backoff_s=0.5),
        )
        client = HttpWorkerClient(
            endpoints,
            PriceTable.from_endpoints(endpoints),
            self.ledger,
            config,
            budget=self.budget,
            clock=lambda: HASTE * time.monotonic(),
            sleep=self.wait_shortly,
        )
        try:
            yield client
            await client.close()
            async with asyncio.timeout(3):
                while any(server.open_connections for server in self.servers.values()):
                    await asyncio.sleep(0.005)
        finally:
            await client.close()
            for server in self.servers.values():
                await server.close()

    async def run(self, codec, protocol, world):
        """The rollouts of a step, by mode; whatever ends it, nothing is left running or held."""

        def script(request, view):
            mode = Mode(int(request.episode.query_id.removeprefix("q")))
            return turns_of(mode, self.asked(mode, request.episode.rollout))[request.turn]

        before = asyncio.all_tasks()
        async with self.workers() as client:
            pool = EpisodePool(
                protocol, world.RecordingSampler(codec, script), client, PoolConfig(rollouts_per_query=3)
            )
            try:
                # One query for each mode, in the order of their codes: a call header names the mode by its group.
                groups = await world.collect(pool, [world.query(int(mode)) for mode in Mode])
            finally:
                assert set(client.in_flight.values()) == {0} and self.budget.reserved_usd == 0
        for _ in range(100):  # servers' tasks end with their connections
            if asyncio.all_tasks() == before:
                break
            await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == before
        return {Mode(group.index): group.rollouts for group in groups}

    def books(self):
        """(attempts, calls) of the ledger, by call header and Worker."""
        records, torn = read_ledger(self.ledger.path)
        assert torn == 0
        assert self.budget.spent_usd == pytest.approx(spent_usd(records))
        lines = {"attempt": collections.defaultdict(list), "call": collections.defaultdict(list)}
        for record in records:
            header = "/".join(str(record[name]) for name in ("step", "group", "rollout", "turn", "call"))
            if record["kind"] in lines:
                lines[record["kind"]][header].append(record)
        assert all(len(calls) == 1 for calls in lines["call"].values())  # each logical call is booked once
        return lines["attempt"], {header: calls[0] for header, calls in lines["call"].items()}


def header_of(mode, rollout, turn=None, call=None):
    turn, call = VICTIM_CALL[mode] if turn is None else (turn, call)
    return f"1/{int(mode)}/{rollout}/{turn}/{call}"


def spending(attempts):
    """(reported, unknown) in USD of each attempt that is in the books."""
    return [(attempt["cost_usd"], attempt["unknown_usd"]) for attempt in attempts]


def failed_attempts(stage, mode, count):
    """What the books must hold of so many failed attempts of the call that may fail."""
    if stage.row.money is NOTHING:
        return []
    if stage.row.money is REPORTED:
        return [(pytest.approx(COST_USD), 0.0)] * count
    return [(None, pytest.approx(stage.worst_case_usd(mode, *VICTIM_CALL[mode])))] * count


def check_failed(stage, mode, rollout, scored, attempts, calls):
    """The rollout whose Worker fails for good."""
    row, header = stage.row, header_of(mode, rollout)
    made = 2 if row.heals else 1
    trajectory = scored.trajectory
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, row.cause)
    assert trajectory.mode is mode and trajectory.answer is None and scored.verdict is None
    (call,) = [call for call in trajectory.calls if call.status is CallStatus.FAILED]
    assert (call.worker_id, call.failure, call.attempts) == (stage.asked(mode, rollout), row.cause, made)
    assert spending(attempts[header]) == failed_attempts(stage, mode, made)
    assert not any(attempt["accepted"] for attempt in attempts[header])
    booked = calls[header]
    assert (booked["status"], booked["failure"], booked["attempts"]) == ("failed", row.cause, made)
    assert booked["cost_usd"] is None and not booked["accepted"]
    if mode is not Mode.AGENTIC:
        before = [call.worker_id for call in trajectory.calls if call.status is CallStatus.OK]
        assert before == ([] if mode is Mode.SINGLE else ["worker_1", "worker_3"])
    elif rollout == LASTING:  # where the siblings are slow
        check_siblings(stage, trajectory, attempts, calls)


def check_siblings(stage, trajectory, attempts, calls):
    """Of the failed call's layer: one was answered before, one is stopped, and both were paid."""
    assert [call.status for call in trajectory.calls] == [CallStatus.OK, CallStatus.FAILED, CallStatus.CANCELLED]
    answered, stopped = (header_of(Mode.AGENTIC, LASTING, 1, call) for call in (0, 2))
    assert spending(attempts[answered]) == [(pytest.approx(COST_USD), 0.0)]
    assert (calls[answered]["status"], calls[answered]["cost_usd"]) == ("ok", pytest.approx(COST_USD))
    worst = pytest.approx(stage.worst_case_usd(Mode.AGENTIC, 1, 2))
    assert spending(attempts[stopped]) in ([(None, worst)], [(None, worst)] * 2)  # two where one had timed out
    assert (calls[stopped]["status"], calls[stopped]["cost_usd"]) == ("cancelled", None)


def check_answered(stage, mode, rollout, scored, attempts, calls):
    """A rollout that got its answer: at once, after a retry, or in spite of a fault that does no harm to it."""
    row, header = stage.row, header_of(mode, rollout)
    hit = (mode, rollout) in stage.victims
    trajectory = scored.trajectory
    assert (trajectory.status, trajectory.mode, scored.correct) == (Status.ANSWERED, mode, True)
    assert [call.status for call in trajectory.calls] == [CallStatus.OK] * CALLS[mode]
    victim = next(call for call in trajectory.calls if call.worker_id == stage.asked(mode, rollout))
    assert victim.output == "x is 4" and victim.attempts == (2 if hit and row.cause else 1)
    unmeasured = hit and row.cause is None and row.money is UNKNOWN
    cost_usd = None if unmeasured else pytest.approx(COST_USD)
    retried = failed_attempts(stage, mode, 1) if hit and row.cause else []
    accepted = (None, pytest.approx(stage.worst_case_usd(mode, *VICTIM_CALL[mode]))) if unmeasured else (cost_usd, 0.0)
    assert spending(attempts[header]) == [*retried, accepted]
    assert [attempt["accepted"] for attempt in attempts[header]] == [False] * len(retried) + [True]
    assert (calls[header]["status"], calls[header]["cost_usd"], victim.cost_usd) == ("ok", cost_usd, cost_usd)
    assert victim.retry_cost_usd == pytest.approx(COST_USD if retried and row.money is REPORTED else 0.0)
    assert trajectory.cost_usd == (None if unmeasured else pytest.approx(COST_USD * CALLS[mode]))


async def check_step(stage, codec, protocol, world):
    """Runs the step and checks every rollout."""
    row, groups = stage.row, await stage.run(codec, protocol, world)
    attempts, calls = stage.books()
    for mode in Mode:
        for rollout, scored in enumerate(groups[mode]):
            fails = (mode, rollout) in stage.victims and row.cause and (rollout == LASTING or not row.heals)
            check = check_failed if fails else check_answered
            check(stage, mode, rollout, scored, attempts, calls)
    trajectories = [scored.trajectory for rollouts in groups.values() for scored in rollouts]
    accepted = [call.cost_usd or 0.0 for t in trajectories for call in t.calls if call.status is CallStatus.OK]
    assert booked_usd(read_ledger(stage.ledger.path)[0]) == pytest.approx(sum(accepted))
    stage.ledger.close()


@pytest.mark.parametrize(("fault", "row", "transport"), cases())
async def test_fault_in_each_mode(fault, row, transport, codec, protocol, world, tmp_path):
    # A port that opens again at the first wait must be that of whoever waits.
    steps = [{victim} for victim in sorted(ALL_VICTIMS)] if isinstance(fault, Port) else [ALL_VICTIMS]
    for number, victims in enumerate(steps):
        ledger = WatchedLedger(tmp_path / f"ledger_{number}.jsonl")
        await check_step(Stage(fault, row, transport, ledger, victims), codec, protocol, world)


@pytest.mark.parametrize("transport", ["never", "always"])
@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.word)
@pytest.mark.parametrize("fault", sorted(REFUSALS, key=lambda fault: fault.value), ids=lambda fault: fault.value)
async def test_refusal_in_each_mode_stops_the_step_and_leaves_nothing(
    fault, mode, transport, codec, protocol, world, tmp_path
):
    row = Row("client_error", NOTHING, heals=False)
    stage = Stage(fault, row, transport, WatchedLedger(tmp_path / "ledger.jsonl"), {(mode, LASTING), (mode, PASSING)})
    with pytest.raises(WorkerRefusedError, match="worker_2.*injected fault"):
        await stage.run(codec, protocol, world)
    attempts, calls = stage.books()
    refused = [call for call in calls.values() if call["status"] == "failed"]
    assert refused and {(call["worker"], call["failure"], call["attempts"]) for call in refused} == {
        ("worker_2", "client_error", 1)
    }
    assert {(call["mode"], call["rollout"] == HEALTHY) for call in refused} == {(mode.word, False)}
    assert not any(attempts[header_of(mode, call["rollout"])] for call in refused)  # refusals cost nothing
    stage.ledger.close()
