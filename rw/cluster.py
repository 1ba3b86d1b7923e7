"""Which processes make up a job, by flags or by what schedulers say in the environment, and the way to join them.

Knows nothing of training: after `join` every process has the others' devices in `jax.devices()`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping

import jax
import orbax.checkpoint  # noqa: F401 - defines its flags
from absl import flags

from rw.errors import ConfigError

PORT = 47_113  # of the coordinator, where a scheduler names only its host
START_TIMEOUT_S = 600  # from the first process to the last: hosts may have images to fetch first
SILENT_S = 10
SHUTDOWN_TIMEOUT_S = 30  # all come to their end together; one that broke off before must not be waited for long
# Our own watch (rw/processes.py) is quicker and says more; this one ends a process whose own watch cannot run any more.
HEARTBEAT_TIMEOUT_S = 100
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID")


@dataclasses.dataclass(frozen=True)
class Membership:
    """One process's place in a job; None is left to jax, which finds it out on TPU pods."""

    coordinator: str | None = None  # host:port of process 0
    count: int | None = None
    index: int | None = None

    def __str__(self) -> str:
        return f"process {self.index} of {self.count}, coordinator {self.coordinator}"

    def __post_init__(self):
        if self.index is not None and not 0 <= self.index < (self.count or self.index + 1):
            raise ConfigError(f"--process={self.index} must lie from 0 to {self.count - 1}: there are {self.count}")
        if self.coordinator is not None and not re.fullmatch(r".+:\d+", self.coordinator):
            raise ConfigError(f"--coordinator={self.coordinator!r} must be host:port of process 0")


ALONE = Membership(count=1, index=0)


def membership(known: argparse.Namespace, environ: Mapping[str, str]) -> Membership:
    """The place that flags give this process, else the scheduler, else that of a process alone.

    Schedulers: srun with more than one task; an indexed Kubernetes job, whose manifest says the number of processes and
    the coordinator; a TPU pod. Raises ConfigError for flags that do not fit together.
    """
    if known.processes == "auto":
        return _detected(environ) or Membership(known.coordinator, None, known.process)
    if known.processes is None:
        if known.process is not None or known.coordinator is not None:
            raise ConfigError("--process and --coordinator need --processes, the number of processes of the job")
        return _detected(environ) or ALONE
    if not known.processes.isdecimal():
        raise ConfigError(f"--processes={known.processes!r} must be a number, or auto")
    count = int(known.processes)
    if count < 1:
        raise ConfigError(f"--processes={count} must be at least 1, or auto")
    index = known.process
    if index is None and "JOB_COMPLETION_INDEX" in environ:  # what Kubernetes calls it
        index = _number(environ, "JOB_COMPLETION_INDEX")
    if count == 1:
        return Membership(None, 1, index or 0)
    if index is None or known.coordinator is None:
        raise ConfigError(
            f"--processes={count} needs --process=0..{count - 1} and --coordinator=HOST:PORT of process 0"
        )
    return Membership(known.coordinator, count, index)


def placed(flags: argparse.Namespace) -> Membership:
    """`membership` by the environment of this process."""
    return membership(flags, os.environ)


def _detected(environ: Mapping[str, str]) -> Membership | None:
    if all(name in environ for name in _SLURM):
        if _number(environ, "SLURM_NTASKS") == 1:
            return ALONE
        host = first_host(environ["SLURM_STEP_NODELIST"])
        port = 20_000 + _number(environ, "SLURM_JOB_ID") % 40_000  # jobs that share a host must not meet
        return Membership(f"{host}:{port}", _number(environ, "SLURM_NTASKS"), _number(environ, "SLURM_PROCID"))
    hosts = environ.get("TPU_WORKER_HOSTNAMES", "")
    if "," in hosts:
        return Membership(f"{hosts.split(',')[0]}:{PORT}", len(hosts.split(",")), _number(environ, "TPU_WORKER_ID"))
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise ConfigError(f"the environment says {name}={text!r}, which must be a number: a scheduler sets it")
    return int(text)


def first_host(node_list: str) -> str:
    """The first host of a SLURM list such as `node[007-009,012],other`."""
    prefix, bracket, rest = node_list.partition("[")
    if not bracket or "," in prefix:
        return prefix.split(",")[0]
    return prefix + re.split(r"[-,\]]", rest)[0]


def join(place: Membership) -> bool:
    """Joins the job; before anything asks jax for a device. False for a process alone, which has nobody to join.

    Raises ConfigError where the others do not come, or jax cannot find out who they are.
    """
    if place.count == 1:
        return False
    # jax would take SIGTERM for itself; what it is to mean is ours to say.
    jax.config.update("jax_enable_preemption_service", False)
    is_known = None not in (place.coordinator, place.count, place.index)
    if is_known and place.index == 0:
        _check_free(place.coordinator)
    try:
        with _said_while_waiting(place):
            jax.distributed.initialize(
                place.coordinator,
                place.count,
                place.index,
                # Else jax would leave a process of a SLURM task one device, by the index of the task on its host.
                cluster_detection_method="deactivate" if is_known else None,
                initialization_timeout=START_TIMEOUT_S,
                heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
                shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_S,
            )
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        where = f"as {place}" if is_known else "of this machine, on which neither SLURM nor a TPU pod was found"
        raise ConfigError(
            f"cannot join the job {where}: {reason}; set --processes, --process and --coordinator"
        ) from error
    _use_host_barriers()
    return jax.process_count() > 1


@contextlib.contextmanager
def _said_while_waiting(place: Membership) -> Iterator[None]:
    """A line on stderr where the others keep this process waiting; jax itself waits in silence."""
    text = f"rw: {place}: waiting for the other processes, {START_TIMEOUT_S} s at most\n"
    timer = threading.Timer(SILENT_S, lambda: (sys.stderr.write(text), sys.stderr.flush()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_free(coordinator: str) -> None:
    """Raises ConfigError where something listens on the coordinator's port here, at which jax would crash."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    port = int(coordinator.rpartition(":")[2])
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"process 0 cannot listen on port {port} of --coordinator={coordinator} ({error}); end what does, "
                "perhaps another process 0, or take another port"
            ) from error


def _use_host_barriers() -> None:
    """Lets orbax wait for other processes without their devices: it does so in threads of its own, from which no device
    program may be issued."""
    flags.FLAGS.mark_as_parsed()
    flags.FLAGS.experimental_orbax_use_distributed_barrier = True


def leave() -> None:
    """Waits for the others and parts from them."""
    with contextlib.suppress(RuntimeError):  # some have gone before: there is nobody left to wait for
        jax.distributed.shutdown()
