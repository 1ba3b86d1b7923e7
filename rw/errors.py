"""What can go wrong, as types: errors that end a run with one line, and failures that are data of a rollout."""

from __future__ import annotations

import enum


class RwError(Exception):
    """An error whose message names the value and the remedy in one line; entries print it and exit with `exit_code`."""

    exit_code = 2


class ConfigError(RwError):
    """An unknown key, an illegal value, or values that do not fit together."""


class DataError(RwError):
    """A record or query that cannot be used; names its id."""


class CheckpointError(RwError):
    """A checkpoint that is missing, damaged, or of another config, tokenizer or version."""


class WorkdirError(RwError):
    """A working directory that cannot be used, or is in use."""


class StopFileError(WorkdirError):
    """The file that asks a run to stop lies in its working directory."""

    exit_code = 7


class TrainingDivergedError(RwError):
    """Too many non-finite steps in a row."""

    exit_code = 3


class WorkerRefusedError(RwError):
    """A Worker refuses us for good (401, 402, 403): the run stops before more is burnt."""

    exit_code = 4


class BudgetExhaustedError(RwError):
    """The next call might cost more than a cap in USD allows: the run stops before it is sent."""

    exit_code = 5


class OutageError(RwError):
    """So many rollouts were lost to infrastructure that nothing may be made of the rest."""

    exit_code = 6


class JournalError(WorkdirError):
    """A journal that is damaged, or of another run, prompts, Workers, prices or tokenizer."""


class CassetteError(RwError):
    """A cassette that cannot be read, or holds no reply to a call."""


class SandboxError(RwError):
    """Programs of others cannot be run apart from this machine: nothing here isolates well enough."""


class FailureCause(enum.StrEnum):
    """Why a rollout could not be measured. Never merged with a violation of the grammar."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    CLIENT_ERROR = "client_error"
    BAD_RESPONSE = "bad_response"
    EMPTY_OUTPUT = "empty_output"
    SCORER_FAULT = "scorer_fault"
    SANDBOX_FAULT = "sandbox_fault"
    SAMPLER_FAULT = "sampler_fault"
    DEADLINE = "deadline"
    INTERNAL = "internal"


class InfrastructureFailure(Exception):
    """A rollout cannot be measured. Caught by the rollout's pool, which excludes that rollout and goes on."""

    def __init__(self, cause: FailureCause, message: str):
        super().__init__(f"{cause}: {message}")
        self.cause = cause
