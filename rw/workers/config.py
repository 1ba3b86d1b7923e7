"""What a user sets about Workers: one WorkerEndpoint a Worker, one ClientConfig for the client that calls them all."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from rw.errors import ConfigError
from rw.types import WorkerCard
from rw.workers.retry import RetryPolicy

WORKER_SEEDS = ("fixed", "per_call")
MAX_TOKENS_KEYS = ("max_tokens", "max_completion_tokens")
STREAM_CHOICES = ("auto", "always", "never")
# What the client itself sets, cannot read back, or needs to know the most that a call may cost.
RESERVED_BODY_KEYS = ("model", "messages", "stream", "stream_options", "n", *MAX_TOKENS_KEYS)
KEY_NAMES = ("api_key", "apikey", "authorization", "access_token")  # what may be in no config
LONG_ANSWER_TOKENS = 1024  # about half a minute of one decoded token after another
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class WorkerEndpoint:
    """One Worker: what the router may know of it (id, description), and where and how to ask it."""

    id: str
    description: str
    base_url: str  # up to and including /v1
    model: str
    key_env: str | None = None  # name of the environment variable that holds the key; None: no key is sent
    extra_body: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # merged into the request body
    input_price: float | None = None  # USD per million tokens
    output_price: float | None = None  # USD per million tokens
    max_output_tokens: int = 4096
    temperature: float = 0.2
    seed: int | None = 42  # providers may ignore it; None sends none
    max_concurrent: int = 64  # requests in flight to this Worker
    send_call_header: bool = False  # name the call in x-rw-call: for Workers on loopback, never for real ones
    key_file: str | None = None  # a file with the key that its owner alone may read; instead of key_env
    max_tokens_key: str = "max_tokens"  # what the endpoint calls max_output_tokens, or "max_completion_tokens"
    # auto: streamed where an answer may be long, so that one which never begins is noticed early, unless the Worker
    # turns out to leave usage out of its streams, or not to stream | always | never
    stream: str = "auto"
    requests_per_minute: float | None = None  # evenly spaced; None: no limit
    tokens_per_minute: float | None = None  # input and output, in any minute; None: no limit

    def __post_init__(self):
        if not self.id:
            raise ConfigError(f"a Worker (model {self.model!r}) has no id; ids look like 'worker_1'")
        _check_url(self.id, self.base_url)
        if not self.model:
            raise ConfigError(f"Worker {self.id}: model is empty; give the name that its endpoint expects")
        if self.max_concurrent < 1:
            raise ConfigError(f"Worker {self.id}: max_concurrent={self.max_concurrent} must be at least 1")
        if self.max_output_tokens < 1:
            raise ConfigError(f"Worker {self.id}: max_output_tokens={self.max_output_tokens} must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"Worker {self.id}: temperature={self.temperature} must be a number >= 0")
        self._check_extra_body()
        reserved = [key for key in RESERVED_BODY_KEYS if key in self.extra_body]
        if reserved:
            raise ConfigError(f"Worker {self.id}: extra_body may not set {', '.join(reserved)}; the client does")
        self._check_key_place()
        for name, allowed in (("stream", STREAM_CHOICES), ("max_tokens_key", MAX_TOKENS_KEYS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"Worker {self.id}: {name}={getattr(self, name)!r} is not one of {', '.join(allowed)}"
                )
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"Worker {self.id}: {name}={value} must be > 0 and finite, or None for no limit")

    def _check_extra_body(self) -> None:
        try:
            json.dumps(dict(self.extra_body), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"Worker {self.id}: extra_body holds what JSON cannot: {error}; quote dates, leave out .nan"
            ) from error

    def _check_key_place(self) -> None:
        """Configs are kept with every run, so that a key in one would be too; what may be one is not shown."""
        if self.key_env is not None and self.key_file is not None:
            raise ConfigError(f"Worker {self.id}: key_env and key_file are both set; a key comes from one place")
        if self.key_env is not None and not _VARIABLE.fullmatch(self.key_env):
            raise ConfigError(
                f"Worker {self.id}: key_env must be the name of an environment variable (letters, digits and _), and "
                "not the key itself"
            )
        for name in _names(self.extra_body):
            if name.lower().replace("-", "_") in KEY_NAMES:
                raise ConfigError(
                    f"Worker {self.id}: extra_body.{name} holds a key; name its place in key_env or key_file"
                )

    @property
    def is_streamed(self) -> bool:
        """Whether replies are asked for as streams, before anything is known of the Worker's habits."""
        return self.stream == "always" or (self.stream == "auto" and self.max_output_tokens > LONG_ANSWER_TOKENS)

    @property
    def card(self) -> WorkerCard:
        """What the router sees of this Worker."""
        return WorkerCard(self.id, self.description)


@dataclasses.dataclass(frozen=True)
class ClientConfig:
    """Deadlines and limits of the client, for every Worker alike. A deadline of None waits for ever.

    All are wall-clock time, which bytes that trickle in never extend. The clock of a call stands still while it waits
    behind our own calls, rate limits and caps: that is never charged to a Worker.
    """

    connect_timeout_s: float | None = 10.0
    first_byte_timeout_s: float | None = 60.0  # streamed requests: until the first event; keep-alives are none
    attempt_timeout_s: float | None = 180.0  # one request, from its start to the last byte of its body
    call_deadline_s: float | None = 300.0  # one logical call, with all its attempts and waits; wins over everything
    max_body_bytes: int = 1024 * 1024  # decompressed; of a stream its text, whose chunks may be 16 times as long
    # Feel for the limits of Workers that answer 429, below those set for them. For limits that are fixed and unknown:
    # a known one is better set, and a Worker that rejects calls at random, as an overloaded one may, only gets slower.
    adaptive_concurrency: bool = False
    worker_seed: str = "fixed"  # fixed: every call sends the Worker's seed | per_call: a seed derived from the call id
    retry: RetryPolicy = RetryPolicy()

    def __post_init__(self):
        if self.worker_seed not in WORKER_SEEDS:
            raise ConfigError(f"client.worker_seed={self.worker_seed!r} is not one of {', '.join(WORKER_SEEDS)}")
        for name in ("connect_timeout_s", "first_byte_timeout_s", "attempt_timeout_s", "call_deadline_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"client.{name}={value} must be > 0, or None for no limit")
        if self.max_body_bytes < 1:
            raise ConfigError(f"client.max_body_bytes={self.max_body_bytes} must be at least 1")


def _names(value: Any) -> Iterator[str]:
    """All keys in nested mappings and lists."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _names(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _names(inner)


def _check_url(worker_id: str, text: str) -> None:
    try:
        url = urlsplit(text or "")
        is_http = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        is_http = is_http and text.isprintable() and " " not in text
    except ValueError:  # a port that is no number, or out of range
        url, is_http = None, False
    if url is not None and (url.username is not None or url.password is not None or url.query or url.fragment):
        # Not shown: what it holds may be a key.
        raise ConfigError(
            f"Worker {worker_id}: base_url holds a user, a password or a query; keys belong into key_env or key_file"
        )
    if not is_http:
        shown = "its value" if "@" in (text or "") else repr(text)
        raise ConfigError(f"Worker {worker_id}: base_url={shown} is not an http(s) URL such as 'https://host/api/v1'")
