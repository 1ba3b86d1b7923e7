"""What a user sets about Workers: one WorkerEndpoint a Worker, one ClientConfig for the client that calls them all."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from rw.errors import ConfigError
from rw.types import WorkerCard
from rw.workers.retry import RetryPolicy

WORKER_SEEDS = ("fixed", "per_call")
RESERVED_BODY_KEYS = ("model", "messages", "stream", "n")  # what the client itself sets, or cannot read back


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

    def __post_init__(self):
        if not self.id:
            raise ConfigError(f"a Worker (model {self.model!r}) has no id; ids look like 'worker_1'")
        if not _is_http_url(self.base_url):
            raise ConfigError(
                f"Worker {self.id}: base_url={self.base_url!r} is not an http(s) URL such as 'https://host/api/v1'"
            )
        if not self.model:
            raise ConfigError(f"Worker {self.id}: model is empty; give the name that its endpoint expects")
        if self.max_concurrent < 1:
            raise ConfigError(f"Worker {self.id}: max_concurrent={self.max_concurrent} must be at least 1")
        if self.max_output_tokens < 1:
            raise ConfigError(f"Worker {self.id}: max_output_tokens={self.max_output_tokens} must be at least 1")
        reserved = [key for key in RESERVED_BODY_KEYS if key in self.extra_body]
        if reserved:
            raise ConfigError(f"Worker {self.id}: extra_body may not set {', '.join(reserved)}; the client does")

    @property
    def card(self) -> WorkerCard:
        """What the router sees of this Worker."""
        return WorkerCard(self.id, self.description)


@dataclasses.dataclass(frozen=True)
class ClientConfig:
    """Deadlines and limits of the client, for every Worker alike. A deadline of None waits for ever.

    The clocks of a call start when it holds its permit: waiting behind our own calls is never charged to a Worker.
    """

    connect_timeout_s: float | None = 10.0
    attempt_timeout_s: float | None = 180.0  # one request, from its start to the last byte of its body
    call_deadline_s: float | None = 300.0  # one logical call, with all its attempts and waits; wins over everything
    max_body_bytes: int = 1024 * 1024
    worker_seed: str = "fixed"  # fixed: every call sends the Worker's seed | per_call: a seed derived from the call id
    retry: RetryPolicy = RetryPolicy()

    def __post_init__(self):
        if self.worker_seed not in WORKER_SEEDS:
            raise ConfigError(f"client.worker_seed={self.worker_seed!r} is not one of {', '.join(WORKER_SEEDS)}")
        for name in ("connect_timeout_s", "attempt_timeout_s", "call_deadline_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"client.{name}={value} must be > 0, or None for no limit")
        if self.max_body_bytes < 1:
            raise ConfigError(f"client.max_body_bytes={self.max_body_bytes} must be at least 1")


def _is_http_url(text: str) -> bool:
    try:
        url = urlsplit(text or "")
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, or out of range
        return False


def read_key(endpoint: WorkerEndpoint, environment: Mapping[str, str] | None = None) -> str | None:
    """The Worker's key from its environment variable; None where it needs none; ConfigError where it is missing."""
    if endpoint.key_env is None:
        return None
    key = (os.environ if environment is None else environment).get(endpoint.key_env, "").strip()
    if not key:
        raise ConfigError(
            f"Worker {endpoint.id} needs its key in the environment variable {endpoint.key_env}, which is not set"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"environment variable {endpoint.key_env} holds characters that no HTTP header may carry")
    return key
