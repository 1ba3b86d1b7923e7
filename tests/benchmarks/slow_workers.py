"""Workers on loopback that take as long as they are told, in a process of their own, and rw's client of them. No jax.

`python slow_workers.py` is that process: it prints its URL and answers until its input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys

from rw.types import CallId
from rw.workers.completion import Completion
from rw.workers.config import ClientConfig, WorkerEndpoint
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.loopback import serve
from rw.workers.pricing import PriceTable

REPLY = "done"
MOST_AT_ONCE = 2048


class SlowWorkers:
    """The Workers' process and a client of it, which belongs to the event loop of its first call."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        url = self._process.stdout.readline().strip()
        endpoint = WorkerEndpoint(
            "worker", "It waits.", url, "worker", input_price=1.0, output_price=1.0, max_concurrent=MOST_AT_ONCE
        )
        self._client = HttpWorkerClient([endpoint], PriceTable.from_endpoints([endpoint]), None, ClientConfig())
        self._calls = itertools.count()

    async def wait(self, seconds: float) -> None:
        """One call that is answered after so many seconds. RuntimeError where it is not."""
        call = CallId(0, next(self._calls), 0, 0, 0)
        answer = await self._client.call(WorkerRequest(call, "worker", "n1", None, (), "", content=repr(seconds)))
        if answer.output != REPLY:
            raise RuntimeError(f"a Worker failed: {answer}")

    async def close(self) -> None:
        """Ends client and process."""
        await self._client.close()
        self._process.kill()  # it has nothing to lose
        self._process.communicate()


async def main() -> None:
    server = await serve(lambda call: Completion(REPLY, 1, 1), latency=lambda call: float(call.content))
    print(server.base_url, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.close()


if __name__ == "__main__":
    asyncio.run(main())
