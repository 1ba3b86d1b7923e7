"""What is sent for a logical call: the body of a chat completion, its digest, its worst case and its seed. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rw.types import CallId
from rw.workers.config import WorkerEndpoint
from rw.workers.interface import WorkerRequest
from rw.workers.pricing import PriceTable

TEMPLATE_TOKENS = 1024  # what a chat template and a provider's own instructions may add to a message
STREAM_FIELDS = {"stream": True, "stream_options": {"include_usage": True}}


def request_body(worker: WorkerEndpoint, worker_seed: str, request: WorkerRequest) -> dict[str, Any]:
    """The JSON body of the request, however the reply is to be transported.

    Args:
        worker_seed: `ClientConfig.worker_seed`: whether all calls share the Worker's seed or each derives its own.
    """
    body: dict[str, Any] = {
        "model": worker.model,
        "messages": [{"role": "user", "content": request.content}],
        "temperature": worker.temperature,
        worker.max_tokens_key: worker.max_output_tokens,
    }
    if worker.seed is not None:
        body["seed"] = derived_seed(worker.seed, request.id) if worker_seed == "per_call" else worker.seed
    return body | dict(worker.extra_body)


def input_bound(worker: WorkerEndpoint, content: str) -> int:
    """The most input tokens that a message can take, with all that `extra_body` may add, such as descriptions of tools:
    byte-level tokenizers never need more tokens than bytes."""
    added = json.dumps(dict(worker.extra_body)) if worker.extra_body else ""
    return len(content.encode("utf-8", "surrogatepass")) + len(added) + TEMPLATE_TOKENS


def worst_case_usd(prices: PriceTable, worker: WorkerEndpoint, content: str) -> float:
    """The most that one attempt can cost: the longest input that the request can be, and the longest answer allowed."""
    return prices.cost_usd(worker.id, input_bound(worker, content), worker.max_output_tokens) or 0.0


def request_digest(worker: WorkerEndpoint, worker_seed: str, request: WorkerRequest) -> str:
    """sha256 (hex) of all that the Worker's answer depends on; where the Worker lives is not part of it."""
    asked: dict[str, Any] = {"worker": worker.id, "body": request_body(worker, worker_seed, request)}
    if worker.send_call_header:
        asked["call"] = call_header(request.id)
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def call_header(call: CallId) -> str:
    """`step/group/rollout/turn/call`: without the run, so that equal seeds give equal runs."""
    return f"{call.step}/{call.group}/{call.rollout}/{call.turn}/{call.call}"


def derived_seed(seed: int, call: CallId) -> int:
    """A seed in [0, 2^31) of its own for every logical call; a retry keeps it."""
    digest = hashlib.sha256(f"{seed}/{call_header(call)}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
