"""Keys stay secret: Workers echo them wherever a server can, and nothing that a run leaves or says holds one."""

import asyncio
import base64
import json
import logging
import pathlib
import threading
import traceback
import urllib.parse

import numpy as np
import pytest
from aiohttp import web

from rw import cli
from rw.config import as_dict, load_config
from rw.errors import WorkerRefusedError
from rw.evaluation.outcomes import outcomes
from rw.greedy import roll_out
from rw.parts import open_parts
from rw.rollout.record import TrajectoryWriter
from rw.sampler.scripted import ScriptedSampler
from rw.simulation import skills
from rw.simulation.policies import BestPlans, script
from rw.simulation.workers import SimulatedWorld
from rw.types import Mode
from rw.workdir import Workdir
from rw.workers.completion import completion_chunks, completion_json, events, read_call

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
ENV_NAME = "RW_TEST_SECRET_KEY"
ENV_KEY = 'sk-env/"quoted\\and+plus=0123456789'
FILE_KEY = "sk-file-abcdefghij0123456789"
KEYS = (ENV_KEY, FILE_KEY)


class EchoingWorkers:
    """The simulated world behind a server that repeats the caller's key in headers, errors and replies, by turns.

    It runs in a thread, so that runs in other processes can reach it.
    """

    def __init__(self):
        self._world = SimulatedWorld(0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.refuses = False
        self.kinds: set[str] = set()  # of answers given
        self._count = 0
        self.base_url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> str:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._list_models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _list_models(self, request: web.Request) -> web.Response:
        key = request.headers["Authorization"]
        return web.json_response({"data": [{"id": name} for name in (*skills.WORKER_IDS, f"no {key}")]})

    async def _complete(self, request: web.Request) -> web.Response:
        key = request.headers["Authorization"].removeprefix("Bearer ")
        assert key in KEYS
        call = read_call(await request.read())
        headers = {"X-Echo": urllib.parse.quote(key), "Set-Cookie": f"k={base64.b64encode(key.encode()).decode()}"}
        headers |= {"X-Plain": key}
        if self.refuses:
            return web.json_response({"error": {"message": f"bad key {key}"}}, status=401, headers=headers)
        self._count += 1
        kind = ("reply", "error", "html", "reply", "inside", "escaped", "reply")[self._count % 7]
        self.kinds.add(f"{kind} {'streamed' if call.stream else 'whole'}")
        if kind == "error":
            return web.json_response({"error": {"message": f"{'x' * 280} {key} failed"}}, status=500, headers=headers)
        if kind == "html":
            return web.Response(text=f"<html>{key} {key}</html>", status=502, content_type="text/html", headers=headers)
        if kind == "inside":
            return web.json_response({"error": {"code": 503, "message": f"upstream had {key}"}}, headers=headers)
        if kind == "escaped":
            escaped = "".join(f"\\u{ord(character):04x}" for character in key)
            text = f'{{"error": {{"message": "you sent {escaped}", "metadata": {{"raw": "{escaped}"}}}}}}'
            return web.Response(text=text, status=500, content_type="application/json", headers=headers)
        return self._reply(call, key, headers)

    def _reply(self, call, key: str, headers) -> web.Response:
        said = self._world.handler(call)
        said = type(said)(f"{said.text} {key}", said.input_tokens, said.output_tokens, key)
        if call.stream:
            body = b"".join(events(completion_chunks(call, said)))
            return web.Response(body=body, content_type="text/event-stream", headers=headers)
        return web.json_response(completion_json(call, said), headers=headers)


@pytest.fixture(scope="module")
def workers():
    server = EchoingWorkers()
    yield server
    server.close()


@pytest.fixture
def overrides(workers, tmp_path, monkeypatch):
    """Overrides for a run of these Workers: half with a key from the environment, half with one from a file."""
    monkeypatch.setenv(ENV_NAME, ENV_KEY)
    key_file = tmp_path / "keys" / "file.key"
    key_file.parent.mkdir()
    key_file.touch(mode=0o600)
    key_file.write_text(FILE_KEY + "\n")
    entries = [
        {
            "id": card.id,
            "description": card.description,
            "base_url": workers.base_url,
            "model": card.id,
            "input_price": 0.1,
            "output_price": 0.4,
            "stream": "always" if number % 2 else "never",
            **({"key_env": ENV_NAME} if number < 3 else {"key_file": str(key_file)}),
        }
        for number, card in enumerate(skills.cards())
    ]
    file = tmp_path / "keys" / "workers.yaml"
    file.write_text(json.dumps({"workers": entries}))  # JSON is YAML
    return [
        ("workers.kind", "http"),
        ("workers.file", str(file)),
        ("workers.cassette", str(tmp_path / "left" / "calls.jsonl")),
        ("workers.cassette_mode", "record"),
        ("client.retry.server_error", "3"),
        ("client.retry.backoff_s", "0.001"),
        ("evaluation.test_queries", "8"),
        ("evaluation.arms", "('trained',)"),
    ]


def needles(key: str) -> set[bytes]:
    """How a key may be spelled in a file: plainly, escaped, quoted, and within base64 at every alignment."""
    spellings = {key, json.dumps(key)[1:-1], repr(key)[1:-1], urllib.parse.quote(key, safe="")}
    spellings.add("".join(f"\\u{ord(character):04x}" for character in key))
    for lead in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = encode(b"\0" * lead + key.encode()).decode()
            spellings.add(encoded[4 if lead else 0 : len(encoded) // 4 * 4 - 4])  # whole groups of the key alone
    return {spelling.encode() for spelling in spellings}


def found_in(data: bytes) -> list[bytes]:
    return [needle for key in KEYS for needle in needles(key) if needle in data]


def assert_secret(folder: pathlib.Path, said: str) -> list[str]:
    """No file of the folder and nothing said holds a key in any spelling; the names of the files."""
    assert found_in(said.encode()) == [], said
    files = [path for path in folder.rglob("*") if path.is_file()]
    leaks = {str(path): found for path in files if (found := found_in(path.read_bytes()))}
    assert leaks == {}
    return sorted(str(path.relative_to(folder)) for path in files)


def test_the_search_finds_every_spelling():
    for spelled in (ENV_KEY, json.dumps({"a": ENV_KEY}), repr(ENV_KEY), urllib.parse.quote_plus(ENV_KEY)):
        assert found_in(f"x{spelled}y".encode())
    for lead in range(4):
        assert found_in(base64.b64encode(b"Bear"[:lead] + FILE_KEY.encode() + b" more"))


async def test_rollouts_leave_no_key_in_files_logs_and_output(workers, overrides, tmp_path, capfd, caplog):
    caplog.set_level(logging.DEBUG)
    config = load_config(TINY, [*overrides, ("evaluation.every", "0")])
    workers.kinds.clear()
    with Workdir(tmp_path / "left" / "run") as workdir:
        workdir.write_config(as_dict(config))
        async with open_parts(config, workdir) as run:
            by_id = {query.id: query for query in run.test}
            for mode in Mode:
                sampler = ScriptedSampler(run.codec, script(BestPlans(mode), by_id.__getitem__))
                label = f"test_{mode.word}"
                found = outcomes(await roll_out(run, sampler, run.test, label, label))
                assert any(outcome.status == "answered" for outcome in found)
            groups = await run.collect(
                sampler, run.test, None, scope="step_000001", rollouts_per_query=2, step=1, policy_version=0
            )
            TrajectoryWriter(workdir.path, run.codec).write(1, groups, np.zeros((len(groups), 2, 2), np.float32))
    kinds = ("reply", "error", "html", "inside", "escaped")
    assert workers.kinds == {f"{kind} {how}" for kind in kinds for how in ("whole", "streamed")}
    out, err = capfd.readouterr()
    files = assert_secret(tmp_path / "left", out + err + caplog.text)
    assert {"calls.jsonl", "run/config.json", "run/ledger.jsonl", "run/trajectories/step_000001.jsonl"} <= set(files)
    assert any(name.startswith("run/journal/") for name in files)
    replies = (tmp_path / "left" / "calls.jsonl").read_text()
    assert '***","input_tokens"' in replies  # where the key stood


async def test_a_refusal_says_which_key_without_saying_it(workers, overrides, tmp_path, capfd, caplog):
    caplog.set_level(logging.DEBUG)
    workers.refuses = True
    try:
        with Workdir(tmp_path / "left" / "run") as workdir:
            async with open_parts(load_config(TINY, overrides), workdir) as run:
                by_id = {query.id: query for query in run.test}
                sampler = ScriptedSampler(run.codec, script(BestPlans(Mode.SINGLE), by_id.__getitem__))
                with pytest.raises(WorkerRefusedError) as error:
                    await roll_out(run, sampler, run.test, "test", "test")
    finally:
        workers.refuses = False
    said = "".join(traceback.format_exception(error.value)) + repr(error.value)
    assert "bad key ***" in said and (ENV_NAME in said or "file.key" in said)
    assert_secret(tmp_path / "left", said + "".join(capfd.readouterr()) + caplog.text)


def test_the_doctor_says_no_key(workers, overrides, tmp_path, capfd, caplog):
    argv = ["doctor", "--config", TINY, *(f"--config.{key}={text}" for key, text in overrides)]
    for refuses in (False, True):
        workers.refuses = refuses
        try:
            assert cli.main(argv) in (0, 1)
        finally:
            workers.refuses = False
    out, err = capfd.readouterr()
    assert "***" in out and found_in((out + err + caplog.text).encode()) == []


@pytest.mark.full
def test_a_whole_run_leaves_no_key(workers, overrides, run, environment, warm, tmp_path, monkeypatch):
    monkeypatch.setitem(environment, ENV_NAME, ENV_KEY)  # of the processes that `run` starts
    workdir = tmp_path / "left" / "run"
    workdir.parent.mkdir()
    settings = [*overrides, ("init.path", str(warm)), ("steps", "2"), ("log.tensorboard", "true")]
    argv = [f"--config.{key}={text}" for key, text in settings]
    done = run("train", workdir, *argv)
    files = assert_secret(tmp_path / "left", done.stdout + done.stderr)
    for part in ("checkpoints/2/metadata", "metrics.jsonl", "tensorboard/", "report/report.md", "evaluation/trained"):
        assert any(name.startswith(f"run/{part}") for name in files), part
