"""Evaluations of the packaged quickstart router on few questions, in this process; and what is read of them."""

import json

from rw import cli

ROUTER = "quickstart"
CONFIG = "configs/quickstart.py"
CLOCK = ("latency_s", "queue_wait_s")
SMALL = {
    "deterministic": "true",
    "engine.slots": "8",
    "engine.lengths": "(576,)",
    "engine.decode_widths": "(8,)",
    "engine.prefill_rows": "(8,)",
    "batch.length_buckets": "(576,)",
    "rollout.concurrency": "8",
    "evaluation.test_queries": "6",
}


def arguments(root, workdir, *flags, checkpoint=ROUTER, **values):
    """Of `rw evaluate`; `values` are config keys with `__` for the dot."""
    keys = SMALL | {name.replace("__", "."): str(value) for name, value in values.items()}
    given = ["--config", str(root / CONFIG), "--checkpoint", str(checkpoint), "--workdir", str(workdir)]
    return ["evaluate", *given, *flags, *(f"--config.{key}={value}" for key, value in keys.items())]


def json_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def arm(workdir, name):
    """(header, outcomes) of an arm, as JSON has them."""
    header, *lines = json_lines(workdir / "evaluation" / f"{name}.jsonl")
    return header, lines


def arms(workdir):
    return sorted(path.stem for path in (workdir / "evaluation").glob("*.jsonl"))


def without_clock(value):
    """The same without what a clock measured."""
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCK}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def answers(workdir):
    """All that an evaluation kept of its arms, by file."""
    folder = workdir / "evaluation"
    paths = [path for path in folder.rglob("*.jsonl") if "superseded" not in path.parts]
    return {str(path.relative_to(folder)): without_clock(json_lines(path)) for path in paths}


def assert_same_arms(workdir, other):
    """All arms of `workdir` are those of `other`, but for their headers and the clock."""
    for name in arms(workdir):
        assert without_clock(arm(workdir, name)[1]) == without_clock(arm(other, name)[1]), name


def calls(workdir):
    """Identities of the calls that were answered and paid for, in order."""
    names = ("run", "step", "group", "rollout", "turn", "call")
    booked = [line for line in json_lines(workdir / "ledger.jsonl") if line["kind"] == "call" and line["accepted"]]
    return [tuple(line[name] for name in names) for line in booked]


def main(given, expect=0):
    """Runs the command."""
    code = cli.main(given)
    assert code == expect, f"exit code {code}"
