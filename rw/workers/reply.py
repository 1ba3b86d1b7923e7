"""What a Worker's HTTP answer means: bytes and a status in, a Reply or a Failure out. Pure."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from rw.errors import FailureCause

REFUSALS = (401, 402, 403)  # no key, no money, no right: no later call can succeed
ABSURD_TOKENS = 10_000_000  # above any context window; such a count is a broken server, not a price to book


@dataclasses.dataclass(frozen=True)
class Usage:
    """Token counts as reported; both present."""

    input_tokens: int
    output_tokens: int


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer that the router may read."""

    text: str
    usage: Usage | None
    finish_reason: str | None


@dataclasses.dataclass(frozen=True)
class Failure:
    """An attempt that gave no answer; `usage` where the server charged for it all the same."""

    cause: FailureCause
    message: str
    retry_after_s: float | None = None
    usage: Usage | None = None
    refused_status: int | None = None  # one of REFUSALS


def read_reply(status: int, content_type: str, body: bytes, retry_after_s: float | None = None) -> Reply | Failure:
    """Judges a complete HTTP answer of a chat completion."""
    if status != 200:
        return _status_failure(status, _error_message(body), retry_after_s)
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        kind = "HTML" if "html" in content_type or body.lstrip()[:1] == b"<" else f"{content_type or 'bytes'}"
        return Failure(FailureCause.BAD_RESPONSE, f"status 200 with {kind} that is not JSON: {_excerpt(body)}")
    if not isinstance(answer, dict):
        return Failure(FailureCause.BAD_RESPONSE, f"JSON that is no object: {_excerpt(body)}")
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    error = answer.get("error") or (choice or {}).get("error")
    if error:  # gateways report an upstream failure inside a 200
        code = error.get("code") if isinstance(error, dict) else None
        upstream = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else None
        message = f"error inside a 200: {_message_of(error)}"
        return _status_failure(upstream, message, retry_after_s) if upstream else _broken(message, answer)
    message = choice.get("message") if choice else None
    if not isinstance(message, dict):
        return _broken(f"JSON without choices: {_excerpt(body)}", answer)
    text = _text(message)
    usage = read_usage(answer.get("usage"), has_text=bool(text.strip()))
    if not text.strip():
        return Failure(FailureCause.EMPTY_OUTPUT, "the choice holds no text", usage=usage)
    finish_reason = choice.get("finish_reason")
    return Reply(text, usage, finish_reason if isinstance(finish_reason, str) else None)


def read_usage(usage: Any, has_text: bool) -> Usage | None:
    """Usage where both counts are believable; None otherwise, so that no cost is made up.

    Text that took no output tokens is not believable; a prompt of 0 tokens is: some servers leave out cached input.
    """
    if not isinstance(usage, Mapping):
        return None
    input_tokens, output_tokens = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if input_tokens is None or output_tokens is None or (has_text and output_tokens == 0):
        return None
    return Usage(input_tokens, output_tokens)


def _status_failure(status: int, message: str, retry_after_s: float | None) -> Failure:
    message = f"status {status}: {message}"
    if status in REFUSALS:
        return Failure(FailureCause.CLIENT_ERROR, message, refused_status=status)
    if status == 429:
        return Failure(FailureCause.RATE_LIMITED, message, retry_after_s)
    if status == 408:
        return Failure(FailureCause.TIMEOUT, message, retry_after_s)
    if status >= 500 or status in (409, 425):  # 409 and 425 ask to come back, as a 503 does
        return Failure(FailureCause.SERVER_ERROR, message, retry_after_s)
    if 300 <= status < 500:  # redirects are not followed: they would carry the key to another host
        return Failure(FailureCause.CLIENT_ERROR, message)
    return Failure(FailureCause.BAD_RESPONSE, message)


def _broken(message: str, answer: Mapping[str, Any]) -> Failure:
    return Failure(FailureCause.BAD_RESPONSE, message, usage=read_usage(answer.get("usage"), has_text=False))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):  # the form of content parts
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not (isinstance(content, str) and content.strip()):
        content = message.get("refusal")  # a model that declines has answered; some servers say it here
    # A lone surrogate is legal in JSON and illegal in UTF-8, hence in tokenizers and files.
    return content.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(content, str) else ""


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return int(value) if value == int(value) and 0 <= value <= ABSURD_TOKENS else None


def _error_message(body: bytes) -> str:
    try:
        return _message_of(json.loads(body)["error"])
    except (ValueError, RecursionError, LookupError, TypeError):
        return _excerpt(body) or "no message"


def _message_of(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(message or error).split())[:300]


def _excerpt(body: bytes) -> str:
    return " ".join(body[:400].decode("utf-8", "replace").split())[:120]
