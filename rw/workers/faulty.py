"""How an attempt goes wrong on the wire: each fault as a client would meet it, for whole replies and for streams.

Knows when nothing goes wrong, too, since most faults are a small step away from that. Whether an attempt goes wrong is
decided elsewhere.
"""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
import enum
import json
import socket
import struct
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from aiohttp import web

from rw.workers.completion import Completion, CompletionCall, completion_chunks, completion_json, event, events

RETRY_AFTER_S = 1.0  # of Fault.HTTP_429_RETRY_AFTER
TRICKLE_S = 0.05  # between two bytes of Fault.SLOW
HUGE_BYTES = 200_000_000
STREAM_BYTES = 2048  # a stream is sent in pieces of this size, about 10 events; where they are cut means nothing
_BLOCK = "x" * 65536  # a huge body is written block by block and never held


class Fault(enum.Enum):
    """How an attempt can go wrong. What only a stream can do wrong has a counterpart where none was asked for."""

    HANG = "hang"  # no answer until the client leaves
    HANG_AFTER_HEADERS = "hang_after_headers"
    HANG_IN_BODY = "hang_in_body"  # half of the answer, then nothing
    SLOW = "slow"  # the right answer, a byte at a time
    RESET = "reset"  # the connection is reset before any answer
    RESET_IN_BODY = "reset_in_body"
    CUT_BODY = "cut_body"  # the connection is closed in good order, but before the promised end
    HTTP_429 = "http_429"
    HTTP_429_RETRY_AFTER = "http_429_retry_after"  # with Retry-After in seconds
    HTTP_429_RETRY_DATE = "http_429_retry_date"  # with Retry-After as a date, 1 to 2 seconds from now
    HTTP_500 = "http_500"
    HTTP_502_HTML = "http_502_html"  # a gateway's web page
    HTTP_503_HTML = "http_503_html"
    HTTP_400 = "http_400"
    HTTP_404 = "http_404"
    REFUSED = "refused"  # 401
    HTTP_402 = "http_402"
    HTTP_403 = "http_403"
    HTML = "html"  # 200 with a web page
    TRUNCATED_JSON = "truncated_json"
    WRONG_SCHEMA = "wrong_schema"  # JSON of another API
    NO_CHOICES = "no_choices"
    EMPTY_CHOICE = "empty_choice"  # usage reported, text empty
    NO_USAGE = "no_usage"
    NEGATIVE_USAGE = "negative_usage"
    ABSURD_USAGE = "absurd_usage"  # more tokens than any context window holds
    DUPLICATE_CHUNKS = "duplicate_chunks"  # all but text, which a client could not tell from a Worker that stutters
    CUT_STREAM = "cut_stream"  # ends in good order, but in the middle: no reason, no usage, no [DONE]
    STREAM_ERROR = "stream_error"  # an error object in place of the second half
    HUGE_BODY = "huge_body"
    GZIP_BOMB = "gzip_bomb"  # the same, in a thousandth of the bytes


REFUSALS = frozenset({Fault.REFUSED, Fault.HTTP_402, Fault.HTTP_403})  # a client must not come back
REJECTIONS = REFUSALS | {Fault.HTTP_400, Fault.HTTP_404}  # the same request cannot succeed
BAD_USAGE = frozenset({Fault.NO_USAGE, Fault.NEGATIVE_USAGE, Fault.ABSURD_USAGE})  # the reply itself is good
PASSING = tuple(f for f in Fault if f not in REJECTIONS | BAD_USAGE | {Fault.DUPLICATE_CHUNKS})  # a retry can heal it

_STATUS = {
    Fault.HTTP_429: 429,
    Fault.HTTP_429_RETRY_AFTER: 429,
    Fault.HTTP_429_RETRY_DATE: 429,
    Fault.HTTP_500: 500,
    Fault.HTTP_502_HTML: 502,
    Fault.HTTP_503_HTML: 503,
    Fault.HTTP_400: 400,
    Fault.HTTP_404: 404,
    Fault.REFUSED: 401,
    Fault.HTTP_402: 402,
    Fault.HTTP_403: 403,
}
_PAGE = "<!doctype html><html><head><title>{}</title></head><body>The server is having a bad day.</body></html>"


async def respond(
    request: web.Request, call: CompletionCall, completion: Completion, fault: Fault | None = None
) -> web.StreamResponse:
    """Answers a request with this completion, or as the fault has it."""
    if fault in _STATUS:
        return _status(fault)
    if fault is Fault.HTML:
        return web.Response(text=_PAGE.format("Sign in"), content_type="text/html")
    if fault is Fault.HANG:
        await asyncio.Event().wait()
    if fault is Fault.RESET:
        _reset(request)
        return web.Response()  # to a connection that is gone
    if fault in (Fault.HUGE_BODY, Fault.GZIP_BOMB):
        return await _send_huge(request, call, packed=fault is Fault.GZIP_BOMB)
    parts = said(call, completion, fault)
    if fault in _SENDERS:
        return await _send(request, call, _SENDERS[fault](request, parts), sum(map(len, parts)))
    if not call.stream:
        return web.Response(body=parts[0], content_type="application/json")
    return await _send(request, call, _whole(parts))


def said(call: CompletionCall, completion: Completion, fault: Fault | None = None) -> list[bytes]:
    """The body of a 200: one part for a whole reply, one for each event of a stream."""
    if fault is Fault.EMPTY_CHOICE:
        completion = dataclasses.replace(completion, text="")
    elif fault is Fault.NEGATIVE_USAGE:
        completion = dataclasses.replace(completion, input_tokens=-completion.input_tokens - 1, output_tokens=-1)
    elif fault is Fault.ABSURD_USAGE:
        completion = dataclasses.replace(completion, input_tokens=10**9, output_tokens=10**9)
    if call.stream:
        return _stream(list(completion_chunks(call, completion)), fault)
    return [_body(completion_json(call, completion), fault)]


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """An error in the shape of the API."""
    return web.json_response(_error(status, message), status=status, headers=headers)


def _body(answer: dict[str, Any], fault: Fault | None) -> bytes:
    if fault is Fault.WRONG_SCHEMA:
        answer = {"status": "ok", "outputs": [{"generated_text": answer["choices"][0]["message"]["content"]}]}
    elif fault is Fault.NO_CHOICES:
        answer["choices"] = []
    elif fault is Fault.NO_USAGE:
        del answer["usage"]
    elif fault is Fault.STREAM_ERROR:
        answer = _error(502, "upstream failed") | {"usage": None}
    body = json.dumps(answer).encode()
    return body[: len(body) // 2] if fault in (Fault.TRUNCATED_JSON, Fault.CUT_STREAM) else body


def _stream(chunks: list[dict[str, Any]], fault: Fault | None) -> list[bytes]:
    half = len(chunks) // 2
    if fault is Fault.WRONG_SCHEMA:
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        return events({"token": {"text": delta.get("content")}} for delta in deltas)
    if fault is Fault.NO_CHOICES:
        return events(chunk | {"choices": []} for chunk in chunks)
    if fault is Fault.NO_USAGE:
        return events(chunk for chunk in chunks if chunk["choices"])
    if fault is Fault.DUPLICATE_CHUNKS:
        is_text = [bool(chunk["choices"] and chunk["choices"][0]["delta"].get("content")) for chunk in chunks]
        copies = [chunk for chunk, once in zip(chunks, is_text, strict=True) for chunk in [chunk] * (2 - once)]
        return [*events(copies), *events([])]
    if fault is Fault.CUT_STREAM:
        return [event(chunk) for chunk in chunks[:half]]
    if fault is Fault.STREAM_ERROR:
        return [*(event(chunk) for chunk in chunks[:half]), event(_error(502, "upstream failed"))]
    if fault is Fault.TRUNCATED_JSON:
        whole = [event(chunk) for chunk in chunks[: half + 1]]
        return [*whole[:-1], whole[-1][: len(whole[-1]) // 2] + b"\n\n", *events([])]
    return events(chunks)


def _error(status: int, message: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status if status >= 500 else None}}


def _status(fault: Fault) -> web.Response:
    status = _STATUS[fault]
    if fault in (Fault.HTTP_502_HTML, Fault.HTTP_503_HTML):
        return web.Response(text=_PAGE.format(status), status=status, content_type="text/html")
    headers = {}
    if fault is Fault.HTTP_429_RETRY_AFTER:
        headers = {"Retry-After": f"{RETRY_AFTER_S:g}"}
    elif fault is Fault.HTTP_429_RETRY_DATE:  # dates have whole seconds: one more, so that it lies ahead
        headers = {"Retry-After": email.utils.formatdate(time.time() + 2, usegmt=True)}
    return error_response(status, f"injected fault: {fault.value}", headers)


async def _send(
    request: web.Request, call: CompletionCall, parts: AsyncIterator[bytes], length: int | None = None
) -> web.StreamResponse:
    """Sends parts as they come. A length is promised for whole replies only, as real servers do."""
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    if not call.stream:
        headers = {"Content-Type": "application/json"} | ({"Content-Length": str(length)} if length else {})
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    async for part in parts:
        await response.write(part)
    return response


async def _whole(parts: list[bytes]) -> AsyncIterator[bytes]:
    body = b"".join(parts)
    for start in range(0, len(body), STREAM_BYTES):
        yield body[start : start + STREAM_BYTES]


async def _hang_at_once(request: web.Request, parts: list[bytes]) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def _hang_halfway(request: web.Request, parts: list[bytes]) -> AsyncIterator[bytes]:
    yield _first_half(parts)
    await asyncio.Event().wait()


async def _trickle(request: web.Request, parts: list[bytes]) -> AsyncIterator[bytes]:
    for byte in b"".join(parts):
        yield bytes([byte])
        await asyncio.sleep(TRICKLE_S)


async def _reset_halfway(request: web.Request, parts: list[bytes]) -> AsyncIterator[bytes]:
    yield _first_half(parts)
    await asyncio.sleep(0.01)  # a reset discards what is still under way
    _reset(request)


async def _close_halfway(request: web.Request, parts: list[bytes]) -> AsyncIterator[bytes]:
    yield _first_half(parts)
    if request.transport is not None:
        request.transport.close()


_SENDERS: dict[Fault, Callable[[web.Request, list[bytes]], AsyncIterator[bytes]]] = {
    Fault.HANG_AFTER_HEADERS: _hang_at_once,
    Fault.HANG_IN_BODY: _hang_halfway,
    Fault.SLOW: _trickle,
    Fault.RESET_IN_BODY: _reset_halfway,
    Fault.CUT_BODY: _close_halfway,
}


def _first_half(parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return body[: len(body) // 2]


def _reset(request: web.Request) -> None:
    transport = request.transport
    if transport is not None:
        # Closing with zero linger sends RST instead of an orderly end.
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


async def _send_huge(request: web.Request, call: CompletionCall, packed: bool) -> web.StreamResponse:
    kind = "text/event-stream" if call.stream else "application/json"
    response = web.StreamResponse(headers={"Content-Type": kind} | ({"Content-Encoding": "gzip"} if packed else {}))
    await response.prepare(request)
    packer = zlib.compressobj(level=1, wbits=31)
    for block in _huge(call):
        await response.write(packer.compress(block) + packer.flush(zlib.Z_SYNC_FLUSH) if packed else block)
        await asyncio.sleep(0)  # a bomb never fills the socket, so that writing alone would keep the loop
    if packed:
        await response.write(packer.flush())
    return response


def _huge(call: CompletionCall) -> Iterator[bytes]:
    blocks = HUGE_BYTES // len(_BLOCK) + 1
    if call.stream:
        chunk = next(iter(completion_chunks(call, Completion(_BLOCK, 1, 1))))
        chunk["choices"][0]["delta"] = {"content": _BLOCK}
        for _ in range(blocks):
            yield event(chunk)
        yield from events([])
    else:
        head, tail = json.dumps(completion_json(call, Completion("\n", 1, 1))).encode().split(b"\\n")
        yield head
        for _ in range(blocks):
            yield _BLOCK.encode()
        yield tail
