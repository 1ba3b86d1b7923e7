"""What a Worker's HTTP answer means: bytes and a status in, a Reply or a Failure out. Pure."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rw.errors import FailureCause
from rw.workers.keys import KeyMask

REFUSALS = (401, 402, 403)  # no key, no money, no right: no later call can succeed
GATEWAY_TIMEOUTS = (504, 524)  # a gateway no longer waits for a model that was at work
ABSURD_TOKENS = 10_000_000  # above any context window; such a count is a broken server, not a price to book
_LONGEST_REASON = 40  # of a finish reason, in characters


@dataclasses.dataclass(frozen=True)
class Usage:
    """Token counts as reported; both present."""

    input_tokens: int
    output_tokens: int


@dataclasses.dataclass(frozen=True)
class TokenBounds:
    """Counts above these are not believed."""

    input: int = ABSURD_TOKENS
    output: int = ABSURD_TOKENS


NO_BOUNDS = TokenBounds()
NO_MASK = KeyMask()


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer that the router may read."""

    text: str
    usage: Usage | None
    finish_reason: str | None
    unbelieved: str = ""  # the usage as reported, where it cannot be true


@dataclasses.dataclass(frozen=True)
class Failure:
    """An attempt that gave no answer; `usage` where the server charged for it all the same."""

    cause: FailureCause
    message: str
    retry_after_s: float | None = None
    usage: Usage | None = None
    refused_status: int | None = None  # the status, where no later call can succeed
    unbelieved: str = ""  # the usage as reported, where it cannot be true
    unbilled: bool = False  # turned down before any work was done


def read_reply(
    status: int,
    content_type: str,
    body: bytes,
    retry_after_s: float | None = None,
    bounds: TokenBounds = NO_BOUNDS,
    mask: KeyMask = NO_MASK,
) -> Reply | Failure:
    """Judges a complete HTTP answer of a chat completion."""
    if status != 200:
        message, error, reported = _read_error(body, mask)
        return _charged(_status_failure(status, message, error, retry_after_s), reported, bounds)
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        kind = "HTML" if "html" in content_type or body.lstrip()[:1] == b"<" else f"{content_type or 'bytes'}"
        return Failure(FailureCause.BAD_RESPONSE, f"status 200 with {kind} that is not JSON: {_excerpt(body, mask)}")
    if not isinstance(answer, dict):
        return Failure(FailureCause.BAD_RESPONSE, f"JSON that is no object: {_excerpt(body, mask)}")
    return read_answer(answer, body, retry_after_s, bounds, mask)


def read_answer(
    answer: Mapping[str, Any], body: bytes, retry_after_s: float | None, bounds: TokenBounds, mask: KeyMask
) -> Reply | Failure:
    """Judges the JSON object of an answer with status 200; of `body` the beginning is shown in error messages."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    message = choice.get("message") if choice else None
    error = answer.get("error") or (choice or {}).get("error")
    if error:  # gateways report an upstream failure inside a 200
        code = error.get("code") if isinstance(error, dict) else None
        upstream = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else None
        said = f"error inside a 200: {_message_of(error, mask)}"
        failure = Failure(FailureCause.BAD_RESPONSE, said)
        if upstream:
            failure = _status_failure(upstream, said, error, retry_after_s)
        return _charged(
            failure, answer.get("usage"), bounds, has_text=isinstance(message, dict) and bool(_text(message))
        )
    if not isinstance(message, dict):
        failure = Failure(FailureCause.BAD_RESPONSE, f"JSON without choices: {_excerpt(body, mask)}")
        return _charged(failure, answer.get("usage"), bounds)
    text = _text(message)
    usage, unbelieved = judge_usage(answer.get("usage"), bool(text.strip()), bounds)
    if not text.strip():
        return Failure(FailureCause.EMPTY_OUTPUT, "the choice holds no text", usage=usage, unbelieved=unbelieved)
    reason = choice.get("finish_reason")
    if reason == "error":  # gateways, where what follows the text broke off
        return Failure(
            FailureCause.BAD_RESPONSE, "an answer that an error cut short", usage=usage, unbelieved=unbelieved
        )
    reason = mask.in_message(reason)[:_LONGEST_REASON] if isinstance(reason, str) else None
    return Reply(mask.in_reply(text), usage, reason, unbelieved)


def judge_usage(reported: Any, has_text: bool, bounds: TokenBounds = NO_BOUNDS) -> tuple[Usage | None, str]:
    """(usage, "") where it is believable, (None, what was said) where it is not, (None, "") where none was reported.

    Text that took no output tokens is not believable; a prompt of 0 tokens is: some servers leave out cached input.
    """
    if not isinstance(reported, Mapping):
        return None, ""
    said = reported.get("prompt_tokens"), reported.get("completion_tokens")
    if any(count is None for count in said):
        return None, ""
    input_tokens, output_tokens = _count(said[0], bounds.input), _count(said[1], bounds.output)
    if input_tokens is None or output_tokens is None or (has_text and output_tokens == 0):
        return None, f"prompt_tokens={_shown(said[0])}, completion_tokens={_shown(said[1])}"
    return Usage(input_tokens, output_tokens), ""


def read_usage(usage: Any, has_text: bool) -> Usage | None:
    """Usage where both counts are believable; None otherwise, so that no cost is made up."""
    return judge_usage(usage, has_text)[0]


def _status_failure(status: int, message: str, error: Any, retry_after_s: float | None) -> Failure:
    message = f"status {status}: {message}"
    if _is_refusal(status, error, retry_after_s):
        return Failure(FailureCause.CLIENT_ERROR, message, refused_status=status, unbilled=True)
    if status in (402, 429):
        return Failure(FailureCause.RATE_LIMITED, message, retry_after_s, unbilled=True)
    if status == 408:
        return Failure(FailureCause.TIMEOUT, message, retry_after_s, unbilled=True)
    if status >= 500 or status in (409, 425):  # 409 and 425 ask to come back, as a 503 does
        return Failure(FailureCause.SERVER_ERROR, message, retry_after_s, unbilled=status not in GATEWAY_TIMEOUTS)
    if 300 <= status < 500:  # redirects are not followed: they would carry the key to another host
        return Failure(FailureCause.CLIENT_ERROR, message, unbilled=True)
    return Failure(FailureCause.BAD_RESPONSE, message)


def _is_refusal(status: int, error: Any, retry_after_s: float | None) -> bool:
    """Whether no later call can succeed."""
    fields = error if isinstance(error, Mapping) else {}
    if status == 403:  # a gateway's notice that it will not pass on this one message has a form of its own
        notice = fields.get("metadata")
        return not (isinstance(notice, Mapping) and (notice.get("reasons") or "flagged_input" in notice))
    if status == 402:  # with a time to come back, it is about what is in flight and not about the account
        return retry_after_s is None
    if status == 429:  # an account without credit, in the words of OpenAI
        return "insufficient_quota" in (fields.get("code"), fields.get("type"))
    return status in REFUSALS


def _charged(failure: Failure, reported: Any, bounds: TokenBounds, has_text: bool = False) -> Failure:
    """The failure with the usage that came with it; text, or usage that cannot be true, says that work was done."""
    usage, unbelieved = judge_usage(reported, False, bounds)
    unbilled = failure.unbilled and not has_text and not unbelieved
    return dataclasses.replace(failure, usage=usage, unbelieved=unbelieved, unbilled=unbilled)


def content_text(content: Any) -> str:
    """The text of a message's content: a string, or a list of content parts; "" for anything else."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _text(message: Mapping[str, Any]) -> str:
    text = content_text(message.get("content"))
    if not text.strip():
        text = content_text(message.get("refusal"))  # a model that declines has answered; some servers say it here
    # A lone surrogate is legal in JSON and illegal in UTF-8, hence in tokenizers and files.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _count(value: Any, most: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        return None
    return int(value) if value == int(value) else None


def _shown(count: Any) -> str:
    """A count for a message; what is no number is not repeated: it may be the key."""
    return str(count)[:20] if isinstance(count, (int, float)) else f"a {type(count).__name__}"


def _read_error(body: bytes, mask: KeyMask) -> tuple[str, Any, Any]:
    """(message, error object, usage as reported) of an answer that is none."""
    message, error, reported = _excerpt(body, mask) or "no message", None, None
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(body)
        if isinstance(answer, dict):
            reported = answer.get("usage")
            if "error" in answer:
                message, error = _message_of(answer["error"], mask), answer["error"]
    return message, error, reported


def _message_of(error: Any, mask: KeyMask) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    # Masked before it is cut, or a part of the key could stay.
    return " ".join(mask.in_message(str(message or error)).split())[:300]


def _excerpt(body: bytes, mask: KeyMask) -> str:
    """The beginning of a body, for an error message: one line without the key."""
    return " ".join(mask.in_message(body.decode("utf-8", "replace")).split())[:120]
