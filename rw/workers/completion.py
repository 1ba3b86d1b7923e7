"""Chat completions as the OpenAI API writes them: what a request asks, and a reply as one JSON body or as a stream.

Knows no sockets. All of it is a function of the call alone, so that equal runs get equal bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

DONE = b"data: [DONE]\n\n"  # ends every stream
_PIECES = re.compile(r"\s*\S{1,8}|\s+$")


@dataclasses.dataclass(frozen=True)
class CompletionCall:
    """What a request asks."""

    model: str
    content: str  # of the last user message
    call_header: str | None  # x-rw-call, "step/group/rollout/turn/call"
    seed: int | None
    max_tokens: int | None
    temperature: float | None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # every other key of the body
    stream: bool = False
    include_usage: bool = False  # of a stream; one JSON body always has it
    attempt: int = 1  # which time this is asked; known to what disturbs answers, not to who writes them


@dataclasses.dataclass(frozen=True)
class Completion:
    """What a Worker says, with the usage that it reports."""

    text: str
    input_tokens: int
    output_tokens: int
    finish_reason: str = "stop"


class CompletionError(Exception):
    """Raised by a handler to answer with an error status, in the error shape of the API."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def read_call(body: bytes, call_header: str | None = None) -> CompletionCall:
    """Parses a chat-completion request; raises CompletionError(400) on what this server cannot answer."""
    try:
        fields = dict(json.loads(body))
        model, messages = fields.pop("model"), fields.pop("messages")
        content = [message["content"] for message in messages if message["role"] == "user"][-1]
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
    except (ValueError, LookupError, TypeError) as error:
        raise CompletionError(400, f"not a chat completion with a model and a user message: {error}") from error
    stream, options = fields.pop("stream", None), fields.pop("stream_options", None)
    if stream not in (None, True, False) or isinstance(stream, int) and not isinstance(stream, bool):
        raise CompletionError(400, f"stream={stream!r} is neither true nor false")
    if options is not None and not (stream and isinstance(options, dict)):
        raise CompletionError(400, "stream_options is an object and goes with stream=true only")
    return CompletionCall(
        model=str(model),
        content=str(content),
        call_header=call_header,
        seed=fields.pop("seed", None),
        max_tokens=fields.pop("max_tokens", None),
        temperature=fields.pop("temperature", None),
        extra=fields,
        stream=bool(stream),
        include_usage=bool(options and options.get("include_usage")),
    )


def completion_json(call: CompletionCall, completion: Completion) -> dict[str, Any]:
    """The body of a reply that is not streamed."""
    message = {"role": "assistant", "content": completion.text}
    choice = {"index": 0, "message": message, "finish_reason": completion.finish_reason}
    return _head(call, "chat.completion") | {"choices": [choice], "usage": usage_json(completion)}


def usage_json(completion: Completion) -> dict[str, int]:
    """Token counts in the API's words."""
    return {
        "prompt_tokens": completion.input_tokens,
        "completion_tokens": completion.output_tokens,
        "total_tokens": completion.input_tokens + completion.output_tokens,
    }


def completion_chunks(call: CompletionCall, completion: Completion) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed reply: its role, its text in pieces, why it ended, and the usage where it was asked for.

    Where usage was asked for, every other chunk says that it has none, as the API does.
    """
    head = _head(call, "chat.completion.chunk")
    usage = {"usage": None} if call.include_usage else {}

    def chunk(delta: Mapping[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]} | usage

    yield chunk({"role": "assistant", "content": ""})
    for piece in text_pieces(completion.text):
        yield chunk({"content": piece})
    yield chunk({}, completion.finish_reason)
    if call.include_usage:
        yield head | {"choices": [], "usage": usage_json(completion)}


def text_pieces(text: str) -> list[str]:
    """The text cut as token by token would be, roughly: blanks go with the up to 8 characters that follow them."""
    return _PIECES.findall(text)


def event(chunk: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(chunk)}\n\n".encode()


def events(chunks: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """A whole stream as server-sent events, its end included."""
    return [*map(event, chunks), DONE]


def _head(call: CompletionCall, kind: str) -> dict[str, Any]:
    identity = hashlib.sha256(f"{call.model}/{call.call_header}/{call.seed}/{call.content}".encode()).hexdigest()
    return {"id": f"chatcmpl-{identity[:24]}", "object": kind, "created": 0, "model": call.model}
