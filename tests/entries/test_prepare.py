"""`rw data prepare`: what it writes, tells, leaves out and refuses."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from rw import cli, prepare
from rw.data import prepared

ROOT = pathlib.Path(__file__).parent.parent.parent
RECORDS = ROOT / "tests" / "data" / "sources"


def command(*arguments):
    return prepare.main(["prepare", *map(str, arguments)])


def refused(capsys, *arguments):
    assert command(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("rw data prepare: error: ") and captured.err.count("\n") == 1
    return captured.err


def test_a_set_becomes_one_checked_file_with_counts(tmp_path, capsys):
    output = tmp_path / "new" / "apps.jsonl"
    assert command("--dataset", "apps", "--input", RECORDS / "apps.jsonl", "--split", "train", "--output", output) == 0
    said = capsys.readouterr().out
    assert f"apps: reading {RECORDS / 'apps.jsonl'} train" in said
    assert "apps: 3 rows" in said and f"apps: 1 questions in {output}" in said
    assert re.search(r"kept\s+│\s+1 │\s+apps/train-1", said)
    assert re.search(r"call_based\s+│\s+2 │\s+apps.jsonl line 2", said)
    read = prepared.read_queries(output)
    assert [query.id for query in read.queries] == ["apps/train-1"]
    header = {"dataset": "apps", "split": "train", "dropped": {"call_based": 2}, "records": 1, "disjoint_from": []}
    assert header.items() <= read.header.items()
    assert read.header["sources"][0]["bytes"] == (RECORDS / "apps.jsonl").stat().st_size
    assert list(output.parent.iterdir()) == [output]


def test_the_same_command_writes_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        arguments = ("--dataset", "math", "--input", RECORDS / "math.jsonl", "--limit", 5, "--output", tmp_path / name)
        assert command(*arguments) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def ids(path):
    return [query.id for query in prepared.read_queries(path).queries]


def test_a_draw_depends_on_seed_and_ids_alone(tmp_path):
    lines = (RECORDS / "math.jsonl").read_text().rstrip("\n").split("\n")
    (tmp_path / "reversed.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    drawn = {}
    for name, file, seed, limit in (
        ("all", RECORDS / "math.jsonl", 0, 12),
        ("four", RECORDS / "math.jsonl", 0, 4),
        ("five", RECORDS / "math.jsonl", 0, 5),
        ("other", RECORDS / "math.jsonl", 1, 4),
        ("back", tmp_path / "reversed.jsonl", 0, 4),
    ):
        output = tmp_path / f"{name}.out"
        assert command("--dataset", "math", "--input", file, "--limit", limit, "--seed", seed, "--output", output) == 0
        drawn[name] = ids(output)
    assert len(drawn["four"]) == 4 and set(drawn["four"]) < set(drawn["five"])
    assert set(drawn["back"]) == set(drawn["four"]) != set(drawn["other"])
    assert drawn["four"] == [key for key in drawn["all"] if key in drawn["four"]]
    header = prepared.read_queries(tmp_path / "other.out").header
    assert header["dropped"] == {"not_drawn": 8} and header["options"] == {"limit": 4, "seed": 1}


def test_so_many_are_drawn_of_each_task(tmp_path, capsys):
    rows = [
        {"input": f"Is {number} odd ({task})?", "target": "yes", "task": task}
        for task, count in (("navigate", 5), ("web_of_lies", 3), ("snarks", 1))
        for number in range(count)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output, drawn = tmp_path / "out.jsonl", {}
    given = ("--dataset", "bbh", "--input", tmp_path / "rows.jsonl", "--output", output)
    for limit in (2, 3):
        assert command(*given, "--limit", limit, "--per", "task") == 0
        read = prepared.read_queries(output)
        drawn[limit] = {query.id for query in read.queries}
        tasks = [query.metadata["task"] for query in read.queries]
        assert [tasks.count(task) for task in ("navigate", "web_of_lies", "snarks")] == [limit, limit, 1]
        assert read.header["options"] == {"limit": limit, "seed": 0, "per": "task"}
    assert drawn[2] < drawn[3]
    capsys.readouterr()
    assert "--per task needs --limit" in refused(capsys, *given, "--per", "task")
    assert "has no such metadatum; it has task" in refused(capsys, *given, "--limit", 2, "--per", "tesk")


def test_what_is_held_out_is_not_trained_on(tmp_path, capsys):
    test, train = tmp_path / "test.jsonl", tmp_path / "train.jsonl"
    rows = [json.loads(line) for line in (RECORDS / "math.jsonl").read_text().rstrip("\n").split("\n")]
    assert command("--dataset", "math", "--input", RECORDS / "math.jsonl", "--limit", 5, "--output", test) == 0
    held_out = ids(test)
    reworded = [{**row, "problem": f"Well then. {row['problem']}"} for row in rows if len(row["problem"].split()) > 15]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + reworded))
    capsys.readouterr()
    assert command(
        "--dataset", "math", "--input", tmp_path / "rows.jsonl", "--disjoint-from", test, "--output", train
    ) == 0  # fmt: skip
    said = capsys.readouterr().out
    read = prepared.read_queries(train)
    assert not set(held_out) & set(ids(train)) and read.header["dropped"]["in_other_file"] == 5
    assert read.header["dropped"]["nearly_in_other_file"] >= 1
    assert read.header["records"] + sum(read.header["dropped"].values()) == len(rows) + len(reworded)
    assert read.header["disjoint_from"] == [
        {"name": "test.jsonl", "records": 5, "sha256": prepared.read_queries(test).header["sha256"]}
    ]
    assert f"comparing {len(rows) + len(reworded)} questions with 5 others" in said


def test_levels_of_math_are_chosen(tmp_path):
    for levels, kept in (("2-5", 10), ("1", 2)):
        arguments = ("--input", RECORDS / "math.jsonl", "--levels", levels, "--output", tmp_path / "out.jsonl")
        assert command("--dataset", "math", *arguments) == 0
        assert len(ids(tmp_path / "out.jsonl")) == kept


def test_prompts_over_the_limit_are_dropped_where_a_tokenizer_is_given(tmp_path):
    output = tmp_path / "out.jsonl"
    arguments = ("--dataset", "math", "--input", RECORDS / "math.jsonl", "--tokenizer", "quickstart")
    assert command(*arguments, "--output", output) == 0
    assert len(ids(output)) == 12
    assert command(*arguments, "--prompt-limit", 200, "--output", output) == 0
    dropped = prepared.read_queries(output).header["dropped"]
    assert set(dropped) == {"prompt_too_long"} and 0 < dropped["prompt_too_long"] < 12


def test_taco_leaves_out_what_the_list_of_judges_names(tmp_path):
    tests = json.dumps({"inputs": ["1"], "outputs": ["1"]})
    rows = "".join(json.dumps({"question": f"Q{n}?", "input_output": tests}) + "\n" for n in range(3))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "judged.jsonl").write_text('{"idx": 2, "special_judge": true, "case": ""}\n')
    arguments = ("--input", tmp_path / "rows.jsonl", "--special-judge", tmp_path / "judged.jsonl")
    assert command("--dataset", "taco", *arguments, "--output", tmp_path / "out.jsonl") == 0
    assert prepared.read_queries(tmp_path / "out.jsonl").header["dropped"] == {"special_judge": 1}


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("--dataset", "mats", "--input", "{math}"), "unknown data set 'mats'; did you mean 'math'?"),
        (("--dataset", "math", "--input", "none.jsonl"), "there is no none.jsonl; --input takes a file"),
        (("--dataset", "math", "--input", ""), "there is no file of an empty name"),
        (("--dataset", "math", "--input", "{math}", "--prompt-limit", "9"), "--prompt-limit needs --tokenizer"),
        (("--dataset", "math", "--input", "{aime}"), "aime25.jsonl line 1: no column solution"),
        (("--dataset", "math", "--input", "{math}", "--levels", "0-5"), "--levels 0-5 must be"),
        (("--dataset", "math", "--input", "{math}", "--levels", "5-2"), "--levels 5-2 must be"),
        (("--dataset", "aime", "--input", "{aime}", "--levels", "2"), "--levels is for the data set math, not aime"),
        (("--dataset", "aime", "--input", "{aime}", "--drop-ambiguous"), "--drop-ambiguous is for the data set live"),
        (("--dataset", "math", "--input", "{math}", "--limit", "0"), "--limit 0 must be at least 1"),
        (("--dataset", "math", "--input", "{math}", "--disjoint-from", "{aime}"), "aime25.jsonl line 1 is no header"),
        (("--dataset", "math", "--input", "{math}", "--tokenizer", "none"), "tokenizer.path='none' is neither"),
        (("--dataset", "apps", "--input", "{called}"), "no question is left of 1 rows"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_writes_nothing(tmp_path, capsys, arguments, says):
    called = tmp_path / "called.jsonl"
    called.write_text('{"problem_id": 1, "question": "?", "input_output": ""}\n')
    files = {"{math}": RECORDS / "math.jsonl", "{aime}": RECORDS / "aime25.jsonl", "{called}": called}
    given = [files.get(argument, argument) for argument in arguments]
    assert says in refused(capsys, *given, "--output", tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == [called]


def test_only_prepared_files_are_replaced(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes((RECORDS / "math.jsonl").read_bytes())
    assert "no file of prepared questions" in refused(capsys, "--dataset", "math", "--input", rows, "--output", rows)
    assert rows.read_bytes() == (RECORDS / "math.jsonl").read_bytes()
    assert "no file of prepared" in refused(capsys, "--dataset", "math", "--input", rows, "--output", tmp_path)
    for limit in (3, 2):
        output = tmp_path / "out.jsonl"
        assert command("--dataset", "math", "--input", rows, "--limit", limit, "--output", output) == 0
        assert len(ids(output)) == limit


def test_a_file_is_not_kept_apart_from_itself(tmp_path, capsys):
    held_out = tmp_path / "math.test.jsonl"
    make = ("--dataset", "math", "--input", RECORDS / "math.jsonl", "--limit", 3, "--output", held_out)
    assert command(*make) == 0
    before = held_out.read_bytes()
    again = held_out.parent / ".." / tmp_path.name / held_out.name
    assert "is among the files of --disjoint-from" in refused(capsys, *make, "--disjoint-from", again)
    assert held_out.read_bytes() == before


def test_a_place_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "out.jsonl"
    assert f"cannot write {output}" in refused(
        capsys, "--dataset", "math", "--input", RECORDS / "math.jsonl", "--output", output
    )


def test_an_interrupt_is_one_line(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "load", interrupted)
    argv = ["prepare", "--dataset", "math", "--input", str(RECORDS / "math.jsonl"), "--output", str(tmp_path / "out")]
    assert prepare.main(argv) == 130
    assert capsys.readouterr().err.splitlines() == ["rw data prepare: stopped; a file is written whole or not at all"]
    assert not list(tmp_path.iterdir())


def test_the_command_reaches_it(tmp_path):
    arguments = ["--dataset", "aime", "--input", str(RECORDS / "aime25.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    assert cli.main(["data", "prepare", *arguments]) == 0
    assert len(ids(tmp_path / "out.jsonl")) == 3


def test_other_words_and_help(capsys):
    assert prepare.main([]) == prepare.main(["prepar"]) == 2
    assert capsys.readouterr().err.count("usage: rw data prepare") == 2
    assert prepare.main(["--help"]) == 0
    with pytest.raises(SystemExit) as left:
        prepare.main(["prepare", "--help"])
    assert left.value.code == 0 and "simple_qa_verified" in capsys.readouterr().out


def test_preparing_brings_no_jax_along(tmp_path):
    program = (
        "import sys; from rw import prepare\n"
        f"code = prepare.main(['prepare', '--dataset', 'math', '--input', {str(RECORDS / 'math.jsonl')!r}, "
        f"'--output', {str(tmp_path / 'out.jsonl')!r}])\n"
        "sys.exit(code or 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
