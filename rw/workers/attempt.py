"""One attempt at a call: a request on the wire, under its deadlines, and what came back.

Knows nothing of retries, money or other calls. Its session needs `reach_trace()`, or no attempt learns whether its
server was reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping

import aiohttp

from rw.errors import FailureCause
from rw.workers.config import ClientConfig
from rw.workers.keys import KeyMask
from rw.workers.reply import Failure, Reply, TokenBounds, read_reply
from rw.workers.retry import parse_retry_after
from rw.workers.sse import EventParser
from rw.workers.stream import StreamedAnswer

_CHUNK_BYTES = 64 * 1024
_STREAM_OVERHEAD = 16  # bytes of a stream for one of its text: a chunk of one token bears some 300 bytes of JSON
_END_S = 0.5  # to wait for the orderly end of a stream that is over, without which its connection cannot be used again


@dataclasses.dataclass(eq=False)
class Attempt:
    """A request to be sent once; `has_connected` and `was_plain` say afterwards how it went."""

    session: aiohttp.ClientSession
    url: str
    headers: Mapping[str, str]
    body: bytes
    streamed: bool  # whether the body asks for a stream
    bounds: TokenBounds
    mask: KeyMask
    config: ClientConfig
    remaining_s: float | None  # of the call's deadline
    wall_clock: Callable[[], float]
    has_connected: bool = False  # the server may have read the request, whatever happened later
    was_plain: bool = False  # answered as one body

    async def run(self) -> Reply | Failure:
        """Sends the request and reads the answer; every failure but cancellation is returned."""
        try:
            outcome = await self._run()
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            outcome = Failure(FailureCause.CONNECT, _say(error))
        except aiohttp.ClientResponseError as error:
            outcome = Failure(FailureCause.BAD_RESPONSE, _say(error))
        except (aiohttp.ClientError, OSError) as error:
            outcome = Failure(FailureCause.RESET, _say(error))
        if isinstance(outcome, Reply):
            return outcome
        return dataclasses.replace(outcome, message=self.mask.in_message(outcome.message))

    async def _run(self) -> Reply | Failure:
        began_s = asyncio.get_running_loop().time()
        limit_s, is_deadline = self.config.attempt_timeout_s, False
        if self.remaining_s is not None and (limit_s is None or self.remaining_s <= limit_s):
            limit_s, is_deadline = self.remaining_s, True
        first_s = self.config.first_byte_timeout_s if self.streamed else None
        awaits_first = first_s is not None and (limit_s is None or first_s < limit_s)
        try:
            # Around the whole exchange: a socket timeout would start anew with every byte that trickles in.
            async with asyncio.timeout(first_s if awaits_first else limit_s) as timeout:

                def begun() -> None:
                    nonlocal awaits_first
                    if awaits_first and not timeout.expired():
                        awaits_first = False
                        timeout.reschedule(None if limit_s is None else began_s + limit_s)

                return await self._exchange(begun)
        except aiohttp.ConnectionTimeoutError:
            raise
        except TimeoutError:
            took = f"after {asyncio.get_running_loop().time() - began_s:.1f} s"
            if awaits_first:
                return Failure(FailureCause.TIMEOUT, f"nothing of a streamed answer {took}")
            cause = FailureCause.DEADLINE if is_deadline else FailureCause.TIMEOUT
            return Failure(cause, f"no complete answer {took}")

    async def _exchange(self, begun: Callable[[], None]) -> Reply | Failure:
        async with self.session.post(
            self.url, data=self.body, headers=self.headers, allow_redirects=False, trace_request_ctx=self
        ) as response:
            content_type = response.headers.get("Content-Type", "").lower()
            retry_after_s = parse_retry_after(response.headers.get("Retry-After"), self.wall_clock())
            if self.streamed and response.status == 200 and "event-stream" in content_type:
                return await self._read_stream(response, retry_after_s, begun)
            self.was_plain = True
            begun()
            received = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                received += chunk
                if len(received) > self.config.max_body_bytes:
                    return self._give_up(response, f"a body over {self.config.max_body_bytes} bytes")
            return read_reply(response.status, content_type, bytes(received), retry_after_s, self.bounds, self.mask)

    async def _read_stream(
        self, response: aiohttp.ClientResponse, retry_after_s: float | None, begun: Callable[[], None]
    ) -> Reply | Failure:
        parser, answer, received = EventParser(), StreamedAnswer(), 0
        most = self.config.max_body_bytes
        try:
            async for chunk in response.content.iter_any():
                received += len(chunk)
                for event in parser.feed(chunk):
                    answer.take(event)
                if answer.has_begun:
                    begun()
                if received > most * _STREAM_OVERHEAD or answer.text_length > most:
                    return self._give_up(response, f"a stream over {most} bytes of text")
                if answer.is_over:
                    await _read_end(response)
                    break
            else:
                for event in parser.finish():
                    answer.take_last(event)
        except (aiohttp.ClientError, OSError):
            if not answer.is_complete:  # what breaks behind the end of an answer takes nothing from it
                raise
        return answer.outcome(retry_after_s, self.bounds, self.mask)

    def _give_up(self, response: aiohttp.ClientResponse, message: str) -> Failure:
        response.close()  # or the connection would be kept to read the rest
        return Failure(FailureCause.BAD_RESPONSE, message)


def reach_trace() -> aiohttp.TraceConfig:
    """Tells each attempt that it has a connection: from then on it may have been read, and billed."""

    async def connected(session: aiohttp.ClientSession, context, params) -> None:
        context.trace_request_ctx.has_connected = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    return trace


async def _read_end(response: aiohttp.ClientResponse) -> None:
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_END_S):
            while not response.content.at_eof():
                await response.content.readany()


def _say(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
