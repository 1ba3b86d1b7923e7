"""The script for TPU pods: what it sends to the hosts, and which ends make a host start again."""

import fcntl
import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent.parent.parent / "launch" / "tpu_pod.sh"
GCLOUD = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["STUB_RECORD"] + "/gcloud", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""


@pytest.fixture
def host(tmp_path, program, stand_in):
    """A home directory with the installed environment, and programs that would change the machine."""
    home, record = tmp_path / "home", tmp_path / "record"
    (home / ".rw" / "bin").mkdir(parents=True)
    (home / "rw").mkdir()
    record.mkdir()
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    program(home / ".rw" / "bin", "rw", stand_in)
    program(home / ".rw" / "bin", "python", "#!/bin/sh\nexit 0\n")
    for name in ("python3.11", "bwrap", "mountpoint", "sudo", "gcsfuse"):
        program(bin_, name, f'#!/bin/sh\necho {name} "$@" >>"$STUB_RECORD/called"\nexit {int(name == "mountpoint")}\n')
    program(bin_, "gcloud", GCLOUD)
    environment = {
        "HOME": str(home),
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "STUB_RECORD": str(record),
        "BUCKET": "a-bucket",
        "RW_RESTART_S": "0",
    }
    return home, record, environment


def on_host(environment, codes: str, *arguments: str) -> subprocess.CompletedProcess:
    command = ["bash", str(SCRIPT), "--on-host", *arguments]
    return subprocess.run(command, env={**environment, "STUB_CODES": codes}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("codes, last", [("143 8 143 0", 0), ("8 5", 5), ("4", 4), ("7", 7), ("6", 6), ("137", 137)])
def test_a_host_starts_again_after_143_and_8_and_nothing_else(host, codes, last):
    _, record, environment = host
    assert on_host(environment, codes, "--config", "a b.py").returncode == last
    calls = [json.loads(line)[0] for line in (record / "rw_0").read_text().splitlines()]
    assert calls == [["train", "--processes", "auto", "--config", "a b.py"]] * len(codes.split())
    assert "gcsfuse" in (record / "called").read_text() and "sudo" not in (record / "called").read_text()


def test_keys_reach_rw_and_a_host_that_runs_already_is_left_alone(host):
    home, record, environment = host
    (home / "keys.env").write_text("SOME_KEY='sk 1'\n")
    with open(home / "rw.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert on_host(environment, "0", "--config", "c.py").returncode == 0 and not (record / "rw_0").exists()
    assert on_host(environment, "0", "--config", "c.py").returncode == 0
    assert json.loads((record / "rw_0").read_text())[2]["SOME_KEY"] == "sk 1"


def test_the_commit_and_the_keys_are_sent_and_no_key_stands_in_a_command(host, tmp_path):
    _, record, environment = host
    keys = tmp_path / "keys.env"
    keys.write_text("OPENROUTER_API_KEY=sk-secret\n")
    environment |= {"TPU": "pod", "ZONE": "z-1", "KEYS": str(keys)}
    done = subprocess.run(
        ["bash", str(SCRIPT), "--config", "configs/a b.py"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    calls = [json.loads(line) for line in (record / "gcloud").read_text().splitlines()]
    assert all(call[:3] == ["compute", "tpus", "tpu-vm"] and "--zone z-1" in " ".join(call) for call in calls)
    copies = [(call[4], call[5]) for call in calls if call[3] == "scp"]
    assert [target for _, target in copies] == ["pod:rw_new.tar.gz", "pod:keys.env"]
    commands = [argument for call in calls for argument in call if argument.startswith("--command=")]
    start = next(command for command in commands if "--on-host" in command)
    assert "--on-host --config configs/a\\ b.py" in start and "setsid nohup" in start
    assert "sk-secret" not in json.dumps(calls)
    first = commands.index("--command=touch keys.env && chmod 600 keys.env")
    assert first < commands.index(start) and commands[-1] == "--command=tail -n 40 -F rw.log"


@pytest.mark.parametrize("missing", ["TPU", "ZONE", "BUCKET"])
def test_what_is_missing_is_named(host, missing):
    _, _, environment = host
    environment |= {"TPU": "pod", "ZONE": "z-1"}
    del environment[missing]
    done = subprocess.run(["bash", str(SCRIPT), "--config", "c.py"], env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and missing in done.stderr
