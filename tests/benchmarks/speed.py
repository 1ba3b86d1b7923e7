"""The one command: rw beside tunix, transformers, TRL and plain torch on the same work, on the machine at hand.

    python tests/benchmarks/speed.py --tunix TUNIX_PYTHON --torch TORCH_PYTHON --json speed.json

Each peer runs in an environment of its own, whose Python is named (a peer that is not named is left out):

    python3.11 -m venv peer_tunix && peer_tunix/bin/pip install google-tunix==0.1.7
    python3.11 -m venv peer_torch && peer_torch/bin/pip install torch==2.13.0 numpy transformers==5.24.0 trl==1.16.0

First the logits of all are compared on the same weights. Then every participant of a kind of work starts, compiles and
waits; each round has one run of each, one after another, so that a machine that is slower for a while is so for all.
Nothing fails for being slow: what is printed is a table of medians with the least and the most, and of ratios.

What `--parts` names besides `gen` and `step` is rw alone: rollouts against slow Workers, a long prompt shared by eight
rollouts, how speed goes with slots, context and trajectories, and a learner that streams against one that collects.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import speed_work as work

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-4  # of logits up to 5, in float32
REGIME_RUNS = [["--long-rows", "--latency=0.6"], ["--latency=0", "--steps=20"]]  # short steps vary more
ALONE = {  # scripts of rw's own, each run with these flags, or with the last ones where it is to be quick
    "rollout": ("rollout_speed.py", [[]], ["--quick"]),
    "prefix": ("prefix_speed.py", [[]], ["--quick"]),
    "scaling": ("scaling_speed.py", [[]], ["--quick"]),
    "regime": ("regime_speed.py", REGIME_RUNS, ["--steps=1", "--warm=1"]),
}


@dataclasses.dataclass(frozen=True)
class Participant:
    """A script and the part of it that does the work, in the environment `python` belongs to."""

    name: str
    environment: str  # ours, tunix or torch
    part: str

    @property
    def script(self) -> str:
        """Its path."""
        return str(HERE / f"speed_{self.environment}.py")


PARTICIPANTS = {
    "gen": (
        Participant("rw", "ours", "gen"),
        Participant("tunix Sampler", "tunix", "gen"),
        Participant("transformers generate", "torch", "gen"),
    ),
    "step": (
        Participant("rw", "ours", "step"),
        Participant("tunix GRPO", "tunix", "step"),
        Participant("TRL GRPO", "torch", "trl"),
        Participant("plain torch", "torch", "plain"),
    ),
}
MACHINE = Participant("machine", "ours", "machine")


class Running:
    """A participant's process that has made its first run and waits for the word."""

    def __init__(self, participant: Participant, python: str, shape: str):
        self.participant = participant
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [python, participant.script, participant.part, shape],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(),
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """What it says of its next run. RuntimeError with the end of its stderr where it died."""
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-3000:]
        raise RuntimeError(f"{self.participant.script} {self.participant.part} ended with code {code}:\n{said}")

    def run(self) -> dict[str, Any]:
        """Has it do the work once."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.answer()

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def environment() -> dict[str, str]:
    """This process's environment, in which rw is found and jax takes the CPU unless told otherwise."""
    return {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}


def main() -> None:
    known = parse()
    pythons = {"ours": sys.executable, "tunix": known.tunix, "torch": known.torch}
    report: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg(), "logits": [], "work": []}
    for shape in known.shapes:
        report["logits"] += compared_logits(shape, pythons)
        for kind in ("gen", "step"):
            if kind in known.parts:
                report["work"].append(measure(kind, shape, pythons, known.rounds))
                print("\n".join(lines(report["work"][-1])), flush=True)
    for part in known.parts:
        if part in ALONE:
            report[part] = alone(part, known.quick)
    report["load_after"] = os.getloadavg()
    if known.json:
        known.json.write_text(json.dumps(report, indent=1))
    print("\n" + table(report))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    listed = {"type": lambda text: text.split(",")}
    parser.add_argument("--tunix", help="the Python of an environment with google-tunix")
    parser.add_argument("--torch", help="the Python of an environment with torch, transformers and trl")
    parser.add_argument("--shapes", default=["tiny", "medium"], help="of " + ", ".join(work.SHAPES), **listed)
    parser.add_argument("--parts", default=["gen", "step", *ALONE], help="gen,step," + ",".join(ALONE), **listed)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the parts of rw alone at a small size")
    parser.add_argument("--json", type=pathlib.Path, help="where to write everything that was measured")
    known = parser.parse_args()
    for given, legal in ((known.shapes, work.SHAPES), (known.parts, {"gen", "step", *ALONE})):
        if unknown := set(given) - set(legal):
            parser.error(f"{sorted(unknown)} is none of {sorted(legal)}")
    return known


def machine() -> dict[str, Any]:
    """What it is, as far as a program can tell."""
    names = [line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0))}


def _cpu_lines() -> list[str]:
    with contextlib.suppress(OSError):
        return pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return []


def compared_logits(shape: str, pythons: dict[str, str | None]) -> list[dict[str, Any]]:
    """Whether all compute the same: largest differences from ours. RuntimeError where one is beyond rounding."""
    found, facts = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, python in pythons.items():
            if python is not None:
                path = f"{folder}/{name}.npy"
                command = [python, str(HERE / f"speed_{name}.py"), "logits", shape, path]
                done = subprocess.run(command, env=environment(), capture_output=True, text=True)
                if done.returncode:
                    raise RuntimeError(f"{command} failed:\n{done.stderr[-3000:]}")
                found[name], facts[name] = np.load(path), json.loads(done.stdout)
    rows = []
    for name, values in found.items():
        error = float(np.abs(values - found["ours"]).max())
        if not error <= TOLERANCE:
            raise RuntimeError(f"logits of {name} differ from ours by {error} on {shape}: this is not the same work")
        rows.append({"shape": shape, "environment": name, "error": error, **facts[name]})
    return rows


def measure(kind: str, shape: str, pythons: dict[str, str | None], rounds: int) -> dict[str, Any]:
    """All participants of a kind of work, in turns: their seconds, and what the machine did beside them."""
    present = [p for p in (MACHINE, *PARTICIPANTS[kind]) if pythons[p.environment] is not None]
    started = os.getloadavg()
    with started_all(present, pythons, shape) as running:
        firsts = [one.answer() for one in running]
        answers = [[one.run() for one in running] for _ in range(rounds)]
    rates, *ours_and_peers = zip(*answers, strict=True)
    rows = [
        {"name": one.name, "first": first, "runs": list(runs)}
        for one, first, runs in zip(present[1:], firsts[1:], ours_and_peers, strict=True)
    ]
    floor = {"gen": work.gen_floor, "step": work.step_floor}[kind]
    best = {unit: max(rate[unit] for rate in rates) for unit in ("flops", "bytes_s")}
    load = (started[0], os.getloadavg()[0])
    return {
        "kind": kind,
        "shape": shape,
        "rows": rows,
        "floor_s": floor(work.SHAPES[shape], **best),
        **best,
        "load": load,
    }


@contextlib.contextmanager
def started_all(participants: Sequence[Participant], pythons: dict, shape: str) -> Iterator[list[Running]]:
    """Their processes, ended at the end. One compiles after another: `answer` comes from each when it is ready."""
    running: list[Running] = []
    try:
        for participant in participants:
            running.append(Running(participant, pythons[participant.environment], shape))
        yield running
    finally:
        for one in running:
            one.stop()


def alone(part: str, quick: bool) -> list[Any]:
    """What one of rw's own benchmarks says, run by run: the JSON on the last line of its output."""
    script, runs, quickly = ALONE[part]
    said = []
    for flags in [quickly] if quick else runs:
        started = time.perf_counter()
        command = [sys.executable, str(HERE / script), *flags]
        done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
        print(f"{script} {' '.join(flags)}: {time.perf_counter() - started:.0f} s", flush=True)
        said.append(json.loads(done.stdout.splitlines()[-1]))
    return said


def spread(values: Sequence[float]) -> str:
    """Median (least–most)."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}–{max(values):.3g})"


def lines(measured: dict[str, Any]) -> list[str]:
    """Rows of the table: one a participant, with its ratio to ours, round by round."""
    ours = [run["s"] for run in measured["rows"][0]["runs"]]
    made = []
    for row in measured["rows"]:
        seconds = [run["s"] for run in row["runs"]]
        tokens = [work.ROWS * work.NEW / s for s in seconds]
        rate = f"{statistics.median(tokens):,.0f} tok/s" if measured["kind"] == "gen" else ""
        again = [theirs / own for theirs, own in zip(seconds, ours, strict=True)]
        cells = [
            f"{measured['kind']} {measured['shape']}",
            row["name"],
            spread(seconds),
            rate,
            spread([run["cpu_s"] for run in row["runs"]]),
            f"{measured['floor_s'] / statistics.median(seconds):.0%}",
            spread(again),
        ]
        made.append("| " + " | ".join(cells) + " |")
    return made


def table(report: dict[str, Any]) -> str:
    """All of it, as Markdown."""
    text = [
        "{cpu}, {cores} cores".format(**report["machine"])
        + f", load {report['load_before'][0]:.1f} before, {report['load_after'][0]:.1f} after. Medians (least–most).",
        "",
    ]
    text += [
        f"- logits on {row['shape']}, {row['environment']}: {row['error']:.1e} from rw's" for row in report["logits"]
    ]
    for measured in report["work"]:
        norms = [
            f"{row['name']} {row['first']['grad_norm']:.5g}" for row in measured["rows"] if "grad_norm" in row["first"]
        ]
        text += [f"- norm of the first gradient on {measured['shape']}: {', '.join(norms)}"] if norms else []
    heads = ["work", "who", "s", "rate", "CPU s", "floor / s", "s / rw's s, round by round"]
    text += ["", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    text += [line for measured in report["work"] for line in lines(measured)]
    for part in ALONE:
        for said in report.get(part, ()):
            text += ["", *(said["table"] if "table" in said else regime_table(said))]
    return "\n".join(text)


def regime_table(said: dict[str, Any]) -> list[str]:
    """The two regimes of the learner with one latency of the Workers."""
    heads = ["rows", "Workers' mean, s", "update / step", "collect step, s", "stream step, s", "stream / collect"]
    seconds = ["{:.2f} ({:.2f}–{:.2f})".format(*said[f"{regime}/perf/step_s"]) for regime in ("collect", "stream")]
    ratio = "{:.2f} ({:.2f}–{:.2f})".format(*said["ratio"])
    rows = "2,048 tokens" if said["long_rows"] else "quickstart's"
    cells = [rows, f"{said['latency_s']:g}", f"{said['update_share']:.0%}", *seconds, ratio]
    return ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), "| " + " | ".join(cells) + " |"]


if __name__ == "__main__":
    main()
