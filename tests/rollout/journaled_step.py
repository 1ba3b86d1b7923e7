"""A process that runs one journaled step per request on standard input, each in a fork that may kill itself.

A request is a JSON line: where the journal lies, where to write the arrays of the batch, where to note what was
sampled, after how many journal lines to die by SIGKILL (0: live), and whether half a line more is written first. The
reply is the exit status of the fork. Loads no jax, so that forks are safe and quick.
"""

import asyncio
import hashlib
import json
import os
import pathlib
import signal
import sys

import numpy as np

from rw.core.rewards import trajectory_rewards
from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.rollout.group import group_tasks
from rw.rollout.journaled import JournaledScore, write_final
from rw.rollout.pool import EpisodePool, PoolConfig
from rw.rollout.stream import stream_groups
from rw.sampler.journaled import JournaledSampler
from rw.sampler.scripted import ScriptedSampler
from rw.types import Mode, Query, Verdict, WorkerCard
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.http import HttpWorkerClient
from rw.workers.journal import Journal
from rw.workers.journaled import JournaledClient
from rw.workers.lines import write_line
from rw.workers.pricing import PriceTable
from rw.workers.request import request_digest

TOKENIZER = pathlib.Path(__file__).parent.parent.parent / "rw" / "data" / "files" / "quickstart_tokenizer.json"
WORKERS = ("worker_1", "worker_2")
QUERIES = tuple(Query(f"q{k}", "simulated", "math", f"task {k}", "4") for k in range(4))
MODES = (Mode.SINGLE, None, Mode.AGENTIC, None)  # None: the router declares its mode itself
ROLLOUTS = 2


class KilledJournal(Journal):
    """A journal whose process dies after a given number of lines."""

    def __init__(self, *arguments, kill_after=0, torn=False, **options):
        super().__init__(*arguments, **options)
        self.kill_after, self.torn, self.lines = kill_after, torn, 0

    def _write(self, record):
        if self.torn and self.lines == self.kill_after:
            if self._file is None:
                self._begin_segment()
            line = write_line(record)
            os.write(self._file, line[: len(line) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super()._write(record)
        self.lines += 1
        if self.kill_after == self.lines and not self.torn:
            os.kill(os.getpid(), signal.SIGKILL)


class NotingSampler:
    """A script whose words depend on who speaks, `salt` included; notes every turn that it is asked for."""

    def __init__(self, codec, path, salt):
        self.inner = ScriptedSampler(codec, self.write)
        self.path, self.salt = path, salt

    async def generate(self, request):
        with open(self.path, "a") as file:
            file.write(json.dumps([request.episode.query_id, request.episode.rollout, request.turn]) + "\n")
        sampled = await self.inner.generate(request)
        noise = hashlib.sha256(f"{request.episode}/{request.turn}/{self.salt}".encode()).digest()
        logprobs = -np.frombuffer((noise * len(sampled.tokens))[: len(sampled.tokens)], np.uint8).astype(np.float32)
        return type(sampled)(sampled.tokens, logprobs / 300, sampled.stop)

    async def release(self, episode):
        await self.inner.release(episode)

    def write(self, request, view):
        number, rollout = int(request.episode.query_id[1:]), request.episode.rollout
        ask = f"what is {number} and {rollout} and {request.turn}{self.salt}"
        mode = ("single", "multi", "agentic", "agentic" if rollout else "multi")[number]
        if request.turn == 0:
            return f"<mode>{mode}</mode>"
        routes = {"single": 1, "multi": 3, "agentic": 3}[mode]
        if request.turn <= routes:
            worker = WORKERS[(number + rollout + request.turn) % 2]
            if mode != "agentic":
                return f'<route model="{worker}">{ask}</route>'
            if request.turn == routes:
                return f'<route model="{worker}" role="summarizer" refs="n1,n2">{ask}</route><|im_end|>'
            route = f'<route model="{worker}" role="executor">{ask}'
            return f"{route}</route>{route} as well</route><|im_end|>"
        said = view.response.rsplit("<observation", 1)[1].partition(">")[2].partition("<")[0].strip()
        return f"<answer>{said if rollout else 4}</answer>"


async def score(query, answer):
    return Verdict(answer.strip() == query.reference, detail=answer)


async def run_step(codec, base_url, wish):
    endpoints = {
        name: WorkerEndpoint(name, "", base_url, name, input_price=1.0, output_price=2.0, send_call_header=True)
        for name in WORKERS
    }
    config = ClientConfig()
    client = HttpWorkerClient(list(endpoints.values()), PriceTable.from_endpoints(endpoints.values()), None, config)
    protocol_config = ProtocolConfig(templates="short")
    cards = [WorkerCard(name, "answers") for name in WORKERS]
    protocol = RouterProtocol(codec, Prompts.load("short"), cards, protocol_config)
    journal = KilledJournal(
        wish["journal"], {"run": "test"}, segment_s=0.01, kill_after=wish["kill_after"], torn=wish["torn"]
    )
    pool = EpisodePool(
        protocol,
        JournaledSampler(NotingSampler(codec, wish["sampled"], wish["salt"]), journal),
        JournaledClient(client, journal, lambda r: request_digest(endpoints[r.worker_id], config.worker_seed, r)),
        PoolConfig(rollouts_per_query=ROLLOUTS),
    )
    stream = stream_groups(
        group_tasks(QUERIES, MODES),
        pool,
        JournaledScore(score, journal),
        step=7,
        policy_version=6,
        on_rollout=lambda scored: write_final(journal, scored),
    )
    groups = sorted([group async for group in stream], key=lambda group: group.index)
    await client.close()
    journal.close()
    return groups


def batch_bytes(groups):
    """All that the learner would be given, as bytes; a call's latency and number of attempts are not part of it."""
    parts = []
    for group in groups:
        for scored in group.rollouts:
            t = scored.trajectory
            parts += [t.tokens.tobytes(), t.segments.tobytes(), t.sampled_logprobs.tobytes()]
            rewards = trajectory_rewards(scored, 0.001)
            calls = [(c.node_id, c.worker_id, c.output, c.cost_usd, str(c.status)) for c in t.calls]
            about = [t.query_id, t.rollout_index, t.mode, t.status, t.answer, scored.verdict, rewards, calls]
            parts.append(repr(about).encode())
    return b"\n".join(parts)


def main(base_url):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    codec = TokenCodec.from_file(TOKENIZER)
    assert "jax" not in sys.modules
    print("ready", flush=True)
    for line in sys.stdin:
        wish = json.loads(line)
        child = os.fork()
        if child == 0:
            groups = asyncio.run(run_step(codec, base_url, wish))
            pathlib.Path(wish["out"]).write_bytes(batch_bytes(groups))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
