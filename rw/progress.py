"""What people see while a run goes on: one line a step, and on a terminal a live count of rollouts."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from rw.evaluation.aggregate import is_lost
from rw.evaluation.outcomes import FOLDER, ArmResult
from rw.rollout.stream import Progress
from rw.workers.spending import Spent

LINE_EVERY_S = 30.0  # where there is no terminal to draw a bar on
# In a notebook: plain lines and no bar, which would be kept in the file once for every time it is drawn.
_BAR = False if Console().is_jupyter else None
_CONSOLE = Console(stderr=False, highlight=False, soft_wrap=True, force_jupyter=False, force_terminal=_BAR)


def say(text: str) -> None:
    """Prints one line at once."""
    _CONSOLE.print(text, markup=False)
    sys.stdout.flush()


def be_quiet() -> None:
    """Says nothing from now on: another process of the job speaks for all."""
    _CONSOLE.quiet = True


@contextlib.contextmanager
def rollouts(label: str) -> Iterator[Callable[[Progress], None]]:
    """A callback for the progress of rollouts ("step 3"), shown as `counted` does."""
    with counted(f"{label} rollouts") as on_count:
        yield lambda progress: on_count(progress.rollouts, progress.total)


@contextlib.contextmanager
def counted(label: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A callback for (done, total where it is not the one given): a bar on a terminal, else a line at times."""
    if not _CONSOLE.is_terminal:
        said_at = time.monotonic()

        def on_count(done: int, total: int | None = total) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= LINE_EVERY_S and done != total:
                say(f"{label}: {done}{'' if total is None else f' of {total}'}")
                said_at = time.monotonic()

        yield on_count
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=_CONSOLE, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done, total=total: bar.update(task, completed=done, total=total)


def step_line(row: Mapping[str, Any], step: int, steps: int, cold_start: bool, is_nominal: bool = False) -> str:
    """One step in one line; `-` stands for what the step could not measure.

    `is_nominal`: the Workers are simulated or recorded, so that nobody is paid what they "cost".
    Exclusions that hit one mode more than twice as often as another are told by mode: they bias the choice of modes.
    """
    phase = "cold" if cold_start else "free" if row["rho_b"] == 0 else f"rho {row['rho_b']:.2f}"
    sampled, lost = (
        "/".join(_number(row, f"{name}/{word}", ".2f") for word in ("single", "multi", "agentic"))
        for name in ("mode/sampled_freq", "infra/excluded_frac")
    )
    spent, unknown = _number(row, "cost/spent_usd", ".4g"), row.get("cost/unknown_usd")
    unreported = f" ({unknown:.2g} unknown)" if unknown else ""
    of_cap = f", {row['cost/cap_share']:.0%} of {row['cost/cap']}" if row.get("cost/cap") else ""
    uneven = f" (uneven by mode: {lost})" if row.get("infra/excluded_unevenly") else ""
    return (
        f"step {step}/{steps} {phase:<8} accuracy {_number(row, 'accuracy', '.3f')}"
        f"  invalid {_number(row, 'invalid/total', '.2f')}  excluded {_number(row, 'infra/excluded_frac', '.2f')}"
        f"{uneven}  modes {sampled}  cost {_number(row, 'cost/per_rollout', '.2e')} USD"
        f"  spent {spent} {'nominal ' if is_nominal else ''}USD{unreported}{of_cap}"
        f"  kl {_number(row, 'loss/kl', '.4f')}  grad {_number(row, 'grad_norm', '.3f')}"
        f"  {time_words(row)}"
    )


def time_words(row: Mapping[str, Any]) -> str:
    """Where a step's seconds went; `-` stands for what was not measured.

    Of the rollouts: the sampler's two kinds of work; `wait`: it had none, since all episodes waited for Workers;
    `score`: none, since they waited for verdicts; and what the learner did meanwhile, if anything.
    """
    step, rollout, decode, prefill, wait, score, train, reference, update, publish = (
        _number(row, f"perf/{name}_s", ".2f")
        for name in (
            "step", "rollout", "decode", "prefill", "wait", "score", "train", "reference", "update", "publish",
        )
    )  # fmt: skip
    meanwhile = row.get("sampler/idle_work_s")
    learning = f"; learning meanwhile {meanwhile:.2f}" if meanwhile else ""
    return (
        f"{step} s: rollout {rollout} (decode {decode}, prefill {prefill}, wait {wait}, score {score}{learning}), "
        f"train {train} (reference {reference}, update {update}), publish {publish}"
    )


def spent_line(spent: Spent, is_nominal: bool) -> str:
    """What a whole run has spent, evaluations too."""
    unreported = f", {spent.unknown_usd:.2g} of them unknown" if spent.unknown_usd else ""
    replayed = f"; answers worth {spent.replayed_usd:.4g} USD were not paid again" if spent.replayed_usd else ""
    return f"spent {spent.total_usd:.4g} {'nominal ' if is_nominal else ''}USD in all{unreported}{replayed}"


def validation_line(row: Mapping[str, Any], step: int, best_step: int, seconds: float) -> str:
    """One validation in one line."""
    modes = "/".join(_number(row, f"eval/mode_share/{word}", ".2f") for word in ("single", "multi", "agentic"))
    return (
        f"validation of step {step}: accuracy {row['eval/accuracy']:.3f} of {row['eval/questions']:.0f}, greedy"
        f"  invalid {row['eval/invalid']:.2f}  excluded {row['eval/excluded']:.2f}  modes {modes}"
        f"  cost {_number(row, 'eval/cost_usd', '.2e')} USD  best {best_step}  {seconds:.2f} s"
    )


def arm_line(result: ArmResult) -> str:
    """One arm of the final evaluation in one line, and what to do about questions that were lost."""
    correct = sum(outcome.correct for outcome in result.outcomes)
    lost = sum(map(is_lost, result.outcomes))
    again = f", {lost} lost to infrastructure; remove {FOLDER}/{result.arm}.jsonl to ask again" if lost else ""
    return f"test: {result.arm:<18} {correct}/{len(result.outcomes)} right{again}"


def _number(row: Mapping[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    return format(value, form) if isinstance(value, (int, float)) else str(value) if value else "-"
