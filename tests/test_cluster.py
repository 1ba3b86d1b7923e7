"""Who belongs to a job: flags first, then the scheduler, else a process alone."""

import argparse
import socket

import pytest

from rw.cluster import ALONE, PORT, Membership, first_host, join, membership
from rw.errors import ConfigError

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_STEP_NODELIST": "gpu[07-09,12],x", "SLURM_NTASKS": "4", "SLURM_PROCID": "2"}
TPU = {"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2", "TPU_WORKER_ID": "1"}


def place(environ, processes=None, process=None, coordinator=None):
    return membership(argparse.Namespace(processes=processes, process=process, coordinator=coordinator), environ)


@pytest.mark.parametrize(
    "environ, flags, expected",
    [
        ({}, {}, ALONE),
        ({}, {"processes": "1"}, ALONE),
        ({}, {"processes": "2", "process": 1, "coordinator": "h:1"}, Membership("h:1", 2, 1)),
        (
            {"JOB_COMPLETION_INDEX": "3"},
            {"processes": "4", "coordinator": "job-0.job:1"},
            Membership("job-0.job:1", 4, 3),
        ),
        (SLURM, {}, Membership("gpu07:24711", 4, 2)),
        (SLURM, {"processes": "auto"}, Membership("gpu07:24711", 4, 2)),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, {"processes": "auto"}, ALONE),
        (SLURM, {"processes": "2", "process": 0, "coordinator": "h:9"}, Membership("h:9", 2, 0)),
        (TPU, {}, Membership(f"10.0.0.1:{PORT}", 2, 1)),
        (TPU | {"TPU_WORKER_HOSTNAMES": "localhost"}, {}, ALONE),
        ({}, {"processes": "auto"}, Membership(None, None, None)),  # jax asks the machine
    ],
)
def test_a_place_comes_from_flags_then_from_the_scheduler(environ, flags, expected):
    assert place(environ, **flags) == expected


@pytest.mark.parametrize(
    "environ, flags, says",
    [
        ({}, {"process": 1}, "--process and --coordinator need --processes"),
        ({}, {"processes": "two"}, "--processes='two' must be a number, or auto"),
        ({}, {"processes": "0"}, "--processes=0 must be at least 1"),
        ({}, {"processes": "2", "process": 0}, "--processes=2 needs --process=0..1 and --coordinator"),
        ({}, {"processes": "2", "coordinator": "h:1"}, "--processes=2 needs --process=0..1"),
        ({}, {"processes": "2", "process": 2, "coordinator": "h:1"}, "--process=2 must lie from 0 to 1"),
        ({}, {"processes": "2", "process": 1, "coordinator": "h"}, "--coordinator='h' must be host:port"),
        (SLURM | {"SLURM_PROCID": "x"}, {}, "SLURM_PROCID='x', which must be a number"),
        (TPU | {"TPU_WORKER_ID": ""}, {}, "TPU_WORKER_ID='', which must be a number"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_fix(environ, flags, says):
    with pytest.raises(ConfigError, match=says):
        place(environ, **flags)


@pytest.mark.parametrize(
    "node_list, host",
    [("a", "a"), ("a,b", "a"), ("n[007-009,012],x", "n007"), ("n[3,5]", "n3"), ("x,n[1-2]", "x"), ("n-1-[4]", "n-1-4")],
)
def test_the_first_host_of_a_list(node_list, host):
    assert first_host(node_list) == host


@pytest.mark.parametrize("port", ["taken", 99_999])
def test_a_coordinator_that_cannot_listen_is_refused(port):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1] if port == "taken" else port
        with pytest.raises(ConfigError, match=f"cannot listen on port {port} of --coordinator=localhost:{port}"):
            join(Membership(f"localhost:{port}", 2, 0))
