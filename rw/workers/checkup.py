"""What may be wrong with a Worker, found before a run pays for it: name, connection, key, model, replies, usage, price.

Each check is a finding with what was seen and, where it is not well, what to do. Requests are sent as the client of a
run sends them, but for the length of their replies. Knows no tables and no configs of runs; never shows a key.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from rw.errors import ConfigError, FailureCause
from rw.typed_values import did_you_mean
from rw.types import CallId
from rw.workers.attempt import Attempt
from rw.workers.config import MAX_TOKENS_KEYS, ClientConfig, WorkerEndpoint
from rw.workers.interface import WorkerRequest
from rw.workers.keys import KeyMask, read_key
from rw.workers.pricing import PriceTable
from rw.workers.reply import NO_BOUNDS, Failure, Reply
from rw.workers.request import STREAM_FIELDS, call_header, request_body, worst_case_usd

REPLY_TOKENS = 16  # of each completion
MOST_COMPLETIONS = 5  # one whole, one streamed, three to find what is refused
GREETING = "Reply with the one word: ready"
_LIST_BYTES = 32 * 1024 * 1024  # of a gateway's list of models
_SLOW_S = 30.0
_INPUT_TOKENS = 4096  # that a context should have room for, beside the reply


class State(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"  # a run would work, less well
    FAIL = "fail"  # a run would not work
    SKIPPED = "-"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One check of one Worker."""

    check: str
    state: State
    seen: str
    remedy: str = ""


def most_usd(workers: Iterable[WorkerEndpoint], content: str = GREETING) -> float:
    """The most that checking these Workers can cost, in USD; those without a price are not asked."""
    priced = [_tiny(worker) for worker in workers if _is_priced(worker)]
    prices = PriceTable.from_endpoints(priced)
    return MOST_COMPLETIONS * sum(worst_case_usd(prices, worker, content) for worker in priced)


async def check_worker(
    worker: WorkerEndpoint,
    config: ClientConfig,
    *,
    spends: bool,
    content: str = GREETING,
    environment: Mapping[str, str] | None = None,
) -> list[Finding]:
    """All findings about one Worker, in the order in which things can go wrong.

    Args:
        spends: whether completions are asked for; otherwise nothing is that costs anything.
        content: of the completions.
        environment: where keys are looked for; None: the process's own.
    """
    checkup = _Checkup(worker, config, content)
    checkup.check_price()
    checkup.check_key(environment)
    if await checkup.check_name() and await checkup.check_connection() and not checkup.has_failed("key"):
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            await checkup.check_models(session)
            if spends and not checkup.has_failed("price"):
                await checkup.check_completions(session)
    return checkup.findings


class _Checkup:
    """The checks of one Worker and what they found."""

    def __init__(self, worker: WorkerEndpoint, config: ClientConfig, content: str):
        self.findings: list[Finding] = []
        self._worker, self._config, self._content = worker, config, content
        self._key: str | None = None
        self._mask = KeyMask()
        url = urlsplit(worker.base_url)
        self._host, self._is_tls = url.hostname or "", url.scheme == "https"
        self._port = url.port or (443 if self._is_tls else 80)

    def has_failed(self, check: str) -> bool:
        """Whether that check ended in FAIL."""
        return any(finding.check == check and finding.state is State.FAIL for finding in self.findings)

    def check_price(self) -> None:
        """Both prices are there and usable."""
        if not _is_priced(self._worker):
            self._add("price", State.FAIL, "none", "set input_price and output_price, in USD per million tokens")
            return
        try:
            PriceTable.from_endpoints([self._worker])
        except ConfigError as error:
            self._add("price", State.FAIL, str(error), "set prices of 0 or more")
            return
        self._add(
            "price", State.OK, f"{self._worker.input_price:g} in, {self._worker.output_price:g} out, USD per million"
        )

    def check_key(self, environment: Mapping[str, str] | None) -> None:
        """A key is there where one is named. Whether it is accepted is seen later."""
        worker = self._worker
        try:
            self._key = read_key(worker, environment)
        except ConfigError as error:
            where = f"set {worker.key_env}" if worker.key_env else f"put it into {worker.key_file}, mode 600"
            self._add("key", State.FAIL, str(error), f"{where} before the run is started")
            return
        self._mask = KeyMask(self._key)
        where = worker.key_env or worker.key_file
        self._add("key", State.OK, f"present in {where}" if where else "none is sent")

    async def check_name(self) -> bool:
        """The host's name has an address."""
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError) as error:
            remedy = "correct the host in base_url, or this machine's name service"
            return self._add("dns", State.FAIL, f"{self._host} has no address: {_say(error)}", remedy)
        return self._add("dns", State.OK, " is ".join(dict.fromkeys((self._host, found[0][4][0]))))

    async def check_connection(self) -> bool:
        """Somebody listens there, and shows a certificate that can be trusted."""
        context = ssl.create_default_context() if self._is_tls else None
        kind, place, began = "tls" if self._is_tls else "tcp", f"{self._host}:{self._port}", time.monotonic()
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                _, writer = await asyncio.open_connection(self._host, self._port, ssl=context)
        except ssl.SSLCertVerificationError as error:
            remedy = "use the name that the certificate is for, or put its authority into SSL_CERT_FILE"
            return self._add(kind, State.FAIL, f"{place}: certificate not trusted: {error.verify_message}", remedy)
        except ssl.SSLError as error:
            remedy = "the server speaks no TLS there: take http:// or another port"
            return self._add(kind, State.FAIL, f"{place}: {error.reason or _say(error)}", remedy)
        except (OSError, TimeoutError) as error:
            is_mute = isinstance(error, TimeoutError)
            seen = f"no connection after {time.monotonic() - began:.1f} s" if is_mute else _say(error)
            remedy = "start the server, or correct host and port of base_url; a firewall may be between"
            plain = "; a server without TLS wants http://" if is_mute and self._is_tls else ""
            return self._add(kind, State.FAIL, f"{place}: {seen}", remedy + plain)
        writer.close()
        return self._add(kind, State.OK, f"{place} in {time.monotonic() - began:.2f} s")

    async def check_models(self, session: aiohttp.ClientSession) -> None:
        """The model is on the server's list, where it has one; so is its context limit."""
        try:
            status, body = await self._get(session, "/models")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._add("model", State.SKIPPED, f"no list of models: {_say(error)}")
            return
        if status in (401, 403):
            seen = f"status {status} for the list of models"
            self._add("key", State.FAIL, seen, self._key_remedy("the server refuses that key"))
            return
        entries = _model_entries(body) if status == 200 else None
        if entries is None:
            self._add("model", State.SKIPPED, f"no list of models (status {status})")
            return
        name = self._worker.model
        entry = entries.get(name) or entries.get(name.partition(":")[0])
        if entry is None:
            near = did_you_mean(name, entries, cutoff=0.3)
            hint = near or f"; it lists {', '.join(sorted(entries)[:5]) or 'none'}"
            any_name = any("llamacpp" in str(other.get("owned_by", "")) for other in entries.values())
            state = State.WARN if any_name else State.FAIL  # llama.cpp answers to every name, with the model it has
            entry = next(iter(entries.values())) if any_name and len(entries) == 1 else None
            self._add("model", state, f"{name!r} is not on the server's list", f"correct model{self._masked(hint)}")
        else:
            self._add("model", State.OK, "listed")
        self._check_context(entry or {})

    async def check_completions(self, session: aiohttp.ClientSession) -> None:
        """A tiny reply in one piece and one as a stream, with usage; else what of the request is refused."""
        whole, seconds = await self._complete(session, self._worker, streamed=False)
        if isinstance(whole, Failure) and whole.cause is not FailureCause.EMPTY_OUTPUT:
            await self._explain(session, whole)
            return
        where = self._worker.key_env or self._worker.key_file
        self._add("key", State.OK, f"accepted, from {where}" if where else "none is asked for")
        self._unlist()
        self._add_completion(whole, seconds)
        self._add("seed", State.OK, "none is sent" if self._worker.seed is None else f"{self._worker.seed} accepted")
        sent = ", ".join(self._worker.extra_body)
        self._add("extra_body", State.OK, f"{sent} accepted" if sent else "none is sent")
        has_usage = whole.usage is not None
        if has_usage:
            self._add("usage", State.OK, f"{whole.usage.input_tokens} in, {whole.usage.output_tokens} out")
        else:
            self._add(
                "usage", State.FAIL, _missing(whole), "its calls would have no cost: take a server that reports it"
            )
        await self._check_stream(session, has_usage)

    async def _check_stream(self, session: aiohttp.ClientSession, has_usage: bool) -> None:
        remedy = "set stream: never"
        bad = State.FAIL if self._worker.stream == "always" else State.WARN  # "auto" goes on without streams
        if self._worker.stream == "never":
            self._add("stream", State.SKIPPED, "not asked for (stream: never)")
            return
        streamed, _ = await self._complete(session, self._worker, streamed=True)
        if isinstance(streamed, Failure) and streamed.cause is not FailureCause.EMPTY_OUTPUT:
            self._add("stream", bad, streamed.message, remedy)
        elif streamed.usage is not None:
            self._add("stream", State.OK, f"usage {streamed.usage.input_tokens} in, {streamed.usage.output_tokens} out")
        else:
            self._add("stream", bad if has_usage else State.FAIL, f"streamed: {_missing(streamed)}", remedy)

    async def _explain(self, session: aiohttp.ClientSession, failure: Failure) -> None:
        """Findings about a completion that failed: which part of the request is to blame, as far as it can be told."""
        if failure.refused_status is not None:
            remedy = self._key_remedy("the key, its rights and the credit behind it")
            self._add("key", State.FAIL, failure.message, remedy)
            return
        if failure.cause is not FailureCause.CLIENT_ERROR:
            self._add("completion", State.FAIL, failure.message, _REMEDIES.get(failure.cause, "see the server's log"))
            return
        other_key = next(key for key in MAX_TOKENS_KEYS if key != self._worker.max_tokens_key)
        suspects = [
            ("max_tokens_key", {"max_tokens_key": other_key}, f"set max_tokens_key: {other_key}"),
            ("seed", {"seed": None}, "set seed: null"),
            ("extra_body", {"extra_body": {}}, "leave out of extra_body what this server does not know"),
        ]
        for check, change, remedy in suspects:
            changed = dataclasses.replace(self._worker, **change)
            if changed == self._worker:
                continue
            outcome, _ = await self._complete(session, changed, streamed=False)
            if isinstance(outcome, Reply) or outcome.cause is FailureCause.EMPTY_OUTPUT:
                self._add(check, State.FAIL, f"refused: {failure.message}", remedy)
                return
        remedy = (
            "base_url must end before /chat/completions, mostly in /v1; compare it and model with the server's manual"
        )
        self._add("completion", State.FAIL, failure.message, remedy)

    def _add_completion(self, outcome: Reply | Failure, seconds: float) -> None:
        thinking = "switch thinking off in extra_body, or it is paid for and waited for in every call"
        if isinstance(outcome, Failure):
            seen = f"no text within {REPLY_TOKENS} tokens: it seems to think first"
            self._add("completion", State.WARN, seen, thinking)
        elif "<think>" in outcome.text:
            self._add("completion", State.WARN, "the reply begins with thoughts", thinking)
        else:
            self._add("completion", State.OK, f"a reply, ended by {outcome.finish_reason or 'no reason'}")
        slow = seconds > _SLOW_S
        remedy = "see whether the Worker is overloaded, and client.attempt_timeout_s" if slow else ""
        self._add("latency", State.WARN if slow else State.OK, f"{seconds:.2f} s", remedy)

    def _check_context(self, entry: Mapping[str, Any]) -> None:
        limit, wanted = _context_limit(entry), self._worker.max_output_tokens
        if limit is None:
            self._add("context", State.SKIPPED, "the server does not tell")
        elif limit <= wanted:
            seen = f"{limit} tokens, and max_output_tokens is {wanted}"
            self._add(
                "context", State.FAIL, seen, f"set max_output_tokens below {limit}: there is no room for a question"
            )
        elif limit < wanted + _INPUT_TOKENS:
            seen = f"{limit} tokens leave {limit - wanted} for question and earlier replies"
            shorter = "lower max_output_tokens, or " if limit > _INPUT_TOKENS else ""
            remedy = f"{shorter}serve the model with a longer context, unless all that it is shown is short"
            self._add("context", State.WARN, seen, remedy)
        else:
            self._add("context", State.OK, f"{limit} tokens")

    def _unlist(self) -> None:
        """A model that answers is there, whatever the list says."""
        for index, finding in enumerate(self.findings):
            if finding.check == "model" and finding.state is State.FAIL:
                self.findings[index] = dataclasses.replace(finding, state=State.WARN)

    async def _get(self, session: aiohttp.ClientSession, path: str) -> tuple[int, bytes]:
        async with asyncio.timeout(self._config.attempt_timeout_s):
            url = self._worker.base_url.rstrip("/") + path
            async with session.get(url, headers=self._headers(), allow_redirects=False) as response:
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _LIST_BYTES:
                        response.close()
                        break
                return response.status, bytes(body)

    async def _complete(
        self, session: aiohttp.ClientSession, worker: WorkerEndpoint, streamed: bool
    ) -> tuple[Reply | Failure, float]:
        """The outcome of one tiny completion, and its seconds."""
        request = WorkerRequest(CallId(0, 0, 0, 0, 0), worker.id, "n1", None, (), "", self._content)
        body = request_body(_tiny(worker), self._config.worker_seed, request) | (STREAM_FIELDS if streamed else {})
        attempt = Attempt(
            session,
            url=worker.base_url.rstrip("/") + "/chat/completions",
            headers=self._headers() | ({"x-rw-call": call_header(request.id)} if worker.send_call_header else {}),
            body=json.dumps(body).encode(),
            streamed=streamed,
            bounds=NO_BOUNDS,
            mask=self._mask,
            config=self._config,
            remaining_s=None,
            wall_clock=time.time,
        )
        began = time.monotonic()
        outcome = await attempt.run()
        if streamed and attempt.was_plain and isinstance(outcome, Reply):
            message = "asked for a stream, it answers in one piece"
            outcome = Failure(FailureCause.BAD_RESPONSE, message)
        return outcome, time.monotonic() - began

    def _headers(self) -> dict[str, str]:
        authorization = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        return {"Content-Type": "application/json", **authorization}

    def _key_remedy(self, why: str) -> str:
        where = self._worker.key_env or self._worker.key_file
        return f"check {where}: {why}" if where else "the server wants a key: name its place in key_env or key_file"

    def _masked(self, text: str) -> str:
        return self._mask.in_message(text)

    def _add(self, check: str, state: State, seen: str, remedy: str = "") -> bool:
        """Adds a finding, in place of an earlier one of the same check; whether it is not a failure."""
        finding = Finding(check, state, self._masked(seen), remedy)
        earlier = next((index for index, other in enumerate(self.findings) if other.check == check), None)
        if earlier is None:
            self.findings.append(finding)
        else:
            self.findings[earlier] = finding
        return state is not State.FAIL


_REMEDIES = {
    FailureCause.RATE_LIMITED: "wait, or lower max_concurrent and set requests_per_minute",
    FailureCause.TIMEOUT: "the server accepts requests and does not answer: see its log",
    FailureCause.SERVER_ERROR: "the fault is the server's: see its log or status page",
    FailureCause.BAD_RESPONSE: "base_url must lead to an OpenAI-compatible API and end with its version, such as /v1",
}


def _is_priced(worker: WorkerEndpoint) -> bool:
    return worker.input_price is not None and worker.output_price is not None


def _tiny(worker: WorkerEndpoint) -> WorkerEndpoint:
    return dataclasses.replace(worker, max_output_tokens=REPLY_TOKENS)


def _missing(outcome: Reply | Failure) -> str:
    return f"usage that cannot be true: {outcome.unbelieved}" if outcome.unbelieved else "no usage reported"


def _model_entries(body: bytes) -> dict[str, Mapping[str, Any]] | None:
    """Entries of a list of models by id; None where it is none."""
    try:
        entries = json.loads(body)["data"]
        return {str(entry["id"]): entry for entry in entries}
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def _context_limit(entry: Mapping[str, Any]) -> int | None:
    """Tokens of question and reply together, as the servers that tell it name it; the smallest that is told."""
    meta, provider = (entry.get(name) if isinstance(entry.get(name), dict) else {} for name in ("meta", "top_provider"))
    told = (
        entry.get("max_model_len"),  # vLLM, SGLang
        entry.get("context_length"),  # OpenRouter
        provider.get("context_length"),
        meta.get("n_ctx", meta.get("n_ctx_train")),  # llama.cpp
    )
    limits = [value for value in told if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return min(limits, default=None)


def _say(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(": ")
