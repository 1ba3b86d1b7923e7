"""An OpenAI-compatible server on loopback for Workers that are functions: simulated ones, recorded ones, faulty ones.

Product code, not a test double: quickstart runs and tests reach these Workers through the client, the sockets and the
JSON that real ones are reached through. It knows nothing of questions or answers; a handler does.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import logging
import socket
from collections.abc import Callable, Sequence

from aiohttp import web

from rw.workers.admission import AdmissionLimit
from rw.workers.completion import Completion, CompletionCall, CompletionError, read_call
from rw.workers.faulty import Fault, error_response, respond

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
_BACKLOG = 1024  # connections that arrive in one loop iteration, as those of a whole batch do


Handler = Callable[[CompletionCall], Completion]
Latency = Callable[[CompletionCall], float]  # seconds
Faults = Callable[[CompletionCall, int], Fault | None]  # second argument: the attempt of this call, from 1


class LoopbackServer:
    """A running server; `requests` counts the completions asked for, retries too, `abandoned` those left unanswered."""

    def __init__(
        self,
        handler: Handler,
        latency: Latency | None,
        faults: Faults | None,
        models: Sequence[str],
        host: str,
        limit: AdmissionLimit | None = None,
    ):
        self._handler, self._latency, self._faults, self._limit = handler, latency, faults, limit
        self._models, self._host = tuple(models), host
        self._attempts: collections.Counter[bytes] = collections.Counter()
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None  # holds the port; what accepts is a duplicate of it
        self._site: web.SockSite | None = None
        self.requests = 0
        self.abandoned = 0  # the client left, or close() came first
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
        self.port = port
        await self.accept_connections()

    async def close(self) -> None:
        """Stops listening and drops open requests; closing twice is harmless."""
        await self.refuse_connections()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @property
    def open_connections(self) -> int:
        """Connections that were accepted and are not closed."""
        return len(self._runner.server.connections) if self._runner and self._runner.server else 0

    async def refuse_connections(self) -> None:
        """Closes the port: new connections are refused, open ones go on."""
        await self.stall_connections()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def stall_connections(self) -> None:
        """New connections are established and then not accepted, as by a server that is too busy; open ones go on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    async def accept_connections(self) -> None:
        """Ends either: the same port is open, and whoever waited at it is served."""
        if self._listener is None:
            self._listener = socket.create_server((self._host, self.port), backlog=_BACKLOG)
            self.port = self._listener.getsockname()[1]
        if self._site is None:
            self._site = web.SockSite(self._runner, self._listener.dup(), backlog=_BACKLOG)
            await self._site.start()

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self._models]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        except ConnectionError:  # noticed while writing, before the connection told us
            self.abandoned += 1
            return web.Response()  # to nobody

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            call = read_call(await request.read(), request.headers.get("x-rw-call"))
            completion = self._handler(call)
        except CompletionError as error:
            return error_response(error.status, str(error))
        except Exception as error:  # a handler's bug must look like a Worker's 500, with its traceback in the log
            _LOG.exception("loopback handler failed")
            return error_response(500, f"{type(error).__name__}: {error}")
        retry_after_s = None if self._limit is None else self._limit.retry_after_s(call.model)
        if retry_after_s is not None:  # with decimals, which tests in scaled time need
            return error_response(429, "rate limit reached", {"Retry-After": f"{retry_after_s:.3f}"})
        if self._latency is not None or self._faults is not None:
            call = dataclasses.replace(call, attempt=self._count_attempt(call))
        if self._latency is not None:
            await asyncio.sleep(self._latency(call))
        fault = None if self._faults is None else self._faults(call, call.attempt)
        return await respond(request, call, completion, fault)

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
    limit: AdmissionLimit | None = None,
) -> LoopbackServer:
    """Starts a server in the running event loop.

    Args:
        handler: a pure function, called at once in the loop: keep it quick.
        latency: seconds to wait before each answer, by call and its `attempt`.
        faults: what goes wrong, by call and attempt; None answers properly. Decided after the latency.
        models: what `/v1/models` lists.
        limit: requests beyond it are answered at once with 429 and Retry-After; they are no attempts to `faults`.
    """
    server = LoopbackServer(handler, latency, faults, models, host, limit)
    await server.start(port)
    return server
