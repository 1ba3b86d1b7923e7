"""A made-up run from a fixed seed: config, rows, validations and arms of a router that learns."""

import json
import pathlib
import types

import numpy as np
import pytest

from rw.evaluation import style
from rw.evaluation.outcomes import ArmResult, Outcome, arm_path, read_arm, trajectories_path, write_arm
from rw.evaluation.validation import validation_metrics
from rw.types import Mode

KINDS = ("recall_lookup", "know_lookup", "math_chain", "code_chain", "reason_search")
BEST = {"recall_lookup": 0, "know_lookup": 0, "math_chain": 1, "code_chain": 1, "reason_search": 2}
RIGHT, WRONG = 0.86, 0.35  # accuracy in the best mode of a kind and in the others
WORDS = tuple(mode.word for mode in Mode)
COSTS = (8e-6, 1.9e-5, 2.8e-5)
CONFIG = {
    "seed": 3,
    "steps": 60,
    "data": {"source": "simulated"},
    "workers": {"kind": "simulated"},
    "schedule": {"cold_batches": 10, "autonomous_from": 40, "progressive": True},
    "support": {"coefficient": 0.3, "floor": 0.1},
    "reward": {"reference_cost_usd": 3.3e-5, "efficiency_weight": 0.0},
    "evaluation": {"every": 10, "test_queries": 60},
}


def answers(random, count, skill, mode=None):
    """Outcomes of `count` questions; `skill` is how often the mode fits the kind, unless one is forced."""
    found = []
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        choice = BEST[kind] if random.random() < skill else int(random.integers(3))
        choice = choice if mode is None else mode
        luck = random.random()
        status = "terminal_invalid" if luck < 0.02 else "infrastructure_failure" if luck > 0.995 else "answered"
        right = status == "answered" and random.random() < (RIGHT if choice == BEST[kind] else WRONG)
        found.append(
            Outcome(
                query_id=f"test-{index:04d}",
                kind=kind,
                mode=WORDS[choice] if luck > 0.01 else None,
                status=status,
                violation="mode_grammar" if status == "terminal_invalid" else None,
                cause="timeout" if status == "infrastructure_failure" else None,
                correct=bool(right),
                cost_usd=float(COSTS[choice] * random.uniform(0.7, 1.3)),
                workers=("worker_1",),
            )
        )
    return tuple(found)


def write_arms(workdir, count=60, seed=0, skill=0.9):
    """All arms of the simulated world."""
    random = np.random.default_rng((seed, 1))
    arms = {"trained": (skill, None), "warm_start": (0.1, None), "oracle": (1.0, None), "random": (0.0, None)}
    arms |= {f"{kind}_{word}": (0.0, code) for kind in ("forced", "scripted") for code, word in enumerate(WORDS)}
    for arm, (fitting, mode) in arms.items():
        about = {"split": "test", "draw_seed": seed + 100, "queries": count, "source": "simulated", "step": 50}
        write_arm(workdir, ArmResult(arm, about, answers(random, count, fitting, mode)))


def training_row(step, steps, random):
    """A row as a step of training writes it: the metrics that plots read, and more that they do not."""
    learnt = step / steps
    ratio = float(np.clip((40 - (step - 1)) / 30, 0, 1))
    shares = np.array([0.6 - 0.2 * learnt, 0.25 + 0.1 * learnt, 0.15 + 0.1 * learnt])
    row = {"step": step, "time_s": 1e9 + step, "rho_b": ratio, "cold_start": float(step <= 10), "lambda_b": 0.3 * ratio}
    row["accuracy"] = float(np.clip(0.35 + 0.35 * learnt + 0.06 * random.standard_normal(), 0, 1))
    row |= {f"mode/p_bar/{word}": float(share) for word, share in zip(WORDS, shares, strict=True)}
    if step > 10:
        sampled = random.dirichlet(40 * np.array([*shares, 0.02]))
        row |= {f"mode/sampled_freq/{word}": float(s) for word, s in zip((*WORDS, "none"), sampled, strict=True)}
    for place, suffix in enumerate(("", *(f"/mode/{word}" for word in WORDS))):
        noise = 0.05 * random.standard_normal()
        row[f"reward/task/mean{suffix}"] = 0.3 + 0.3 * learnt + 0.05 * place + noise
        row[f"reward/eff/mean{suffix}"] = 0.2 + 0.2 * learnt - 0.04 * place + noise
    row["invalid/mode_grammar"] = 0.05 * (1 - learnt)
    row["invalid/unknown_worker"] = 0.02 * (1 - learnt)
    row["invalid/total"] = row["invalid/mode_grammar"] + row["invalid/unknown_worker"]
    row |= {"exhausted_frac": 0.01, "len/truncated_frac/response_budget": 0.01}
    row |= {"infra/timeout": float(step % 17 == 0), "infra/excluded_frac": float(step % 17 == 0) / 128}
    row |= {"cost/per_step": 1.7e-3, "cost/total": 1.7e-3 * step, "cost/per_rollout": 1.3e-5, "cost/p95": 3e-5}
    row |= {"cost/spent_usd": 2.3e-3 * step, "cost/unknown_usd": 2e-4 * step, "cost/replayed_usd": 0.0}
    rollout, train = 0.5 + 0.1 * random.random(), 1.1 + 0.1 * random.random()
    row |= {"perf/rollout_s": rollout, "perf/train_s": train, "perf/publish_s": 0.002, "sampler/device_s": 0.4}
    row["perf/step_s"] = rollout + train + 0.01 + (30 if step == 1 else 0)
    return row | times_of_episodes(step, rollout, train)


def times_of_episodes(step, rollout, train):
    """What a step's timeline and the sampler's counters say."""
    row = {"perf/decode_s": 0.3, "perf/prefill_s": 0.1, "perf/wait_s": 0.08, "perf/score_s": 0.01, "perf/host_s": 0.0}
    row |= {"perf/makespan_s": rollout - 0.01, "perf/critical_path_s": rollout - 0.05, "perf/straggler_s": 0.06}
    row["sampler/compiled"] = 9.0 * (step == 4)  # the slowest of the first steps
    row |= {"perf/critical_path/wait_s": 0.25, "perf/decode_idle_share": 0.25, "perf/learner_idle_share": 0.375}
    row |= {"perf/reference_s": train / 4, "perf/update_s": 0.7 * train, "perf/replayed_turns": 3.0 * (step == 2)}
    parts = {"queue_s": 0.05, "sample_s": 0.125, "wait_s": 0.25, "score_s": 0.01, "own_s": 0.0}
    slowest = []
    for place, word in enumerate(WORDS, start=1):
        longest = rollout * place / 3 - 0.01
        row |= {f"perf/episode_s/{word}/p50": longest / 2, f"perf/episode_s/{word}/max": longest}
        about = {"query_id": f"q{step}", "rollout": place, "mode": word, "duration_s": longest, "replayed_turns": 0}
        slowest.append(about | parts)
    row["perf/slowest"] = slowest
    return row


def write_rows(workdir, steps=60, seed=0):
    """metrics.jsonl of so many steps."""
    random = np.random.default_rng((seed, 2))
    rows = [training_row(step, steps, random) for step in range(1, steps + 1)]
    (pathlib.Path(workdir) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_validations(workdir, steps=60, every=10, seed=0, count=40):
    """validation.jsonl: the initial router's row and one every so many steps."""
    random = np.random.default_rng((seed, 3))
    lines, best = [], (0, -1.0)
    for step in range(0, steps + 1, every):
        row = validation_metrics(answers(random, count, 0.1 + 0.8 * step / max(steps, 1)))
        if row["eval/accuracy"] > best[1]:
            best = (step, row["eval/accuracy"])
        row |= {"eval/best_step": best[0], "eval/best_accuracy": best[1]}
        lines.append(json.dumps({"step": step, "time_s": 1e9 + step, **row}) + "\n")
    (pathlib.Path(workdir) / "validation.jsonl").write_text("".join(lines))


def write_config(workdir, **changes):
    """config.json with the sections that a report reads."""
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(json.dumps(CONFIG | changes))
    return workdir


def whole_run(workdir, seed=0, steps=60, count=60):
    """A finished run with everything a report can show."""
    write_config(workdir, seed=seed, steps=steps)
    write_rows(workdir, steps, seed)
    write_validations(workdir, steps, seed=seed)
    write_arms(workdir, count, seed)
    return workdir


HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'> half \ud83d & \u2028 text"


def described(found, words):
    """A trajectory of an outcome as an evaluation keeps it, with `words` wherever a Worker or router may write."""
    calls = [("n1", 1, []), ("n2", 1, []), ("n3", 2, ["n1", "n2"])] if found.mode == "agentic" else [("n1", 1, [])]
    return {
        "query_id": found.query_id, "question": f"What is {found.query_id}? {words}", "mode": found.mode,
        "forced": False, "status": found.status, "violation": found.violation, "cause": found.cause,
        "answer": f"answer {words}" if found.status == "answered" else None, "reference": "4",
        "verdict": {"correct": found.correct, "detail": words, "kind": "pass", "scorer": "math/1", "tier": ""},
        "turns": [{"segment": "prompt", "text": words}, {"segment": "mode", "text": "<mode>multi</mode>"}],
        "calls": [
            {"node_id": node, "worker_id": f"worker_{node[1]}", "role": "executor", "references": references,
             "subquery": f"sub-query of {node} {words}", "output": f"reply of {node} {words}", "input_tokens": 10,
             "output_tokens": None, "cost_usd": 1e-6, "latency_s": 0.5, "attempts": 1, "status": "ok",
             "failure": None, "turn": turn}
            for node, turn, references in calls
        ],
    }  # fmt: skip


def write_trajectories(workdir, arms, words=HOSTILE):
    """The trajectories of arms that are written already."""
    for arm in arms:
        path = trajectories_path(workdir, arm)
        path.parent.mkdir(parents=True, exist_ok=True)
        records = [described(outcome, words) for outcome in read_arm(arm_path(workdir, arm)).outcomes]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="session")
def made():
    """The functions above, by name."""
    functions = (answers, write_arms, write_trajectories, write_rows, write_validations, write_config, whole_run)
    return types.SimpleNamespace(**{function.__name__: function for function in functions})


@pytest.fixture
def unpainted(monkeypatch):
    """Figures are made, but their files stay empty: painting them is most of a report's time."""

    def save(figure, path):
        path.write_bytes(b"")
        return path

    monkeypatch.setattr(style, "save", save)
