"""Keys: where they come from, and that they stay out of replies, messages, exceptions, logs and ledgers."""

import contextlib
import json
import logging

import pytest
from aiohttp import web

from rw.errors import ConfigError, WorkerRefusedError
from rw.types import CallId, Role
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.keys import KeyMask, read_key
from rw.workers.ledger import Ledger
from rw.workers.pricing import Price, PriceTable
from rw.workers.retry import RetryPolicy

KEY = "sk-or/Secret+1234"
ESCAPED = "".join(f"\\u{ord(c):04X}" for c in KEY)  # as a JSON writer may spell it


def worker(base_url: str = "http://h/v1", **fields) -> WorkerEndpoint:
    return WorkerEndpoint("worker_1", "d", base_url, "m", **fields)


@contextlib.asynccontextmanager
async def answering(handle):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def test_key_file_is_read_if_its_owner_alone_may(tmp_path):
    path = tmp_path / "key"
    path.write_text(f"  {KEY}\n")
    path.chmod(0o600)
    assert read_key(worker(key_file=str(path))) == KEY
    for mode in (0o640, 0o604, 0o660, 0o602, 0o601):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=r"worker_1.*chmod 600 .*key") as raised:
            read_key(worker(key_file=str(path)))
        assert "Secret" not in str(raised.value)


def test_key_file_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o400)
    assert read_key(worker(key_file="~/key")) == KEY


def test_key_file_that_is_missing_empty_or_no_text_is_named(tmp_path):
    with pytest.raises(ConfigError, match="worker_1.*absent: No such file"):
        read_key(worker(key_file=str(tmp_path / "absent")))
    for content, why in ((b" \n", "is empty"), (b"\xff\xfe", "is not text"), (b"sk-1\nsk-2", "no HTTP header")):
        path = tmp_path / "key"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=why) as raised:
            read_key(worker(key_file=str(path)))
        assert "sk-" not in str(raised.value)


def test_key_comes_from_one_place():
    with pytest.raises(ConfigError, match="worker_1: key_env and key_file are both set"):
        worker(key_env="A", key_file="b")
    assert read_key(worker()) is None
    assert read_key(worker(key_env="A"), {"A": f" {KEY} "}) == KEY


@pytest.mark.parametrize(
    "base_url",
    [
        f"https://me:{KEY[:5]}Secret@host/v1",
        "https://Secret@host/v1",
        "https://host/v1?key=Secret",
        "https://host/v1#Secret",
        "ftp://me:Secret@host/v1",
    ],
)
def test_key_in_the_url_is_refused_without_being_shown(base_url):
    with pytest.raises(ConfigError, match="worker_1.*base_url") as raised:
        worker(base_url)
    assert "Secret" not in str(raised.value)


def test_mask_finds_a_key_however_json_spells_it():
    mask = KeyMask(KEY)
    slashed = KEY.replace("/", "\\/")
    for spelled in (KEY, ESCAPED, ESCAPED.lower(), slashed, json.dumps(KEY)[1:-1]):
        assert mask.in_message(f"a {spelled} b") == "a *** b"
        assert mask.in_reply(f"a {spelled} b") == "a *** b"
    assert mask.in_message("sk-or/Secret") == "sk-or/Secret"  # a part alone is no key
    quoted = KeyMask('a"b\\c-a"b\\c-')
    assert quoted.in_message(json.dumps('x a"b\\c-a"b\\c- y')) == '"x *** y"'


@pytest.mark.parametrize("key", [None, "sk-0123456789"])
def test_messages_hold_nothing_that_steers_a_terminal_or_breaks_a_file(key):
    said = "bad \ud800 \x1b[2J\x07\x9b key\tsk-0123456789\nnaïve 😀 \u2028"
    shown = KeyMask(key).in_message(said)
    assert shown.encode() and not any(character in shown for character in "\ud800\x1b\x07\x9b")
    assert "naïve 😀" in shown and ("sk-0123456789" in shown) == (key is None)
    assert KeyMask(key).in_reply("\x1b[2J") == "\x1b[2J"  # what a Worker says is not ours to change


def test_short_keys_leave_replies_alone():
    assert KeyMask("EMPTY").in_reply("EMPTY") == "EMPTY" and KeyMask("EMPTY").in_message("EMPTY") == "***"
    assert KeyMask("x" * 11).in_reply("x" * 11) == "x" * 11 and KeyMask("x" * 12).in_reply("x" * 12) == "***"
    assert KeyMask(None).in_message("text") == "text"


ECHOES = {
    "json": (400, lambda pad: json.dumps({"error": {"message": f"{pad}key {KEY} is wrong"}})),
    "escaped": (400, lambda pad: '{"error": {"message": "' + pad + ESCAPED + '"}}'),
    "raw": (500, lambda pad: f"{pad} {KEY}"),
    "raw_escaped": (500, lambda pad: f"<p>{pad} {ESCAPED}"),
    "no_json": (200, lambda pad: f"{pad} {KEY}"),
    "no_choices": (200, lambda pad: json.dumps({"pad": pad, "key": KEY})),
    "inside": (200, lambda pad: json.dumps({"error": f"{pad} {KEY}"})),
    "reply": (200, lambda pad: json.dumps({"choices": [{"message": {"content": f"{pad} {KEY}"}}]})),
    "reason": (200, lambda pad: json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": KEY}]})),
    "refused": (401, lambda pad: json.dumps({"error": {"message": f"{pad}Bearer {KEY}"}})),
}


@pytest.mark.parametrize("padding", [0, 20, 100, 113, 285, 395, 500])
@pytest.mark.parametrize("stream", ["never", "always"])
@pytest.mark.parametrize("echo", ECHOES)
async def test_echoed_key_is_never_kept(echo, stream, padding, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("TEST_WORKER_KEY", KEY)
    status, write = ECHOES[echo]

    async def handle(req):
        assert req.headers["Authorization"] == f"Bearer {KEY}"
        body = write("x" * padding)
        if stream == "never" or status != 200 or echo == "no_json":
            return web.Response(status=status, text=body, content_type="application/json")
        body = body.replace('"message": {', '"delta": {')
        return web.Response(text=f"data: {body}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    ledger = Ledger(tmp_path / "ledger.jsonl")
    config = ClientConfig(retry=RetryPolicy(0, 0, 0, 0, 0, 0, 0))
    said = ""
    async with answering(handle) as base_url:
        endpoint = worker(base_url, key_env="TEST_WORKER_KEY", stream=stream)
        client = HttpWorkerClient([endpoint], PriceTable({"worker_1": Price(1, 1)}), ledger, config)
        with caplog.at_level(logging.DEBUG):
            try:
                request = WorkerRequest(CallId(1, 1, 1, 1, 1), "worker_1", "n1", Role.PLANNER, (), "s", "hi")
                said = repr(await client.call(request))
            except WorkerRefusedError as error:
                said = f"{error!r} {error}"
        said += repr(client)
        await client.close()
    for text in (said, caplog.text, ledger.path.read_text()):
        assert KEY not in text and "Secret" not in text and KEY[:6] not in text and ESCAPED[:24] not in text
