"""Checks of a Worker against servers with one thing wrong each: the finding, its remedy, and that no key is shown."""

import asyncio
import contextlib
import json
import pathlib
import socket
import ssl

import pytest
from aiohttp import web

from rw.workers.checkup import MOST_COMPLETIONS, State, check_worker, most_usd
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.loopback import Completion, Fault, serve

KEY = "sk-a/secret\\key-42"
CERTIFICATE = pathlib.Path(__file__).parents[1] / "data" / "tls" / "self_signed.pem"
CONFIG = ClientConfig(connect_timeout_s=2.0, attempt_timeout_s=5.0)
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}


def worker(base_url, **fields):
    given = {"id": "worker_1", "description": "d", "model": "m", "input_price": 1.0, "output_price": 2.0}
    return WorkerEndpoint(**(given | {"base_url": base_url, "stream": "auto"} | fields))


async def check(endpoint, spends=True, environment=None):
    """Findings by check; nothing of any of them shows the key."""
    findings = await check_worker(endpoint, CONFIG, spends=spends, environment=environment or {"SOME_KEY": KEY})
    said = " ".join(f"{finding.seen} {finding.remedy}" for finding in findings)
    assert KEY not in said and json.dumps(KEY)[1:-1] not in said
    return {finding.check: finding for finding in findings}


def states(findings, *checks):
    return [findings[check].state.value for check in checks]


class Server:
    """A small API whose answers a test spoils."""

    def __init__(self):
        self.models = {"data": [{"id": "m"}]}
        self.refuses = lambda body: None  # body -> (status, error message) or None
        self.reply = {"choices": [{"message": {"content": "ready"}, "finish_reason": "stop"}], "usage": USAGE}
        self.stream_usage = True
        self.streams = True
        self.asked = []

    async def complete(self, request):
        body = await request.json()
        self.asked.append(body)
        if refused := self.refuses(body):
            status, message = refused
            error = {"message": f"{message} (you sent {request.headers.get('Authorization')})"}
            return web.json_response({"error": error}, status=status)
        if not (body.get("stream") and self.streams):
            return web.json_response(self.reply)
        chunks = [{"choices": [{"index": 0, "delta": {"content": "ready"}, "finish_reason": "stop"}]}]
        chunks += [{"choices": [], "usage": USAGE}] if self.stream_usage else []
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    async def list_models(self, request):
        return web.json_response(self.models) if self.models is not None else web.Response(status=404)


@contextlib.asynccontextmanager
async def running(server, tls=None):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.complete)
    app.router.add_get("/v1/models", server.list_models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_a_good_worker_passes_every_check():
    server = Server()
    async with running(server) as url:
        found = await check(worker(url, key_env="SOME_KEY", extra_body={"reasoning": {"enabled": False}}))
    assert {name: finding.state.value for name, finding in found.items()} == {
        "price": "ok",
        "key": "ok",
        "dns": "ok",
        "tcp": "ok",
        "model": "ok",
        "context": "-",
        "completion": "ok",
        "latency": "ok",
        "seed": "ok",
        "extra_body": "ok",
        "usage": "ok",
        "stream": "ok",
    }
    assert not any(finding.remedy for finding in found.values())
    whole, streamed = server.asked
    assert whole["max_tokens"] == 16 and whole["seed"] == 42 and whole["reasoning"] == {"enabled": False}
    assert streamed["stream"] is True and streamed["stream_options"] == {"include_usage": True}


async def test_nothing_is_asked_where_nothing_may_be_spent_or_nothing_is_priced():
    server = Server()
    async with running(server) as url:
        looked = await check(worker(url), spends=False)
        unpriced = await check(worker(url, output_price=None))
    assert server.asked == []
    assert states(looked, "model", "tcp") == ["ok", "ok"] and "completion" not in looked
    assert states(unpriced, "price", "model") == ["fail", "ok"] and "input_price" in unpriced["price"].remedy


def test_the_most_that_it_can_cost():
    priced, unpriced = worker("http://h/v1"), worker("http://h/v1", id="worker_2", input_price=None)
    once = ((5 + 1024) * 1.0 + 16 * 2.0) / 1e6  # input by its bytes and room for a template, and the longest reply
    assert most_usd([priced, unpriced], "hello") == pytest.approx(MOST_COMPLETIONS * once)


async def test_refused_connections_unknown_hosts_and_missing_keys():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    refused = await check(worker(closed))
    assert states(refused, "dns", "tcp") == ["ok", "fail"] and "start the server" in refused["tcp"].remedy
    unknown = await check(worker("http://no-such-host.invalid/v1"))
    assert states(unknown, "dns") == ["fail"] and "no-such-host.invalid has no address" in unknown["dns"].seen
    assert "tcp" not in unknown
    server = Server()
    async with running(server) as url:
        missing = await check(worker(url, key_env="OTHER_KEY"))
    assert states(missing, "key", "tcp") == ["fail", "ok"] and "model" not in missing and server.asked == []
    assert missing["key"].remedy == "set OTHER_KEY before the run is started"


async def test_certificates_that_cannot_be_trusted_and_servers_without_tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with running(Server(), tls=context) as url:
        self_signed = await check(worker(url))
    assert states(self_signed, "tls") == ["fail"] and "self-signed" in self_signed["tls"].seen
    assert "SSL_CERT_FILE" in self_signed["tls"].remedy
    async with running(Server()) as url:
        plain = await check(worker(url.replace("http:", "https:")))
    assert states(plain, "tls") == ["fail"] and "take http://" in plain["tls"].remedy


async def test_a_server_that_says_nothing_to_a_tls_greeting():
    mute = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with mute:
        url = f"https://127.0.0.1:{mute.sockets[0].getsockname()[1]}/v1"
        findings = await check_worker(worker(url), ClientConfig(connect_timeout_s=0.2), spends=False)
    (found,) = (finding for finding in findings if finding.check == "tls")
    assert found.state is State.FAIL and "no connection after 0." in found.seen and "wants http://" in found.remedy


async def test_a_base_url_that_leads_nowhere():
    server = Server()
    async with running(server) as url:
        found = await check(worker(f"{url}/chat/completions"))
    assert states(found, "model", "completion") == ["-", "fail"]
    assert "must end before /chat/completions" in found["completion"].remedy


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_a_key_that_is_refused(status):
    server = Server()
    server.refuses = lambda body: (status, "no")
    async with running(server) as url:
        found = await check(worker(url, key_env="SOME_KEY"))
        keyless = await check(worker(url))
    assert states(found, "key") == ["fail"] and f"status {status}: no (you sent Bearer ***)" in found["key"].seen
    assert found["key"].remedy.startswith("check SOME_KEY") and len(server.asked) == 2
    assert keyless["key"].remedy == "the server wants a key: name its place in key_env or key_file"


async def test_a_model_that_the_server_does_not_have():
    server = Server()
    server.models = {"data": [{"id": "org/model-a"}, {"id": "other"}]}
    server.refuses = lambda body: (404, "no such model")
    async with running(server) as url:
        found = await check(worker(url, model="org/model"))
        looked = await check(worker(url, model="org/model"), spends=False)
        server.refuses = lambda body: None
        answered = await check(worker(url, model="org/model"))
    assert states(found, "model", "completion") == ["fail", "fail"]
    assert "did you mean 'org/model-a'?" in found["model"].remedy
    assert states(looked, "model") == ["fail"] and states(answered, "model") == ["warn"]
    server.models = {"data": [{"id": "path.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 16384}}]}
    async with running(server) as url:
        assert states(await check(worker(url), spends=False), "model", "context") == ["warn", "ok"]
    server.models = None
    async with running(server) as url:
        assert states(await check(worker(url)), "model", "completion") == ["-", "ok"]


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        ({"max_model_len": 4096}, "fail"),
        ({"max_model_len": 6000}, "warn"),
        ({"max_model_len": 4097}, "warn"),
        ({"max_model_len": 32768}, "ok"),
        ({"context_length": 131072, "top_provider": {"context_length": 4000}}, "fail"),
        ({"meta": {"n_ctx": 16384, "n_ctx_train": 2048}}, "ok"),
        ({"context_length": None, "meta": None}, "-"),
    ],
)
async def test_context_limits_as_servers_tell_them(entry, state):
    server = Server()
    server.models = {"data": [{"id": "m", **entry}]}
    async with running(server) as url:
        assert states(await check(worker(url), spends=False), "context") == [state]
        server.models = {"data": [{"id": "m", "max_model_len": 2048}]}
        short = (await check(worker(url, max_output_tokens=64), spends=False))["context"]
    assert short.state is State.WARN and "leave 1984" in short.seen and "lower max_output" not in short.remedy


@pytest.mark.parametrize(
    ("field", "check_name", "remedy"),
    [
        ("seed", "seed", "set seed: null"),
        ("odd", "extra_body", "leave out of extra_body"),
        ("max_tokens", "max_tokens_key", "set max_tokens_key: max_completion_tokens"),
    ],
)
async def test_the_part_of_the_request_that_is_refused_is_found(field, check_name, remedy):
    server = Server()
    server.refuses = lambda body: (400, f"unknown field {field}") if field in body else None
    async with running(server) as url:
        found = await check(worker(url, extra_body={"odd": 1}))
    assert states(found, check_name) == ["fail"] and remedy in found[check_name].remedy
    assert f"refused: status 400: unknown field {field}" in found[check_name].seen
    assert len(server.asked) <= MOST_COMPLETIONS and "usage" not in found


@pytest.mark.parametrize(("stream", "state"), [("auto", "warn"), ("always", "fail"), ("never", "-")])
async def test_a_stream_without_usage(stream, state):
    server = Server()
    server.stream_usage = False
    async with running(server) as url:
        found = await check(worker(url, stream=stream))
    assert states(found, "usage", "stream") == ["ok", state]
    assert (found["stream"].remedy == "set stream: never") is (stream != "never")


async def test_a_server_that_does_not_stream():
    server = Server()
    server.streams = False
    async with running(server) as url:
        ignored = await check(worker(url))
        server.refuses = lambda body: (400, "no streams here") if body.get("stream") else None
        refused = await check(worker(url))
    assert "answers in one piece" in ignored["stream"].seen and states(ignored, "stream") == ["warn"]
    assert "no streams here" in refused["stream"].seen and states(refused, "stream", "usage") == ["warn", "ok"]


async def test_a_worker_that_thinks_first():
    server = Server()
    server.reply = {"choices": [{"message": {"content": ""}, "finish_reason": "length"}], "usage": USAGE}
    async with running(server) as url:
        silent = await check(worker(url))
        server.reply = {"choices": [{"message": {"content": "<think>\nhm"}}], "usage": USAGE}
        aloud = await check(worker(url))
    for found in (silent, aloud):
        assert states(found, "completion", "usage") == ["warn", "ok"]
        assert "thinking off" in found["completion"].remedy


@pytest.mark.parametrize(
    ("fault", "check_name", "seen"),
    [
        (Fault.NO_USAGE, "usage", "no usage reported"),
        (Fault.NEGATIVE_USAGE, "usage", "usage that cannot be true"),
        (Fault.HTML, "completion", "is not JSON"),
        (Fault.HTTP_500, "completion", "status 500"),
        (Fault.HTTP_429, "completion", "status 429"),
        (Fault.RESET, "completion", "ServerDisconnectedError|ClientOSError|reset"),
    ],
)
async def test_faults_of_the_loopback_server(fault, check_name, seen):
    server = await serve(lambda call: Completion("ready", 9, 1), faults=lambda call, attempt: fault, models=["m"])
    try:
        found = await check(worker(server.base_url))
    finally:
        await server.close()
    assert states(found, check_name) == ["fail"] and found[check_name].remedy
    assert any(part in found[check_name].seen for part in seen.split("|")), found[check_name].seen


async def test_a_server_that_never_answers_is_given_up():
    server = await serve(lambda call: Completion("ready", 9, 1), faults=lambda call, attempt: Fault.HANG, models=["m"])
    try:
        config = ClientConfig(connect_timeout_s=2.0, attempt_timeout_s=0.2)
        findings = await asyncio.wait_for(check_worker(worker(server.base_url), config, spends=True), 10)
    finally:
        await server.close()
    (failed,) = [finding for finding in findings if finding.state is State.FAIL]
    assert failed.check == "completion" and "does not answer" in failed.remedy


@pytest.mark.parametrize("status", [200, 400, 401, 500])
async def test_whatever_a_server_says_can_be_printed(status):
    server = Server()
    hostile = "\ud800 \x1b[2J [/red]"
    server.models = {"data": [{"id": hostile, "owned_by": [1], "meta": 7, "max_model_len": "8"}]}
    server.reply["choices"][0]["finish_reason"] = hostile
    server.reply["usage"] = {"prompt_tokens": hostile, "completion_tokens": 1}
    if status != 200:
        server.refuses = lambda body: (status, hostile)
    async with running(server) as base_url:
        findings = await check(worker(base_url))
    said = " ".join(finding.seen + finding.remedy for finding in findings.values())
    assert said.encode() and "\x1b" not in said and "\ufffd" in said
