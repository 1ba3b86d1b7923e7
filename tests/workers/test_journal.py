"""The journal: what it gives back after a kill, what it refuses, and when what it holds is safe."""

import asyncio
import dataclasses
import pathlib

import numpy as np
import pytest

from rw.errors import FailureCause, JournalError
from rw.types import CallId, CallStatus, Role, WorkerCall
from rw.workers.interface import WorkerRequest
from rw.workers.journal import Journal, JournaledTurn, Journals, context_digest
from rw.workers.journaled import JournaledClient

HEADER = {"run": "r", "prompts": "p", "pool": "w", "prices": "$", "tokenizer": "t"}
CALL = CallId(step=3, group=1, rollout=0, turn=2, call=0)
TURN = JournaledTurn(np.array([5, 151_645], np.int32), np.array([-0.1, -1e-7], np.float32), "end_token")
REPLY = WorkerCall(
    node_id="n1",
    worker_id="worker_1",
    role=Role.EXECUTOR,
    references=("n1", "n2"),
    subquery="What?",
    output="naïve \ud83d\n\u2028 ☃",
    input_tokens=3,
    output_tokens=None,
    cost_usd=0.1 + 0.2,
    latency_s=0.5,
    attempts=2,
    status=CallStatus.OK,
)
FAILED = dataclasses.replace(REPLY, status=CallStatus.FAILED, failure=FailureCause.TIMEOUT.value, output="")


def write_everything(journal):
    journal.write_turn("q1", 0, 2, "context", TURN)
    journal.write_intent(CALL, "worker_1", "request")
    journal.write_response(CALL, "request", REPLY)
    journal.write_final("q1", 0, "answered", "4", {"correct": True, "detail": "", "tier": ""})


def read_turn(journal):
    return journal.turn("q1", 0, 2, "context")


def segments(folder):
    return sorted(pathlib.Path(folder).glob("segment_*.jsonl"))


def test_everything_is_given_back_exactly(tmp_path):
    journal = Journal(tmp_path / "j", HEADER)
    assert read_turn(journal) is None and journal.response(CALL, "request") is None
    write_everything(journal)
    journal.close()
    for again in (journal, Journal(tmp_path / "j", HEADER)):
        turn = read_turn(again)
        np.testing.assert_array_equal(turn.tokens, TURN.tokens)
        np.testing.assert_array_equal(turn.logprobs, TURN.logprobs)
        assert (turn.tokens.dtype, turn.logprobs.dtype, turn.stop) == (np.int32, np.float32, "end_token")
        assert again.response(CALL, "request") == REPLY
        assert again.verdict("q1", "4") == {"correct": True, "detail": "", "tier": ""}


def test_nothing_is_given_to_another_context_request_or_answer(tmp_path):
    journal = Journal(tmp_path, HEADER)
    write_everything(journal)
    assert journal.turn("q1", 0, 2, context_digest(np.arange(3))) is None
    assert journal.turn("q1", 1, 2, "context") is None
    assert journal.response(CALL, "other request") is None
    assert journal.response(dataclasses.replace(CALL, rollout=1), "request") is None
    assert journal.verdict("q1", "5") is None and journal.verdict("q2", "4") is None


@pytest.mark.parametrize("name", HEADER)
def test_a_journal_of_another_run_prompts_pool_prices_or_tokenizer_is_refused(tmp_path, name):
    journal = Journal(tmp_path, HEADER)
    write_everything(journal)
    journal.close()
    with pytest.raises(JournalError, match=f"another {name};.*remove {tmp_path}"):
        Journal(tmp_path, {**HEADER, name: "changed"})


def test_a_journal_of_another_format_is_refused(tmp_path, monkeypatch):
    journal = Journal(tmp_path, HEADER)
    write_everything(journal)
    journal.close()
    monkeypatch.setattr("rw.workers.journal.FORMAT_VERSION", 2)
    with pytest.raises(JournalError, match="another format"):
        Journal(tmp_path, HEADER)


def test_whatever_end_a_kill_leaves_is_read_up_to(tmp_path):
    journal = Journal(tmp_path / "whole", HEADER)
    write_everything(journal)
    journal.close()
    (path,) = segments(tmp_path / "whole")
    data = path.read_bytes()
    held = []
    for cut in range(len(data) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / path.name).write_bytes(data[:cut])
        journal = Journal(folder, HEADER)
        known = [read_turn(journal), journal.response(CALL, "request"), journal.verdict("q1", "4")]
        held.append([value is not None for value in known])
        if cut % 100 == 0:  # and it goes on in a segment of its own
            write_everything(journal)
            journal.close()
            assert len(segments(folder)) == 2
            assert Journal(folder, HEADER).response(CALL, "request") == REPLY
    assert held[0] == [False] * 3 and held[-1] == [True] * 3
    assert held == sorted(held)


def test_any_other_damage_is_refused_with_the_file_and_the_remedy(tmp_path):
    journal = Journal(tmp_path, HEADER)
    write_everything(journal)
    journal.close()
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    at = data.index(b'"stop"')
    path.write_bytes(data[:at] + b'"spot"' + data[at + 6 :])
    with pytest.raises(JournalError, match=rf"{path} is damaged: line 2 .*remove {tmp_path}"):
        Journal(tmp_path, HEADER)


def test_a_copy_of_a_segment_beside_it_is_refused(tmp_path):
    journal = Journal(tmp_path, HEADER)
    write_everything(journal)
    journal.close()
    (path,) = segments(tmp_path)
    copy = tmp_path / "segment_000001 (conflicted copy).jsonl"
    copy.write_bytes(path.read_bytes())
    with pytest.raises(JournalError, match="conflicted copy.*is no segment of this journal; remove it"):
        Journal(tmp_path, HEADER)
    copy.unlink()
    assert read_turn(Journal(tmp_path, HEADER)) is not None


async def test_a_segment_is_closed_in_time_although_nothing_follows(tmp_path):
    journal = Journal(tmp_path, HEADER, segment_s=0.02)
    journal.write_turn("q1", 0, 2, "context", TURN)
    journal.write_intent(CALL, "worker_1", "request")
    await asyncio.sleep(0.1)
    open_files = [path.resolve() for path in pathlib.Path("/proc/self/fd").iterdir() if path.exists()]
    assert segments(tmp_path)[0].resolve() not in open_files
    journal.write_response(CALL, "request", REPLY)
    assert [path.name for path in segments(tmp_path)] == ["segment_000001.jsonl", "segment_000002.jsonl"]
    journal.close()
    again = Journal(tmp_path, HEADER)
    assert read_turn(again) is not None and again.response(CALL, "request") == REPLY


def test_a_journal_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "j").write_text("a file")
    journal = Journal(tmp_path / "j", HEADER)
    with pytest.raises(JournalError, match="cannot write to the journal"):
        write_everything(journal)


def test_scopes_are_apart_and_can_be_discarded(tmp_path):
    journals = Journals(tmp_path / "journal", HEADER)
    for scope in ("step_000001", "step_000002"):
        journal = journals.open(scope)
        write_everything(journal)
        journal.close()
    assert journals.scopes() == ["step_000001", "step_000002"]
    journals.discard("step_000001")
    journals.discard("step_000009")
    assert journals.scopes() == ["step_000002"]
    assert read_turn(journals.open("step_000001")) is None
    journals.identify(router="other weights")
    with pytest.raises(JournalError, match="another router"):
        journals.open("step_000002")


class Workers:
    """Answers with what it is told to, in turn, and keeps the requests."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    async def call(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def close(self):
        pass


def request(content="What?", node_id="n1"):
    return WorkerRequest(CALL, "worker_1", node_id, Role.EXECUTOR, ("n1", "n2"), content, content)


def client(journal, workers, **options):
    return JournaledClient(workers, journal, lambda asked: asked.content, **options)


async def test_an_answered_call_is_not_sent_again_and_the_books_are_told(tmp_path):
    journal, workers, replayed = Journal(tmp_path, HEADER), Workers(REPLY), []
    assert await client(journal, workers).call(request()) == REPLY
    journal.close()
    again = client(Journal(tmp_path, HEADER), workers, on_replay=lambda *what: replayed.append(what))
    assert await again.call(request()) == REPLY
    assert len(workers.requests) == 1
    assert replayed == [(request(), REPLY)]


class Killed(Exception):
    pass


class PaidAndKilled(Workers):
    """Says that a reply has come, as the HTTP client does before it books one, and gets no further."""

    async def call(self, request):
        request.on_reply(await super().call(request))
        raise Killed


async def test_a_reply_is_kept_before_it_is_booked_so_that_a_kill_in_between_pays_nothing_twice(tmp_path):
    journal, workers, outer = Journal(tmp_path, HEADER), PaidAndKilled(REPLY), []
    with pytest.raises(Killed):
        await client(journal, workers).call(dataclasses.replace(request(), on_reply=outer.append))
    assert outer == [REPLY]
    journal.close()
    assert await client(Journal(tmp_path, HEADER), workers).call(request()) == REPLY
    assert len(workers.requests) == 1


async def test_another_request_under_the_same_id_is_sent(tmp_path):
    other = dataclasses.replace(REPLY, output="another answer")
    journal, workers = Journal(tmp_path, HEADER), Workers(REPLY, other)
    await client(journal, workers).call(request())
    assert (await client(journal, workers).call(request("What else?"))).output == "another answer"
    assert journal.response(CALL, "What else?") == other
    assert journal.response(CALL, "What?") is None  # the one that counts is the last


async def test_a_failed_call_is_sent_again_unless_equal_runs_are_promised(tmp_path):
    journal, workers = Journal(tmp_path, HEADER), Workers(FAILED, REPLY)
    assert await client(journal, workers).call(request()) == FAILED
    assert await client(journal, workers, replay_failures=True).call(request()) == FAILED
    assert await client(journal, workers).call(request()) == REPLY
    assert await client(journal, workers, replay_failures=True).call(request()) == REPLY


async def test_failures_can_be_forgotten_for_good(tmp_path):
    journal, workers = Journal(tmp_path, HEADER), Workers(FAILED, REPLY)
    await client(journal, workers).call(request())
    journal.forget_failures()
    journal.close()
    again = client(Journal(tmp_path, HEADER), workers, replay_failures=True)
    assert await again.call(request()) == REPLY


@pytest.mark.parametrize("end", [asyncio.CancelledError(), RuntimeError("refused")])
async def test_a_call_that_was_stopped_leaves_its_intent_and_no_reply(tmp_path, end):
    journal, workers = Journal(tmp_path, HEADER), Workers(end, REPLY)
    with pytest.raises(type(end)):
        await client(journal, workers).call(request())
    assert journal.response(CALL, "What?") is None
    assert await client(journal, workers).call(request()) == REPLY
