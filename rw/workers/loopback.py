"""An OpenAI-compatible server on loopback for Workers that are functions: simulated ones, recorded ones, faulty ones.

Product code, not a test double: quickstart runs and tests reach these Workers through the client, the sockets and the
JSON that real ones are reached through. It knows nothing of questions or answers; a handler does.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import hashlib
import json
import logging
import socket
import struct
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from rw.workers.completion import (
    Completion,
    CompletionCall,
    CompletionError,
    completion_chunks,
    completion_json,
    events,
    read_call,
)

__all__ = [
    "Completion",
    "CompletionCall",
    "CompletionError",
    "Fault",
    "Faults",
    "Handler",
    "Latency",
    "LoopbackServer",
    "serve",
]

_LOG = logging.getLogger(__name__)
_TRICKLE_S = 0.05  # between two bytes of Fault.SLOW
_BACKLOG = 1024  # connections that arrive in one loop iteration, as those of a whole batch do


class Fault(enum.Enum):
    """How an attempt can go wrong."""

    HANG = "hang"  # no answer until the client leaves
    RESET = "reset"  # the connection is reset
    HTTP_429 = "http_429"
    HTTP_429_RETRY_AFTER = "http_429_retry_after"  # with Retry-After: 1
    HTTP_500 = "http_500"
    HTTP_400 = "http_400"
    REFUSED = "refused"  # 401
    HTML = "html"  # 200 with a web page
    TRUNCATED_JSON = "truncated_json"
    NO_CHOICES = "no_choices"
    EMPTY_CHOICE = "empty_choice"  # usage reported, text empty
    NO_USAGE = "no_usage"
    SLOW = "slow"  # the right answer, a byte at a time


Handler = Callable[[CompletionCall], Completion]
Latency = Callable[[CompletionCall], float]  # seconds
Faults = Callable[[CompletionCall, int], Fault | None]  # second argument: the attempt of this call, from 1

_ERROR_STATUS = {
    Fault.HTTP_429: 429,
    Fault.HTTP_429_RETRY_AFTER: 429,
    Fault.HTTP_500: 500,
    Fault.HTTP_400: 400,
    Fault.REFUSED: 401,
}


class LoopbackServer:
    """A running server; `requests` counts the completions asked for, retries too."""

    def __init__(
        self, handler: Handler, latency: Latency | None, faults: Faults | None, models: Sequence[str], host: str
    ):
        self._handler, self._latency, self._faults = handler, latency, faults
        self._models, self._host = tuple(models), host
        self._attempts: collections.Counter[bytes] = collections.Counter()
        self._runner: web.AppRunner | None = None
        self.requests = 0
        self.port = 0

    @property
    def base_url(self) -> str:
        """What a WorkerEndpoint's base_url must be, `/v1` included."""
        return f"http://{self._host}:{self.port}/v1"

    async def start(self, port: int) -> None:
        """Listens; port 0 takes a free one."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._list_models)
        # Without handler_cancellation a hung request would outlive the client that gave up on it.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, port, backlog=_BACKLOG).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stops listening and drops open requests; closing twice is harmless."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self._models]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        try:
            call = read_call(await request.read(), request.headers.get("x-rw-call"))
            completion = self._handler(call)
        except CompletionError as error:
            return _error(error.status, str(error))
        except Exception as error:  # a handler's bug must look like a Worker's 500, with its traceback in the log
            _LOG.exception("loopback handler failed")
            return _error(500, f"{type(error).__name__}: {error}")
        if self._latency is not None:
            await asyncio.sleep(self._latency(call))
        fault = None if self._faults is None else self._faults(call, self._count_attempt(call))
        return await _respond(request, call, completion, fault)

    def _count_attempt(self, call: CompletionCall) -> int:
        """A retry repeats its call's header, or, where none is sent, the whole request."""
        identity = call.call_header or f"{call.seed}/{call.content}"
        key = hashlib.sha256(f"{call.model}/{identity}".encode()).digest()
        self._attempts[key] += 1
        return self._attempts[key]


async def serve(
    handler: Handler,
    host: str = "127.0.0.1",
    port: int = 0,
    latency: Latency | None = None,
    faults: Faults | None = None,
    models: Sequence[str] = (),
) -> LoopbackServer:
    """Starts a server in the running event loop.

    Args:
        handler: a pure function, called at once in the loop: keep it quick.
        latency: seconds to wait before each answer.
        faults: what goes wrong, by call and attempt; None answers properly. Decided after the latency.
        models: what `/v1/models` lists.
    """
    server = LoopbackServer(handler, latency, faults, models, host)
    await server.start(port)
    return server


async def _respond(
    request: web.Request, call: CompletionCall, completion: Completion, fault: Fault | None
) -> web.StreamResponse:
    answer = completion_json(call, completion)
    if fault in _ERROR_STATUS:
        headers = {"Retry-After": "1"} if fault is Fault.HTTP_429_RETRY_AFTER else {}
        return _error(_ERROR_STATUS[fault], f"injected fault: {fault.value}", headers)
    if fault is Fault.HANG:
        await asyncio.Event().wait()
    elif fault is Fault.RESET:
        _reset(request)
    elif fault is Fault.HTML:
        return web.Response(text="<!doctype html><title>504 Gateway Time-out</title>", content_type="text/html")
    elif fault is Fault.TRUNCATED_JSON:
        return web.Response(body=json.dumps(answer)[:-20].encode(), content_type="application/json")
    elif fault is Fault.NO_CHOICES:
        answer["choices"] = []
    elif fault is Fault.EMPTY_CHOICE:
        answer["choices"][0]["message"]["content"] = ""
    elif fault is Fault.NO_USAGE:
        del answer["usage"]
    elif fault is Fault.SLOW:
        return await _trickle(request, json.dumps(answer).encode())
    elif call.stream and fault is None:
        return await _stream(request, events(completion_chunks(call, completion)))
    return web.json_response(answer)


async def _stream(request: web.Request, parts: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    return response


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    return web.json_response({"error": error}, status=status, headers=headers)


def _reset(request: web.Request) -> None:
    transport = request.transport
    if transport is not None:
        # Closing with zero linger sends RST instead of an orderly end.
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


async def _trickle(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
    await response.prepare(request)
    for index in range(len(body)):
        await response.write(body[index : index + 1])
        await asyncio.sleep(_TRICKLE_S)
    return response
