"""`rw doctor`: a table, remedies in words, an exit code; pools on loopback are started; no key is ever printed."""

import pathlib
import re
import socket

import pytest

from rw import cli
from rw import doctor as rw_doctor
from rw.data.prepared import write_queries
from rw.errors import SandboxError
from rw.types import ProgramTests, Query

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
RECORDED = ["--config.data.source=nq6", "--config.workers.kind=replay", "--config.evaluation.arms=('trained',)"]
REPLAYED = ["--config.workers.cassette=absent.jsonl", "--config.workers.cassette_mode=replay"]


def doctor(capsys, *argv):
    code = cli.main(["doctor", "--config", TINY, *argv])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    "overrides", [[], RECORDED, ["--config.workers.cassette=c", "--config.workers.cassette_mode=replay"]]
)
def test_pools_on_loopback_are_started_and_asked(capsys, overrides):
    code, out, err = doctor(capsys, *overrides)
    assert (code, err) == (0, "") and "all 6 Workers can be used" in out
    assert re.search(r"at most 5 requests for 16 tokens to each of 6 Workers: 0\.\d{6} USD at most", out)
    assert len(re.findall(r"worker_\d │ usage +│ ok", out)) == 6


def test_nothing_is_asked_without_spending(capsys):
    code, out, _ = doctor(capsys, "--no-spend")
    assert code == 0 and "usage" not in out and "requests" not in out and "listed" in out


def test_what_fails_is_told_with_its_remedy_and_without_the_key(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RW_TEST_DOCTOR_KEY", "sk-doctor-0123456789")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = tmp_path / "workers.yaml"
    shared = "description: d, model: m, key_env: RW_TEST_DOCTOR_KEY, output_price: 1"
    file.write_text(
        f"workers:\n- {{id: w1, base_url: 'http://127.0.0.1:{port}/v1', input_price: 1, {shared}}}\n"
        f"- {{id: w2, base_url: 'http://127.0.0.1:{port}/v1', input_price: 1, {shared}}}\n"
        f"- {{id: w3, base_url: 'http://no-such-host.invalid/v1', {shared}}}\n"
    )
    http = ["--config.workers.kind=http", "--config.evaluation.arms=('trained',)", f"--config.workers.file={file}"]
    code, out, err = doctor(capsys, *http)
    assert (code, err) == (1, "") and "not ready: w1, w2, w3" in out and "sk-doctor" not in out
    assert "tcp fail (w1, w2): start the server, or correct host and port of base_url" in out
    assert "dns fail (w3): correct the host" in out and "price fail (w3): set input_price and output_price" in out


@pytest.fixture
def programs(tmp_path):
    """Overrides for a run on two questions that ask for programs, and the file of them."""
    tests = ProgramTests("stdin", ("1",), ("2",))
    path = tmp_path / "apps.jsonl"
    write_queries(path, [Query(f"apps/{k}", "apps", "code", f"{k}?", tests) for k in range(6)], {"dataset": "apps"})
    workers = tmp_path / "workers.yaml"
    worker = "{id: w1, base_url: 'http://127.0.0.1:1/v1', description: d, model: m, input_price: 1, output_price: 1}"
    workers.write_text(f"workers:\n- {worker}\n")
    overrides = {
        "workers.kind": "http", "workers.file": workers, "data.source": "files", "data.train_files": f"('{path}',)",
        "evaluation.arms": "()", "evaluation.every": "0", "evaluation.test_queries": "0",
    }  # fmt: skip
    return path, [f"--config.{key}={value}" for key, value in overrides.items()]


def test_where_programs_will_run_the_sandbox_is_tried(capsys, programs, monkeypatch):
    monkeypatch.setattr(rw_doctor, "strongest_tier", lambda allow_weak: "bubblewrap")
    code, out, _ = doctor(capsys, "--no-spend", *programs[1])
    assert code == 1 and "not ready: w1\n" in out  # nobody serves that Worker
    assert "questions: 6 to train on, 0 for validation, 0 for the test" in out
    assert "programs run in a sandbox of tier bubblewrap" in out

    def none(allow_weak):
        raise SandboxError("install bubblewrap")

    monkeypatch.setattr(rw_doctor, "strongest_tier", none)
    code, out, _ = doctor(capsys, "--no-spend", *programs[1])
    assert code == 1 and "install bubblewrap" in out and "not ready: w1, sandbox" in out


def test_files_of_questions_that_are_not_there_are_named(capsys, programs):
    programs[0].unlink()
    code, out, _ = doctor(capsys, "--no-spend", *programs[1])
    assert code == 1 and f"--output {programs[0]}" in out and "not ready: w1, questions" in out


def test_a_config_that_cannot_be_used_ends_with_2(capsys):
    code, out, err = doctor(capsys, "--config.workers.kind=http")
    assert code == 2 and out == "" and err.startswith("rw doctor: error: ") and err.count("\n") == 1
