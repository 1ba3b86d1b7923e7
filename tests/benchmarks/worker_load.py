"""Load: a thousand episodes at once against Workers that are slow, faulty and rate-limited, in scaled time.

    python tests/benchmarks/worker_load.py --knows-limit     # pace requests by the Workers' requests_per_minute
    python tests/benchmarks/worker_load.py                   # feel for the limit instead

Real episodes, pool and client; scripted routers; Workers in a process of their own, with latencies of median 3 s, p95
12 s and 1 % at 60 s, and 5 % of the attempts failing in any way that a retry can heal. All of it is `--scale` times as
long as in life. Prints what share of the Workers' rate limit is used, how late the event loop is, how memory grows, and
which modes lose rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import cProfile
import dataclasses
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.rollout.group import group_tasks
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.rollout.stream import stream_groups
from rw.rollout.tasks import cancel_all
from rw.sampler.scripted import ScriptedSampler
from rw.types import Mode, Query, Status, Verdict, WorkerCall, WorkerCard
from rw.workers import faulty
from rw.workers.admission import AdmissionLimit
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.disturbances import mixed_faults, tailed_latency
from rw.workers.faulty import PASSING, Fault
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.ledger import Ledger, read_ledger
from rw.workers.loopback import Completion, serve
from rw.workers.pricing import PriceTable
from rw.workers.retry import RetryPolicy

TOKENIZER = pathlib.Path(__file__).parents[2] / "rw" / "data" / "files" / "qwen3_tokenizer.json.xz"
WORKERS = tuple(f"worker_{k}" for k in range(1, 7))
GROUP = 8  # rollouts of a query
REPLY = "First 3x = 12, since 14 - 2 = 12. Then x = 4, since 12 / 3 = 4. So I say that x is 4. " * 8
CHECKED_CALLS = 10_000
LAG_EVERY_S = 0.02
FAULTS = tuple(fault for fault in PASSING if fault is not Fault.HTTP_429_RETRY_DATE)  # dates cannot be scaled
MEAN_LATENCY_S = 4.9


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--episodes", type=int, default=1024, help="at once, and in a step")
    flags.add_argument("--calls", type=int, default=CHECKED_CALLS, help="steps are run until so many calls have ended")
    flags.add_argument("--scale", type=float, default=0.1, help="seconds of ours for one of theirs")
    flags.add_argument("--limit", type=float, default=100.0, help="requests a minute of each Worker, in life")
    flags.add_argument("--burst", type=int, default=5, help="requests that a Worker lets in at once")
    flags.add_argument("--faults", type=float, default=0.05, help="share of the attempts that fail")
    flags.add_argument("--knows-limit", action="store_true", help="the client is told the limit")
    flags.add_argument("--stream", default="auto", choices=["auto", "always", "never"])
    flags.add_argument("--profile", type=pathlib.Path, help="write a cProfile of the client's process here")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return flags.parse_args(arguments)


async def serve_workers(options: argparse.Namespace) -> None:
    """The Workers' process: prints its URL, answers each line of its input with its counts, and ends with its input."""
    faulty.RETRY_AFTER_S = options.scale
    limit = AdmissionLimit(options.limit / options.scale, options.burst)
    server = await serve(
        lambda call: Completion(REPLY, 400, 240),
        latency=tailed_latency(seed=options.seed, scale=options.scale),
        faults=mixed_faults(options.faults, options.seed, FAULTS),
        limit=limit,
    )
    print(server.base_url, flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        counts = {"admitted": sum(limit.admitted.values()), "rejected": sum(limit.rejected.values())}
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        own = {"open": server.open_connections, "peak_mib": peak_kib / 1024, "cpu_s": time.process_time()}
        print(json.dumps(counts | own), flush=True)
    await server.close()


class WorkersProcess:
    """The process of `serve_workers`, seen from here."""

    def __init__(self, arguments: list[str]):
        command = [sys.executable, __file__, "--serve", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.base_url = self._process.stdout.readline().strip()

    def _ask(self) -> dict[str, float]:
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    async def counts(self) -> dict[str, float]:
        return await asyncio.to_thread(self._ask)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)


@dataclasses.dataclass
class Sample:
    """One look at both processes."""

    at_s: float
    admitted: int
    rejected: int
    calls: int
    fewest_calls: int  # under way to the Worker that has fewest
    rss_mib: float


class CountedCalls:
    """A client that counts the logical calls that are under way, by Worker."""

    def __init__(self, inner: HttpWorkerClient):
        self._inner = inner
        self.open: collections.Counter[str] = collections.Counter()

    async def call(self, request: WorkerRequest) -> WorkerCall:
        self.open[request.worker_id] += 1
        try:
            return await self._inner.call(request)
        finally:
            self.open[request.worker_id] -= 1

    async def close(self) -> None:
        await self._inner.close()


class Watch:
    """Looks at loop and memory while the steps run."""

    def __init__(self, workers: WorkersProcess, client: CountedCalls, counts: collections.Counter):
        self._workers, self._client, self._counts = workers, client, counts
        self.lags_s: list[float] = []
        self.samples: list[Sample] = []

    async def feel_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.lags_s.append(loop.time() - due_s)

    async def look(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(0.25)

    async def sample(self) -> None:
        seen = await self._workers.counts()
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        fewest = min(self._client.open[worker] for worker in WORKERS)
        rss_mib = pages * resource.getpagesize() / 2**20
        self.samples.append(
            Sample(time.monotonic(), seen["admitted"], seen["rejected"], self._counts["calls"], fewest, rss_mib)
        )

    def saturated(self, calls: float) -> tuple[float, float]:
        """(requests let in a second, share rejected) over the time in which every Worker had so many calls to do."""
        admitted = rejected = seconds = 0.0
        for before, after in zip(self.samples, self.samples[1:], strict=False):
            if min(before.fewest_calls, after.fewest_calls) >= calls:
                seconds += after.at_s - before.at_s
                admitted += after.admitted - before.admitted
                rejected += after.rejected - before.rejected
        return admitted / seconds if seconds else 0.0, rejected / max(admitted + rejected, 1.0)


def script(request, view) -> str:
    """A router of a mode by rollout, which asks Workers by lot."""
    mode = Mode(request.episode.rollout % 3)
    lot = zlib.crc32(f"{request.episode.query_id}/{request.episode.rollout}".encode())

    def route(place: int, attributes: str = "") -> str:
        worker = WORKERS[(lot // 7**place) % len(WORKERS)]
        return f'<route model="{worker}"{attributes}>Solve part {place}.</route>'

    if mode is Mode.SINGLE:
        asks = [route(0)]
    elif mode is Mode.MULTI:
        asks = [route(place) for place in range(3)]
    else:
        layer = "".join(route(place, ' role="executor"') for place in range(4))
        asks = [layer + "<|im_end|>", route(4, ' role="summarizer" refs="n1,n2,n3,n4"') + "<|im_end|>"]
    return [f"<mode>{mode.word}</mode>", *asks, "<answer>4</answer>"][request.turn]


async def score(query: Query, answer: str) -> Verdict:
    return Verdict(correct=answer == query.reference)


def make_client(options: argparse.Namespace, base_url: str, ledger: Ledger) -> HttpWorkerClient:
    """The client with deadlines and waits in scaled time."""
    endpoints = [
        WorkerEndpoint(
            id=worker,
            description="It answers.",
            base_url=base_url,
            model=worker,
            input_price=1.0,
            output_price=4.0,
            max_concurrent=256,
            send_call_header=True,
            stream=options.stream,
            requests_per_minute=options.limit / options.scale if options.knows_limit else None,
        )
        for worker in WORKERS
    ]
    usual = ClientConfig()
    config = dataclasses.replace(
        usual,
        **{
            name: getattr(usual, name) * options.scale
            for name in ("first_byte_timeout_s", "attempt_timeout_s", "call_deadline_s")
        },
        adaptive_concurrency=not options.knows_limit,
        retry=RetryPolicy(backoff_s=options.scale, backoff_cap_s=60 * options.scale),
    )
    return HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), ledger, config)


async def run_steps(options: argparse.Namespace, client: CountedCalls, counts: collections.Counter) -> None:
    """Steps of `episodes` rollouts, until there were enough calls; counts calls, and rollouts by mode and cause."""
    codec = TokenCodec.from_file(TOKENIZER)
    cards = tuple(WorkerCard(worker, "It answers.") for worker in WORKERS)
    config = ProtocolConfig()
    protocol = RouterProtocol(codec, Prompts.load(config.templates), cards, config)
    pool = EpisodePool(
        protocol,
        ScriptedSampler(codec, script),
        client,
        PoolConfig(rollouts_per_query=GROUP, concurrency=options.episodes, deadline_s=1800.0 * options.scale),
    )
    step = 0
    while counts["calls"] < options.calls:
        queries = [
            Query(f"q{step}-{n}", "simulated", "math", f"Question {n} of {step}: solve 3x+2=14.", "4")
            for n in range(options.episodes // GROUP)
        ]

        def note(scored) -> None:
            trajectory = scored.trajectory
            counts["calls"] += len(trajectory.calls)
            counts["attempts"] += sum(call.attempts for call in trajectory.calls)
            counts[trajectory.mode, "rollouts"] += 1
            if trajectory.status is Status.INFRASTRUCTURE_FAILURE:
                counts[trajectory.mode, trajectory.cause] += 1
                counts[trajectory.mode, "lost"] += 1

        began_s = time.monotonic()
        groups = stream_groups(group_tasks(queries), pool, score, step=step, policy_version=0, on_rollout=note)
        async with contextlib.aclosing(groups):
            finished = [group.index async for group in groups]
        assert len(finished) == len(queries)
        print(f"step {step}: {time.monotonic() - began_s:.1f} s, {counts['calls']} calls so far", flush=True)
        step += 1


def report(options: argparse.Namespace, watch: Watch, counts: collections.Counter, spent_s: float, cpu_s: float):
    """Prints what was seen."""
    limit = len(WORKERS) * options.limit / options.scale / 60
    enough = 4 * MEAN_LATENCY_S * options.limit / 60  # four times what its limit lets be in flight
    (rate, rejected), last = watch.saturated(enough), watch.samples[-1]
    overall, all_rejected = last.admitted / spent_s, last.rejected / max(1, last.rejected + last.admitted)
    print(f"{counts['calls']} calls, {counts['attempts']} attempts in {spent_s:.1f} s, {cpu_s:.1f} s of CPU here")
    print(f"limit: {limit:.1f} requests/s")
    print(
        f"  while every Worker had {enough:.0f} calls to do: {rate:.1f}/s = {rate / limit:.1%}, {rejected:.1%} rejected"
    )
    print(f"  from start to end: {overall:.1f}/s = {overall / limit:.1%}, {all_rejected:.1%} rejected")
    lags_ms = sorted(1000 * lag for lag in watch.lags_s)
    median, p99 = (lags_ms[int(share * (len(lags_ms) - 1))] for share in (0.5, 0.99))
    print(f"loop lag: median {median:.1f} ms, p99 {p99:.1f} ms, longest {lags_ms[-1]:.1f} ms")
    shown = [*watch.samples[:: max(1, len(watch.samples) // 12)], last]
    print("memory: " + ", ".join(f"{sample.calls}: {sample.rss_mib:.0f} MiB" for sample in shown))
    settled = [sample for sample in watch.samples if sample.calls > counts["calls"] / 2]
    if len({sample.calls for sample in settled}) > 1:
        slope, _ = statistics.linear_regression([s.calls for s in settled], [s.rss_mib for s in settled])
        print(f"  growth over the second half of the calls: {1024 * slope:.2f} KiB a call")
    for mode in Mode:
        causes = {key[1]: n for key, n in counts.items() if isinstance(key, tuple) and key[0] is mode}
        rollouts, lost = causes.pop("rollouts", 0), causes.pop("lost", 0)
        print(f"{mode.word}: {lost} of {rollouts} rollouts excluded ({lost / max(1, rollouts):.2%}) {causes or ''}")


async def main(options: argparse.Namespace, arguments: list[str], folder: pathlib.Path) -> None:
    workers = WorkersProcess(arguments)
    ledger = Ledger(folder / "ledger.jsonl")
    http = make_client(options, workers.base_url, ledger)
    client = CountedCalls(http)
    counts: collections.Counter = collections.Counter()
    watch = Watch(workers, client, counts)
    before = asyncio.all_tasks()
    watching = [asyncio.create_task(watch.feel_lag()), asyncio.create_task(watch.look())]
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    try:
        await run_steps(options, client, counts)
        spent_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        await watch.sample()
        held = http.in_flight
        await client.close()
        await asyncio.sleep(0.5)
        seen = await workers.counts()
    finally:
        await cancel_all(watching)
        await client.close()
        workers.close()
        ledger.close()
    report(options, watch, counts, spent_s, cpu_s)
    lines, _ = read_ledger(ledger.path)
    size_mib, tasks = ledger.path.stat().st_size / 2**20, asyncio.all_tasks() - before
    print(f"ledger: {len(lines)} lines, {size_mib:.1f} MiB")
    print(f"the Workers' process: {seen['cpu_s']:.1f} s of CPU, {seen['peak_mib']:.0f} MiB at most")
    print(f"left behind: {sum(held.values())} permits, {seen['open']} connections, {len(tasks)} tasks")


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = parse(given)
    if chosen.serve:
        asyncio.run(serve_workers(chosen))
    else:
        with contextlib.ExitStack() as stack:
            if chosen.profile:
                profile = stack.enter_context(cProfile.Profile())
                stack.callback(lambda: profile.dump_stats(chosen.profile))
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rw-load-"))
            asyncio.run(main(chosen, given, pathlib.Path(folder)))
