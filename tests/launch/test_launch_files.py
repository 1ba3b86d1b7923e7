"""The launch files as text: their length, their shell, and what the JobSet's controller asks of its fields."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from rw.config import load_config

LAUNCH = pathlib.Path(__file__).parent.parent.parent / "launch"
SHELL = ("tpu_pod.sh", "slurm.sbatch")
RESTARTS = [8, 143]


@pytest.mark.parametrize("name", [*SHELL, "k8s_jobset.yaml"])
def test_launch_files_are_under_60_lines(name):
    assert len((LAUNCH / name).read_text().splitlines()) < 60


@pytest.mark.parametrize("name", SHELL)
def test_shellcheck_finds_nothing(name):
    installed_beside = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shellcheck = shutil.which("shellcheck", path=installed_beside)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; launch/test.sh --full installs it")
    found = subprocess.run([shellcheck, str(LAUNCH / name)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_slurm_reads_its_directives_before_the_first_command():
    lines = (LAUNCH / "slurm.sbatch").read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    first_command = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    directives = {n: line for n, line in enumerate(lines) if line.startswith("#SBATCH")}
    assert max(directives) < first_command
    for needed in ("--requeue", "--signal=B:USR1@120", "--ntasks-per-node=1", "--gpus-per-node=8"):
        assert f"#SBATCH {needed}" in directives.values()


def jobset():
    (document,) = yaml.safe_load_all((LAUNCH / "k8s_jobset.yaml").read_text())
    return document


def job_of(document):
    (replicated,) = document["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1 and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", replicated["name"])
    return replicated["template"]["spec"]


def test_the_jobset_is_one_indexed_job_behind_a_headless_service(monkeypatch):
    document = jobset()
    assert (document["apiVersion"], document["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert document["spec"]["network"]["enableDNSHostnames"] is True
    job = job_of(document)
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"] >= 2
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    claimed = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == claimed
    assert container["command"][:2] == ["rw", "train"] and not {"sh", "bash"} & set(container["command"])
    flags = dict(zip(container["command"][2::2], container["command"][3::2], strict=True))
    assert flags["--processes"] == str(job["completions"])
    host, _, port = flags["--coordinator"].partition(":")
    (replicated,), network = document["spec"]["replicatedJobs"], document["spec"]["network"]
    assert host == f"{document['metadata']['name']}-{replicated['name']}-0-0.{network['subdomain']}"
    assert int(port) in [exposed["containerPort"] for exposed in container["ports"]]
    assert (container["args"][0], container["args"][2]) == ("--config", "--workdir")
    monkeypatch.chdir(LAUNCH.parent)  # the Workers' file is named from there
    config = load_config(container["args"][1])
    given = dict(argument.removeprefix("--config.").split("=") for argument in container["args"][4:])
    assert int(given["mesh.data"]) * config.mesh.fsdp * config.mesh.tensor == int(flags["--processes"]) * int(
        container["resources"]["limits"]["nvidia.com/gpu"]
    )
    workdir = container["args"][3]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    shared = next(volume["name"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume)
    assert workdir.startswith(mounts[shared] + "/")
    assert {"secretRef"} == {kind for source in container["envFrom"] for kind in source}
    assert pod["terminationGracePeriodSeconds"] >= 30


def action_of(job, code: int, disrupted: bool = False) -> str:
    """What Kubernetes does with a pod that failed: the first rule that fits, else a count against backoffLimit."""
    container = job["template"]["spec"]["containers"][0]["name"]
    for rule in job["podFailurePolicy"]["rules"]:
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
        if "onPodConditions" in rule:
            if disrupted and rule["onPodConditions"] == [{"type": "DisruptionTarget"}]:
                return rule["action"]
            continue
        codes = rule["onExitCodes"]
        assert (
            codes["containerName"] == container and codes["values"] == sorted(set(codes["values"])) and 0 < len(codes)
        )
        if (code in codes["values"]) == (codes["operator"] == "In"):
            return rule["action"]
    return "Count"


def test_pods_are_made_anew_after_143_and_8_and_nothing_else():
    document = jobset()
    job = job_of(document)
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # or Kubernetes refuses the policy
    for code in range(1, 256):
        assert action_of(job, code) == ("Ignore" if code in RESTARTS else "FailJob")
    assert action_of(job, 137, disrupted=True) == "Ignore"
    assert document["spec"]["failurePolicy"] == {"maxRestarts": 0} and job["backoffLimit"] == 0
