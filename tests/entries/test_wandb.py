"""Rows on Weights & Biases: each once, under one id for all processes of a run, and never at the run's cost."""

import json
import pathlib
import sys
import threading
import types

import pytest

from rw.config import load_config
from rw.errors import ConfigError
from rw.wandb_log import WandbLog, check_installed

ROOT = pathlib.Path(__file__).parent.parent.parent
TINY = str(ROOT / "tests" / "data" / "configs" / "tiny.py")


class Service(types.ModuleType):
    """What rw uses of the package wandb, kept in memory."""

    def __init__(self):
        super().__init__("wandb")
        self.runs, self.logged, self.finished = [], [], 0
        self.broken = self.hanging = None

    def Settings(self, **settings):
        return settings

    def init(self, **about):
        if self.broken == "init":
            raise RuntimeError("no\nnetwork")
        self.runs.append(about)
        return self

    def define_metric(self, *names, **options):
        self.defined = (names, options)

    def log(self, values):
        if self.broken == "log":
            raise OSError("gone")
        if self.hanging is not None:
            self.hanging.wait(20)
        self.logged.append(values)

    def finish(self):
        self.finished += 1


@pytest.fixture
def service(monkeypatch):
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def write(workdir, steps, name="metrics.jsonl", **values):
    with open(workdir / name, "a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "accuracy": 0.5, **values}) + "\n")


def test_every_row_is_sent_once_with_its_step(service, tmp_path):
    log = WandbLog("rw", tmp_path, {"seed": 3})
    write(tmp_path, [1, 2], kind="words", broken="nan", by_mode={"single": 1.0}, whole=True)
    log.send()
    write(tmp_path, [2], name="validation.jsonl")
    (tmp_path / "metrics.jsonl").open("a").write('{"step": 3, "accu')  # half a row
    log.close()
    assert service.logged == [{"step": s, "accuracy": 0.5} for s in (1, 2, 2)] and service.finished == 1
    (about,) = service.runs
    assert (about["project"], about["config"], about["resume"]) == ("rw", {"seed": 3}, "allow")
    assert service.defined == (("*",), {"step_metric": "step"}) and about["name"] == tmp_path.name


def test_a_continued_run_goes_on_under_its_id_with_what_was_not_sent(service, tmp_path):
    first = WandbLog("rw", tmp_path, {})
    write(tmp_path, [1, 2])
    first.close()
    write(tmp_path, [3])  # the process died before it was sent
    again = WandbLog("rw", tmp_path, {}, step=3)
    again.close()
    assert again.run_id == first.run_id == service.runs[1]["id"]
    assert [row["step"] for row in service.logged] == [1, 2, 3]
    (tmp_path / "metrics.jsonl").write_text("")
    write(tmp_path, [1, 2])  # the run had to go back behind step 2
    back = WandbLog("rw", tmp_path, {}, step=1)
    back.close()
    assert [row["step"] for row in service.logged] == [1, 2, 3, 2]
    other = tmp_path / "other"
    other.mkdir()
    apart = WandbLog("rw", other, {})
    apart.close()
    assert apart.run_id != first.run_id


@pytest.mark.parametrize("broken", ["init", "log"])
def test_what_goes_wrong_is_said_once_and_stops_nothing(broken, service, tmp_path, caplog):
    service.broken = broken
    log = WandbLog("rw", tmp_path, {})
    write(tmp_path, [1])
    for _ in range(3):
        log.send()
    log.close()
    (record,) = [record for record in caplog.records if "wandb gets no rows" in record.message]
    assert "metrics.jsonl has them all" in record.message and "\n" not in record.message


@pytest.mark.parametrize("text", ["[]", '{"id": "x", "sent": {"metrics.jsonl": null}}', '{"id": "x", "sent": 3}', "{"])
def test_a_state_of_no_use_begins_anew(text, service, tmp_path):
    (tmp_path / "wandb.json").write_text(text)
    write(tmp_path, [1])
    log = WandbLog("rw", tmp_path, {}, step=1)
    log.close()
    state = json.loads((tmp_path / "wandb.json").read_text())
    assert state == {"id": log.run_id, "sent": {"metrics.jsonl": 1}} and log.run_id != "x"


def test_a_state_that_cannot_be_written_stops_nothing(service, tmp_path, caplog):
    (tmp_path / "wandb.tmp").mkdir()
    log = WandbLog("rw", tmp_path, {})
    log.close()
    assert "wandb gets no rows" in caplog.text


def test_a_service_that_hangs_is_left_behind(service, tmp_path, caplog):
    service.hanging = threading.Event()
    log = WandbLog("rw", tmp_path, {})
    write(tmp_path, [1])
    log.close(wait_s=0.2)
    assert "still sending" in caplog.text
    service.hanging.set()


def test_a_missing_package_is_said_before_anything_begins(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"log.wandb='mine' needs the package wandb: pip install 'rw\[wandb\]'"):
        check_installed("mine")
    check_installed("")


def test_it_is_off_unless_a_project_is_named():
    assert load_config(TINY).log.wandb == ""
    assert load_config(TINY, [("log.wandb", "mine")]).log.wandb == "mine"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_run_without_network_keeps_its_rows_for_later(run, warm, environment, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setitem(environment, "WANDB_MODE", "offline")
    overrides = [
        "--config.init.source=params", f"--config.init.path={warm}", "--config.evaluation.test_queries=0",
        "--config.log.wandb=rw-tests",
    ]  # fmt: skip
    workdir = tmp_path / "run"
    run("train", workdir, *overrides, "--config.steps=1")
    state = json.loads((workdir / "wandb.json").read_text())
    assert state["sent"] == {"metrics.jsonl": 1, "validation.jsonl": 1}
    run("train", workdir, *overrides, "--config.steps=2")
    assert json.loads((workdir / "wandb.json").read_text())["id"] == state["id"]
    kept = sorted(path.name for path in (workdir / "wandb").glob("offline-run-*"))
    assert len(kept) == 2 and all(name.endswith(state["id"]) for name in kept)
