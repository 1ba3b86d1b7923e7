"""The `rw` command: arguments, one-line errors with their exit codes, and a workdir that only one run may use."""

import dataclasses
import errno
import os
import pathlib

import pytest

from rw import cli
from rw.config import load_config
from rw.errors import ConfigError, DataError, WorkdirError
from rw.parts import load_codec, open_mesh
from rw.processes import Processes
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.prompts import Prompts
from rw.questions import check_prompts
from rw.simulation import queries, skills
from rw.workdir import Workdir

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
QUICKSTART = pathlib.Path(__file__).parent.parent.parent / "configs" / "quickstart.py"


def test_arguments_and_default_workdir():
    config, overrides, workdir, flags = cli.parse_arguments(
        "train", ["--config", "configs/a.py", "--config.b.c=1=2", "--config.d", "x"]
    )
    assert (config, overrides, workdir) == ("configs/a.py", [("b.c", "1=2"), ("d", "x")], "runs/a")
    assert (flags.processes, flags.process, flags.coordinator) == (None, None, None)


def test_unknown_arguments_are_refused():
    with pytest.raises(ConfigError, match="unknown argument '--wrkdir=x'; did you mean '--workdir'"):
        cli.parse_arguments("train", ["--wrkdir=x"])  # said before that --config is missing
    with pytest.raises(ConfigError, match="unknown argument '--steps'; config values are set as --config"):
        cli.parse_arguments("train", ["--config", "a.py", "--steps", "3"])
    with pytest.raises(ConfigError, match="needs a value"):
        cli.parse_arguments("train", ["--config", "a.py", "--config.b"])


def test_a_full_disk_is_one_line_and_other_errors_of_the_system_are_not_hidden(capsys):
    def ends_with(number):
        def body(given):
            raise OSError(number, os.strerror(number), "runs/a/metrics.jsonl")

        return cli.run_entry("train", ["--config", TINY], body)

    assert ends_with(errno.ENOSPC) == ends_with(errno.EROFS) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "No space left on device: 'runs/a/metrics.jsonl'; make room" in lines[0]
    with pytest.raises(OSError):
        ends_with(errno.EBADF)


def test_errors_are_one_line_and_an_exit_code(capsys, tmp_path):
    assert cli.main(["train", "--config", TINY, "--workdir", str(tmp_path / "w"), "--config.stps=1"]) == 2
    lines = capsys.readouterr().err.strip().split("\n")
    assert lines == ["rw train: error: unknown config key config.stps; did you mean 'steps'?"]
    assert not (tmp_path / "w").exists()


def test_unknown_command(capsys):
    assert cli.main(["trian"]) == 2
    assert "unknown command 'trian'; did you mean 'train'?" in capsys.readouterr().err
    assert cli.main([]) == 2 and cli.main(["--help"]) == 0


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["evaluate", "--config", TINY, "--checkpont", "x"], "--checkpoint"),
        (["report", "--agianst", "a"], "--against"),
        (["ledger", "--cvs", "a"], "--csv"),
        (["convert", "--form", "a"], "--from"),
        (["score", "--datset", "math"], "--dataset"),
        (["data", "prepare", "--imput=a"], "--input"),
    ],
)
def test_every_command_names_the_flag_that_is_nearest_to_a_misspelt_one(words, near, capsys):
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert f"did you mean '{near}'?" in error and error.startswith("rw ") and error.count("\n") == 1


def test_missing_key_variable_is_named(capsys, tmp_path):
    file = tmp_path / "http.py"
    file.write_text(
        "import runpy\n"
        "def get_config():\n"
        f"    config = runpy.run_path({TINY!r})['get_config']()\n"
        "    config.workers.kind = 'http'\n"
        "    config.data.source = 'nq6'\n"
        "    config.evaluation.arms = ('trained',)\n"
        "    config.workers.endpoints = ({'id': 'worker_1', 'description': 'd', 'base_url': 'http://127.0.0.1:9/v1',\n"
        "        'model': 'm', 'key_env': 'RW_TEST_ABSENT_KEY', 'input_price': 1.0, 'output_price': 1.0},)\n"
        "    return config\n"
    )
    assert cli.main(["train", "--config", str(file), "--workdir", str(tmp_path / "w")]) == 2
    error = capsys.readouterr().err
    assert "worker_1" in error and "RW_TEST_ABSENT_KEY" in error and error.count("\n") == 1
    text = file.read_text().replace("'key_env': 'RW_TEST_ABSENT_KEY', 'input_price': 1.0,", "")
    file.write_text(text)
    assert cli.main(["train", "--config", str(file), "--workdir", str(tmp_path / "w")]) == 2
    assert "worker_1 has no price" in capsys.readouterr().err


def test_workdir_serves_one_run_at_a_time(tmp_path):
    with Workdir(tmp_path / "run"):
        with pytest.raises(WorkdirError, match=f"in use by process {os.getpid()}"):
            Workdir(tmp_path / "run")
    Workdir(tmp_path / "run").close()


def test_workdir_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkdirError, match="cannot use workdir"):
        Workdir(tmp_path / "file" / "run")


def test_prompt_over_the_limit_ends_the_run_before_anything_is_spent(capsys, tmp_path):
    workdir = tmp_path / "w"
    command = ["train", "--config", TINY, "--workdir", str(workdir), "--config.protocol.prompt_limit=34"]
    assert cli.main(command) == 2
    said = capsys.readouterr()
    reason = "query 'sim-train-000003': its prompt takes 35 tokens, over prompt_limit 34; raise protocol.prompt_limit, "
    assert said.out == "" and said.err.startswith(f"rw train: error: {reason}") and said.err.count("\n") == 1
    assert (workdir / "ledger.jsonl").read_text() == "" and not (workdir / "warmstart").exists()


def test_prompts_of_later_batches_are_checked_too():
    config = load_config(TINY)
    protocol = RouterProtocol(load_codec("quickstart"), Prompts.load("short"), skills.cards(), config.protocol)
    short = queries.query(0, "train", 0)
    long = dataclasses.replace(short, id="long-1", prompt="word " * 100)
    batches = [[short], [short, long]]
    check_prompts(protocol, lambda b, size: batches[b], 1, 2)
    with pytest.raises(DataError, match="query 'long-1': its prompt takes .* tokens, over prompt_limit 64"):
        check_prompts(protocol, lambda b, size: batches[b], 2, 2)


@pytest.mark.parametrize(
    ("mesh", "says"),
    [({"data": 2, "tensor": 4}, "must divide the 2 key.value heads"), ({"data": 64}, "64")],
)
def test_a_mesh_that_cannot_be_is_refused(mesh, says):
    config = load_config(TINY, [(f"mesh.{axis}", str(size)) for axis, size in mesh.items()])
    with pytest.raises(ConfigError, match=says):
        open_mesh(config, Processes())


def test_a_run_without_a_warm_start_of_its_own_makes_none(tmp_path, capsys):
    workdir = tmp_path / "run"
    assert cli.main(["warmstart", "--config", str(QUICKSTART), "--workdir", str(workdir)]) == 2
    error = capsys.readouterr().err
    assert "init.source='params'" in error and "--config.init.source=warmstart" in error and not workdir.exists()


def test_an_advantage_that_is_not_found_says_where_modules_are_looked_for(tmp_path, capsys):
    argv = ["train", "--config", TINY, "--workdir", str(tmp_path / "run"), "--config.advantage.function=absent_mod:f"]
    assert cli.main(argv) == 2
    assert "No module named 'absent_mod'; PYTHONPATH=." in capsys.readouterr().err
