"""A step killed at every line of its journal, by SIGKILL, in a real process against a real server: nothing is lost.

The restarted step must build the batch that an undisturbed one builds, byte for byte; no turn that was journaled is
sampled again, no call that was answered is sent again, and one that was not is sent at most once more.
"""

import asyncio
import collections
import contextlib
import json
import os
import pathlib
import sys

import pytest

from rw.workers.lines import read_lines
from rw.workers.loopback import Completion, serve

ROOT = pathlib.Path(__file__).parent.parent.parent


class Steps:
    """The process of journaled_step.py, and the server that its calls go to."""

    def __init__(self, process, sent, folder):
        self.process, self.sent, self.folder = process, sent, folder
        self.count = 0

    async def run(self, journal, kill_after=0, torn=False, salt=""):
        """Runs a step; its exit code, and where it wrote its batch and what it sampled."""
        self.count += 1
        out, sampled = self.folder / f"{self.count}.out", self.folder / f"{self.count}.sampled"
        sampled.touch()
        wish = {"journal": str(journal), "out": str(out), "sampled": str(sampled), "salt": salt}
        self.process.stdin.write((json.dumps({**wish, "kill_after": kill_after, "torn": torn}) + "\n").encode())
        code = int(await self.process.stdout.readline())
        return code, out, [tuple(json.loads(line)) for line in sampled.read_text().splitlines()]


@contextlib.asynccontextmanager
async def steps(folder):
    sent = collections.Counter()

    def answer(call):
        sent[call.call_header] += 1
        return Completion(f"{call.model} says {len(call.content)}", len(call.content), 7)

    server = await serve(answer, latency=lambda call: hash(call.call_header) % 7 / 1000)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(pathlib.Path(__file__).parent / "journaled_step.py"),
        server.base_url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert (await process.stdout.readline()).strip() == b"ready"
        yield Steps(process, sent, folder)
    finally:
        process.kill()
        await process.wait()
        await server.close()


def events(journal):
    """All events of a journal, in order."""
    found = []
    for path in sorted(journal.glob("segment_*.jsonl")):
        records, _ = read_lines(path.read_bytes())
        found += [record for record in records if record["kind"] != "header"]
    return found


async def kill_and_restart(step, journal, expected, kill_after, torn):
    code, out, _ = await step.run(journal, kill_after, torn)
    assert code == -9 and not out.exists()
    journaled = events(journal)
    assert len(journaled) == kill_after  # half a line more is none
    step.sent_before = dict(step.sent)
    code, out, sampled = await step.run(journal)
    assert code == 0
    assert out.read_bytes() == expected
    turns = {(e["query"], e["rollout"], e["turn"]) for e in journaled if e["kind"] == "turn"}
    assert not turns & set(sampled)
    assert len(set(sampled)) == len(sampled)
    answered = {"/".join(map(str, e["call"])) for e in journaled if e["kind"] == "response"}
    assert all(step.sent[call] == 1 for call in answered)
    assert max(step.sent.values()) <= 2
    intended = {"/".join(map(str, e["call"])) for e in journaled if e["kind"] == "intent"}
    assert {call for call, times in step.sent.items() if times == 2} <= intended - answered
    step.sent.clear()


async def undisturbed(step, tmp_path):
    code, out, sampled = await step.run(tmp_path / "whole")
    assert code == 0
    whole = events(tmp_path / "whole")
    kinds = collections.Counter(event["kind"] for event in whole)
    assert kinds["turn"] == len(sampled) == 32 and kinds["intent"] == kinds["response"] == sum(step.sent.values()) == 26
    assert [event["status"] for event in whole if event["kind"] == "final"] == ["answered"] * 8
    step.sent.clear()
    return out.read_bytes(), len(whole)


@pytest.mark.parametrize("torn", [False, True])
async def test_a_step_killed_at_some_lines_of_its_journal(tmp_path, torn):
    async with steps(tmp_path) as step:
        expected, lines = await undisturbed(step, tmp_path)
        for kill_after in range(1, lines, 9):
            await kill_and_restart(step, tmp_path / f"at_{kill_after}", expected, kill_after, torn)


@pytest.mark.full
@pytest.mark.parametrize("torn", [False, True])
async def test_a_step_killed_at_every_line_of_its_journal(tmp_path, torn):
    async with steps(tmp_path) as step:
        expected, lines = await undisturbed(step, tmp_path)
        for kill_after in range(0 if torn else 1, lines):
            await kill_and_restart(step, tmp_path / f"at_{kill_after}", expected, kill_after, torn)


async def test_a_step_killed_again_and_again_ends_the_same(tmp_path):
    async with steps(tmp_path) as step:
        expected, lines = await undisturbed(step, tmp_path)
        journal, code, kills = tmp_path / "often", -9, 0
        while code == -9:
            code, out, _ = await step.run(journal, kill_after=16)  # more lines than calls can be under way
            kills += code == -9
        assert code == 0 and out.read_bytes() == expected
        assert kills >= lines // 16
        assert max(step.sent.values()) <= 8  # no call is answered twice; one may have been under way at every kill
        responses = collections.Counter(tuple(e["call"]) for e in events(journal) if e["kind"] == "response")
        assert set(responses.values()) == {1}


async def test_a_restarted_router_that_words_it_otherwise_never_hears_an_old_answer(tmp_path):
    """What is sampled after the restart differs: the journaled turns stay, and every reply belongs to its request."""
    async with steps(tmp_path) as step:
        _, lines = await undisturbed(step, tmp_path)
        for kill_after in range(3, lines, 17):
            journal = tmp_path / f"at_{kill_after}"
            await step.run(journal, kill_after)
            before = {(e["query"], e["rollout"], e["turn"]) for e in events(journal) if e["kind"] == "turn"}
            code, _, sampled = await step.run(journal, salt=" or else")
            assert code == 0
            assert not before & set(sampled)
            asked = {}
            for event in events(journal):
                if event["kind"] == "intent":
                    asked[tuple(event["call"])] = event["digest"]
                elif event["kind"] == "response":
                    assert event["digest"] == asked[tuple(event["call"])]
            step.sent.clear()
