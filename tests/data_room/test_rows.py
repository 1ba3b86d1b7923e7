"""Rows of files: every format, packed or not, what breaks careless readers, and which files of a directory are read."""

import csv
import gzip
import json
import lzma
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from rw.data.rows import LongInteger, data_files, described, parse_json, read_rows
from rw.errors import DataError

ROWS = [{"q": 'a\u2028b\x85c "d"', "n": 1}, {"q": "e\r\nf", "n": 2}]


def values(path, **arguments):
    return [row.values for row in read_rows(path, **arguments)]


def write(path, text):
    data = text.encode("utf-8") if isinstance(text, str) else text
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as file:
        file.write(data)
    return path


def json_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.JSONL.xz", "a.ndjson"])
def test_json_lines_end_at_line_feeds_alone(tmp_path, name):
    assert values(write(tmp_path / name, json_lines(ROWS))) == ROWS


@pytest.mark.parametrize("text", ["\ufeff" + json_lines(ROWS), json_lines(ROWS).replace("}\n", "}\r\n\r\n").rstrip()])
def test_byte_order_marks_blank_lines_and_a_last_line_without_end_do_not_matter(tmp_path, text):
    assert values(write(tmp_path / "a.jsonl", text)) == ROWS


@pytest.mark.parametrize(
    "text",
    [json.dumps(ROWS), json.dumps(ROWS, indent=1), json.dumps({"canary": "x", "examples": ROWS}), json_lines(ROWS)],
)
def test_a_json_file_holds_a_list_a_list_by_its_key_or_lines(tmp_path, text):
    assert values(write(tmp_path / "a.json", text), container="examples") == ROWS


def test_a_json_file_of_one_object_is_one_row(tmp_path):
    assert values(write(tmp_path / "a.json", json.dumps(ROWS[0]))) == ROWS[:1]


@pytest.mark.parametrize("name, delimiter", [("a.csv", ","), ("a.csv.gz", ","), ("a.tsv", "\t")])
def test_tables_keep_line_ends_quotes_and_long_cells(tmp_path, name, delimiter):
    long = "x" * 200_000  # over the reader's own limit
    plain = tmp_path / "plain"
    with plain.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([["q", "n"], [ROWS[0]["q"], "1"], [ROWS[1]["q"], long]])
    path = write(tmp_path / name, plain.read_bytes())
    assert values(path) == [{"q": ROWS[0]["q"], "n": "1"}, {"q": ROWS[1]["q"], "n": long}]


def test_parquet_and_arrow_leave_out_what_nobody_reads(tmp_path):
    table = pa.Table.from_pylist([{**row, "big": "x" * 100, "list": ["a"]} for row in ROWS])
    parquet.write_table(table, tmp_path / "a.parquet")
    for name, new in (("stream.arrow", pa.ipc.new_stream), ("file.arrow", pa.ipc.new_file)):
        with new(tmp_path / name, table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
    wanted = [{**row, "list": ["a"]} for row in ROWS]
    for name in ("a.parquet", "stream.arrow", "file.arrow"):
        assert values(tmp_path / name, unread=("big", "gone")) == wanted
    assert [row.where for row in read_rows(tmp_path / "file.arrow")] == ["file.arrow row 1", "file.arrow row 2"]


def test_parquet_without_its_library_says_what_to_install(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from rw.data.rows import *; import pathlib\n"
        f"try: next(read_rows(pathlib.Path({str(tmp_path / 'a.parquet')!r})))\n"
        "except DataError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "pip install -e '.[data]'" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "name, data, says",
    [
        ("a.jsonl", '{"q": 1}\n{"q": \n', "a.jsonl line 2 is no JSON"),
        ("a.jsonl", '{"q": 1}\n[1]\n', "a.jsonl line 2: a row is an object, not list"),
        ("a.jsonl", b'{"q": "\xff"}\n', "a.jsonl line 1 is no JSON in UTF-8"),
        ("a.jsonl", '{"q": ' + "[" * 100_000, "line 1 is no JSON in UTF-8: nested too deeply"),
        ("a.json", "{", "a.json is no JSON"),
        ("a.json", "3", "a.json holds int, not a list of rows"),
        ("a.csv", "a,b\n1,2,3\n", "a.csv line 2: a row with another number of cells"),
        ("a.csv", "a,b\n1\n", "a.csv line 2: a row with another number of cells"),
        ("a.csv", 'a,b\n"1"x,2\n', "a.csv, the row behind line 1"),
        ("a.csv", b"a\n\xff\n", "is no UTF-8"),
        ("a.parquet", b"not one", "cannot read"),
        ("a.arrow", b"not one at all", "cannot read"),
    ],
)
def test_what_is_not_of_its_format_is_named(tmp_path, name, data, says):
    with pytest.raises(DataError, match=says):
        values(write(tmp_path / name, data))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.xz"])
def test_a_packed_file_cut_short_is_named(tmp_path, name):
    path = write(tmp_path / name, json_lines(ROWS * 50))
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=f"cannot read .*{name}"):
        values(path)


def test_integers_too_long_for_python_stay_texts():
    digits = "9" * 5000
    value = parse_json(f'{{"a": [{digits}, -{digits}, 12], "b": {"1" * 4000}}}')
    assert value["a"] == [digits, f"-{digits}", 12] and value["b"] == int("1" * 4000)
    assert [type(item) for item in value["a"]] == [LongInteger, LongInteger, int]


def test_files_of_a_split_are_found_by_words_in_their_names(tmp_path):
    names = ["README.md", ".cache/train.jsonl", "b/train-00000-of-1.parquet", "a/train.jsonl.gz", "test.jsonl"]
    for name in [*names, "test2.jsonl", "latest.jsonl"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")

    def found(*splits):
        return [path.relative_to(tmp_path).as_posix() for path in data_files(tmp_path, splits)]

    assert found("train") == ["a/train.jsonl.gz", "b/train-00000-of-1.parquet"]
    assert found("test") == found("validation", "test") == ["test.jsonl", "test2.jsonl"]
    with pytest.raises(DataError, match="files of the split test and train, none of 'validation'"):
        found("validation")
    with pytest.raises(DataError, match="choose one with --split"):
        found()


def test_files_that_name_no_split_are_all_read_in_the_order_of_their_names(tmp_path):
    for name in ("b.jsonl", "a.csv"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in data_files(tmp_path, ["train"])] == ["a.csv", "b.jsonl"]
    assert data_files(tmp_path / "b.jsonl") == [tmp_path / "b.jsonl"]


def test_nothing_to_read_is_said(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "a.parquet.gz").write_text("x")
    for path, says in (
        (tmp_path / "none", "there is no"),
        (tmp_path, "holds no file to read rows from"),
        (tmp_path / "notes.txt", "rows are read from"),
    ):
        with pytest.raises(DataError, match=says):
            data_files(path)


def test_files_are_described_by_bytes_and_checksum(tmp_path):
    (tmp_path / "a").mkdir()
    one = write(tmp_path / "a" / "x.jsonl", b"{}\n")
    digest = "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"
    assert described([one], tmp_path) == [{"name": "a/x.jsonl", "bytes": 3, "sha256": digest}]
    assert described([one], one)[0]["name"] == "x.jsonl"
    (many,) = described([one] * 65, tmp_path)
    assert many["name"] == "65 files" and many["bytes"] == 195 and len(many["sha256"]) == 64
