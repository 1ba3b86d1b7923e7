"""Cassettes: what was asked is found again, once each; what is missing is an error or paid for; damage is refused."""

import asyncio
import dataclasses

import pytest

from rw.errors import CassetteError
from rw.types import CallId, CallStatus, Role, WorkerCall
from rw.workers import cassette as cassettes
from rw.workers.cassette import Cassette, CassettePlayer, CassetteRecorder, made_of
from rw.workers.config import WorkerEndpoint
from rw.workers.interface import WorkerRequest
from rw.workers.lines import write_line

ENDPOINT = WorkerEndpoint("worker_1", "d", "http://host/v1", "m", input_price=1.0, output_price=2.0)
WORKERS = made_of([ENDPOINT])


def request(content="hi", call=0, node="n1"):
    return WorkerRequest(CallId(3, 1, 4, 2, call), "worker_1", node, Role.EXECUTOR, ("n0",), f"ask {content}", content)


def digest(asked):
    return f"digest of {asked.content}"


class Worker:
    """A client that answers with a count, so that equal requests get different replies."""

    def __init__(self, *outcomes):
        self.asked = 0
        self._outcomes = list(outcomes)

    async def call(self, asked):
        self.asked += 1
        outcome = self._outcomes.pop(0) if self._outcomes else CallStatus.OK
        if outcome is CallStatus.CANCELLED:
            raise asyncio.CancelledError
        ok = outcome is CallStatus.OK
        return WorkerCall(
            asked.node_id,
            asked.worker_id,
            asked.role,
            asked.references,
            asked.subquery,
            output=f"{asked.content} {self.asked} ✓" if ok else "",
            input_tokens=5 if ok else None,
            output_tokens=7 if ok else None,
            cost_usd=0.1 + self.asked / 3 if ok else None,
            latency_s=0.25,
            attempts=2,
            status=outcome,
            failure=None if ok else "timeout",
            finish_reason="stop" if ok else None,
        )

    async def close(self):
        pass


async def record(path, *asked, worker=None, label="training"):
    cassette = Cassette(path, WORKERS, records=True, begins=True)
    recorder = CassetteRecorder(worker or Worker(), cassette, digest, lambda: label)
    ended = []
    for one in asked:
        try:
            ended.append(await recorder.call(one))
        except asyncio.CancelledError:
            ended.append(None)
    cassette.close()
    return ended


def player(path, live=None, label="training", told=None):
    cassette = Cassette(path, WORKERS)
    told = [] if told is None else told
    return CassettePlayer(cassette, digest, lambda: label, lambda asked, call: told.append((asked.id, call)), live)


async def test_calls_are_replayed_as_they_ended(tmp_path):
    path, told = tmp_path / "a.jsonl", []
    asked = [request("a"), request("b", call=1), request("c", call=2)]
    ended = await record(path, *asked, worker=Worker(CallStatus.OK, CallStatus.FAILED))
    replayed = player(path, told=told)
    assert [await replayed.call(one) for one in reversed(asked)] == ended[::-1]
    assert told == [(one.id, call) for one, call in zip(asked[::-1], ended[::-1], strict=True)]
    assert ended[1].status is CallStatus.FAILED


async def test_a_recording_serves_the_names_of_the_rollout_that_asks(tmp_path):
    path = tmp_path / "a.jsonl"
    (ended,) = await record(path, request("a", node="n1"))
    assert await player(path).call(request("a", node="n7")) == dataclasses.replace(ended, node_id="n7")


async def test_the_same_call_comes_first_then_any_of_the_same_request_and_each_serves_once(tmp_path):
    path = tmp_path / "a.jsonl"
    first, second = await record(path, request("a", call=0), request("a", call=1))
    replayed = player(path)
    assert (await replayed.call(request("a", call=1))).output == second.output
    assert (await replayed.call(request("a", call=9))).output == first.output
    with pytest.raises(CassetteError, match="the recording has no such call"):
        await replayed.call(request("a", call=0))
    assert (await player(path, label="validation").call(request("a", call=1))).output == first.output


async def test_labels_keep_equal_calls_apart(tmp_path):
    path = tmp_path / "a.jsonl"
    worker = Worker()
    (training,) = await record(path, request("a"), worker=worker)
    (validation,) = await record(path, request("a"), worker=worker, label="validation")
    assert training.output != validation.output
    assert await player(path, label="validation").call(request("a")) == validation
    assert await player(path).call(request("a")) == training


async def test_a_miss_names_worker_call_question_and_remedy(tmp_path):
    path = tmp_path / "a.jsonl"
    await record(path, request("a"))
    with pytest.raises(CassetteError) as error:
        await player(path).call(request("b"))
    said = str(error.value)
    assert "no reply of worker_1 to training call 3/1/4/2/0 ('ask b')" in said and "--allow-live" in said
    assert "was asked something else" in said and "\n" not in said


async def test_only_misses_are_asked_live_and_they_are_recorded(tmp_path):
    path, worker = tmp_path / "a.jsonl", Worker()
    await record(path, request("a"))
    for paid in (1, 1):
        cassette = Cassette(path, WORKERS, records=True)
        live = CassetteRecorder(worker, cassette, digest, lambda: "training")
        replayed = CassettePlayer(cassette, digest, lambda: "training", live=live)
        await replayed.call(request("a"))
        await replayed.call(request("b", call=1))
        assert worker.asked == paid
        cassette.close()


async def test_a_stopped_call_is_stopped_again_or_asked_live(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    assert await record(path, request("a"), worker=Worker(CallStatus.CANCELLED)) == [None]
    with pytest.raises(TimeoutError):  # what stopped it then has time to do so now
        await asyncio.wait_for(player(path).call(request("a")), 0.05)
    monkeypatch.setattr(cassettes, "_STOPPED_WAIT_S", 0.01)
    ended = await player(path).call(request("a"))
    assert (ended.status, ended.failure, ended.cost_usd) == (CallStatus.FAILED, "deadline", None)
    with pytest.raises(CassetteError, match="no such call"):  # it is no answer for others
        await player(path).call(request("a", call=1))
    worker = Worker()
    assert (await player(path, live=worker).call(request("a"))).status is CallStatus.OK and worker.asked == 1


async def test_a_killed_recording_goes_on_without_asking_or_holding_anything_twice(tmp_path):
    path, worker = tmp_path / "a.jsonl", Worker(CallStatus.OK, CallStatus.FAILED, CallStatus.OK)
    asked = [request(text, call=call) for call, text in enumerate("abc")]
    first, failed, last = await record(path, *asked, worker=worker)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])  # killed while the last call was written
    again = await record(path, *asked, worker=worker)
    assert again[0] == first and worker.asked == 5  # the failed one and the torn one were asked again
    assert again[1].status is again[2].status is CallStatus.OK
    replayed = player(path)
    assert [await replayed.call(one) for one in asked] == again
    assert len(Cassette(path, WORKERS)) == 3
    for _ in range(2):
        with pytest.raises(CassetteError):
            await replayed.call(asked[0])


@pytest.mark.parametrize("cut", [0, 5, 40])
async def test_a_header_cut_off_by_a_kill_is_written_again(tmp_path, cut):
    path = tmp_path / "a.jsonl"
    await record(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CassetteError, match="is empty; record it again"):
        player(path)
    (ended,) = await record(path, request("a"))
    assert await player(path).call(request("a")) == ended


async def test_an_edited_cassette_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    await record(path, request("a"))
    path.write_bytes(path.read_bytes().replace(b"ask a", b"ask b"))
    for records in (False, True):
        with pytest.raises(CassetteError, match="damaged or was edited: line 2 does not fit its checksum"):
            Cassette(path, WORKERS, records=records)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "n"}, "with another model of worker_1: m → n"),
        ({"output_price": 3.0}, "with another output_price of worker_1: 2.0 → 3.0"),
        ({"id": "worker_2"}, "was recorded without worker_2"),
    ],
)
async def test_a_cassette_of_other_workers_or_prices_is_refused(tmp_path, change, says):
    await record(tmp_path / "a.jsonl")
    with pytest.raises(CassetteError, match=says):
        Cassette(tmp_path / "a.jsonl", made_of([dataclasses.replace(ENDPOINT, **change)]))


async def test_files_that_are_no_cassette(tmp_path):
    with pytest.raises(CassetteError, match="no cassette at .* record one first with workers.cassette_mode=record"):
        player(tmp_path / "none.jsonl")
    with pytest.raises(CassetteError, match="cannot use the cassette"):
        Cassette(tmp_path, WORKERS, records=True)
    for records in (False, True):  # a mistyped path would else be a replay that pays for everything
        with pytest.raises(CassetteError, match="no cassette at"):
            Cassette(tmp_path / "none.jsonl", WORKERS, records=records)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(cassettes.write_line({"kind": "header", "format": 99}))
    with pytest.raises(CassetteError, match="is no cassette that this code reads"):
        player(path)


async def test_one_process_records_at_a_time(tmp_path):
    first = Cassette(tmp_path / "a.jsonl", WORKERS, records=True, begins=True)
    with pytest.raises(CassetteError, match="another process records on"):
        Cassette(tmp_path / "a.jsonl", WORKERS, records=True)
    first.close()
    Cassette(tmp_path / "a.jsonl", WORKERS, records=True).close()


def test_a_journal_is_no_cassette(tmp_path):
    path = tmp_path / "segment_000001.jsonl"
    path.write_bytes(write_line({"kind": "header", "format": cassettes.FORMAT_VERSION, "run": "r"}))
    with pytest.raises(CassetteError, match="is no cassette but another file"):
        Cassette(path, WORKERS)
