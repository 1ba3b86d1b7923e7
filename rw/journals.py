"""The journals of a run: what they depend on, and rollouts that keep one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from rw.learner.checkpoint import lasting_fingerprint
from rw.processes import Processes
from rw.protocol.chat import TokenCodec
from rw.protocol.prompts import Prompts
from rw.questions import recorded_config
from rw.run_config import MAY_CHANGE, RunConfig
from rw.workdir import Workdir
from rw.workers.config import WorkerEndpoint
from rw.workers.journal import Journals

FOLDER = "journal"
STEP = "step_"  # scopes of training steps begin so


def step_scope(step: int) -> str:
    """The scope of the rollouts of a training step."""
    return f"{STEP}{step:06d}"


def open_journals(
    config: RunConfig,
    workdir: Workdir,
    codec: TokenCodec,
    prompts: Prompts,
    endpoints: Sequence[WorkerEndpoint],
    processes: Processes,
) -> Journals:
    """This process's journals of the run in this directory, for these Workers."""
    header = {
        "run": lasting_fingerprint(recorded_config(config), MAY_CHANGE),
        "prompts": prompts.fingerprint,
        "pool": _fingerprint([_asked(endpoint) for endpoint in endpoints]),
        "prices": _fingerprint([[worker.id, worker.input_price, worker.output_price] for worker in endpoints]),
        "tokenizer": codec.fingerprint,
    }
    return Journals(
        workdir.own_file(FOLDER),
        header,
        segment_s=config.journal.segment_s,
        also=workdir.files_of_others(FOLDER),
        retired=workdir.files_of_others(FOLDER, beyond=processes.count) if processes.is_first else (),
    )


def discard_steps(journals: Journals, upto: int) -> None:
    """Removes the journals of steps up to this one, whose result a checkpoint holds."""
    for scope in journals.scopes():
        step = scope.removeprefix(STEP)
        if scope.startswith(STEP) and step.isdecimal() and int(step) <= upto:  # a copy that someone made stays
            journals.discard(scope)


def _asked(worker: WorkerEndpoint) -> list[Any]:
    """What of a Worker its answers and the router's prompt depend on; not where it lives, nor how fast."""
    return [
        worker.id,
        worker.description,
        worker.model,
        dict(worker.extra_body),
        worker.temperature,
        worker.seed,
        worker.max_output_tokens,
    ]


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
