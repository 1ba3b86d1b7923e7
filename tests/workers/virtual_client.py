"""A client whose time passes only in sleep(), and servers for it to ask."""

import asyncio
import contextlib
import socket

from aiohttp import web

from rw.types import CallId, Role
from rw.workers.http import ClientConfig, HttpWorkerClient, WorkerEndpoint
from rw.workers.interface import WorkerRequest
from rw.workers.loopback import Completion, CompletionCall
from rw.workers.pricing import Price, PriceTable

PRICES = PriceTable({"worker_1": Price(2.0, 10.0)})
COST_USD = (30 * 2.0 + 7 * 10.0) / 1e6  # of ECHO's usage


class VirtualClock:
    """Time that passes only in sleep()."""

    def __init__(self):
        self.now_s = 1000.0
        self.waits_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


def echo(call: CompletionCall) -> Completion:
    return Completion(f"echo {call.content}", 30, 7)


def endpoint(base_url: str, **fields) -> WorkerEndpoint:
    return WorkerEndpoint(**({"id": "worker_1", "description": "d", "base_url": base_url, "model": "m"} | fields))


def request(content: str = "hi", call: int = 0, worker_id: str = "worker_1") -> WorkerRequest:
    return WorkerRequest(CallId(3, 1, 4, 2, call), worker_id, "n1", Role.EXECUTOR, ("n0",), "sub", content)


def virtual_client(base_url, ledger=None, config=None, clock=None, **fields) -> HttpWorkerClient:
    clock = clock or VirtualClock()
    return HttpWorkerClient(
        [endpoint(base_url, **fields)],
        PRICES,
        ledger,
        config or ClientConfig(),
        clock=clock,
        sleep=clock.sleep,
        wall_clock=lambda: 1_790_000_000.0,
    )


@contextlib.asynccontextmanager
async def raw_server(handler, is_cancelled: bool = True):
    """A server whose handler writes whatever it likes; yields its base URL."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=is_cancelled)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]
