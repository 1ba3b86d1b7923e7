"""What a run may cost: the arithmetic, and the command that prints it and calls nobody."""

import dataclasses
import io
import pathlib

import pytest
from rich.console import Console

from rw import cli
from rw.config import load_config
from rw.dry_run import calls_by_mode, count_tokens, phase_tables, read_measured, run_phases
from rw.estimate import Estimate, Lengths, Phase, Range, WorkerTerms, estimate
from rw.evaluation.table import print_one
from rw.types import CallId, CallStatus, Mode
from rw.workers.ledger import Ledger, read_ledger
from rw.workers.pricing import Price

TINY = str(pathlib.Path(__file__).parent.parent / "data" / "configs" / "tiny.py")
PAIR = ("--processes", "2", "--process", "0", "--coordinator", "localhost:1")
FRAME = {Mode.SINGLE: 10.0, Mode.MULTI: 10.0, Mode.AGENTIC: 20.0}
LENGTHS = Lengths(question_mean=100.0, question_longest=200.0, frame=FRAME, response_budget=1000.0)
CHEAP = WorkerTerms("cheap", Price(1.0, 2.0), max_output_tokens=800)
DEAR = WorkerTerms("dear", Price(10.0, 20.0), max_output_tokens=800)


def test_one_worker_by_hand():
    found = estimate([], [CHEAP], LENGTHS)
    single, multi, agentic = (found.rollout_usd[mode] for mode in Mode)
    assert found.rollout_calls[Mode.AGENTIC] == Range(1, 4.5, 8)
    # frame, question, sub-query and replies shown, at 1 USD per million; the reply at 2
    assert single.low == pytest.approx((10 + 100 + 8 + 2 * 16) / 1e6)
    assert single.typical == pytest.approx((10 + 100 + 100 + 2 * 100) / 1e6)
    assert single.worst == pytest.approx((10 + 200 + 1000 + 2 * 800) / 1e6)
    assert multi.typical == pytest.approx((3 * (10 + 100 + 100) + 2 * 100 + 3 * 2 * 100) / 1e6)
    assert multi.worst == pytest.approx((4 * (10 + 200) + 1000 + 3 * 800 + 4 * 2 * 800) / 1e6)
    assert agentic.low == pytest.approx((20 + 100 + 8 + 2 * 16) / 1e6)
    assert agentic.worst == pytest.approx((8 * (20 + 200) + 1000 + 28 * 800 + 8 * 2 * 800) / 1e6)


def test_choices_that_are_not_known_are_the_cheapest_the_mean_and_the_dearest():
    cheap, dear = (estimate([], [worker], LENGTHS).rollout_usd for worker in (CHEAP, DEAR))
    both = estimate([Phase("p", forced=30, free=0), Phase("q", forced=0, free=10)], [CHEAP, DEAR], LENGTHS)
    assert both.rollout_usd[Mode.MULTI].low == pytest.approx(cheap[Mode.MULTI].low)
    assert both.rollout_usd[Mode.MULTI].worst == pytest.approx(dear[Mode.MULTI].worst)
    typical = [(cheap[mode].typical + dear[mode].typical) / 2 for mode in Mode]
    (_, _, forced), (_, calls, free) = both.phases
    assert forced.typical == pytest.approx(10 * sum(typical)) and free.typical == pytest.approx(10 * sum(typical) / 3)
    assert forced.low == pytest.approx(10 * sum(cheap[mode].low for mode in Mode))
    assert free.worst == pytest.approx(10 * max(dear[mode].worst for mode in Mode))
    assert (calls.low, calls.typical, calls.worst) == pytest.approx((10, 10 * (1 + 3 + 4.5) / 3, 80))
    assert both.usd.typical == pytest.approx(forced.typical + free.typical)


def test_what_was_measured_is_typical_and_stretches_the_range_where_it_lies_outside():
    measured = dataclasses.replace(CHEAP, measured_usd=1.0, measured_calls=50)
    found = estimate([Phase("p", 0, 1)], [measured], LENGTHS, measured_calls={Mode.SINGLE: 1.0, Mode.MULTI: 2.5})
    assert found.call_usd["cheap"].typical == found.call_usd["cheap"].worst == 1.0
    assert found.rollout_usd[Mode.MULTI].typical == pytest.approx(2.5)
    assert found.rollout_calls[Mode.AGENTIC].typical == 4.5


def test_replies_that_are_not_shown_cost_nothing_and_drills_are_free():
    shown, hidden = (estimate([], [CHEAP], LENGTHS, shows).rollout_usd[Mode.MULTI] for shows in (True, False))
    assert shown.typical - hidden.typical == pytest.approx(2 * 100 / 1e6)
    (_, calls, usd), = estimate([Phase("w", 5, 5, is_free_of_charge=True)], [CHEAP], LENGTHS).phases  # fmt: skip
    assert calls.low == pytest.approx(5 * (1 + 2 + 1) / 3 + 5) and usd == Range(0, 0, 0)


def test_phases_of_a_run_are_those_that_it_has():
    config = load_config(TINY)
    training, validation, test = run_phases(config)
    assert training.rollouts == 4 * 6 * 4
    # batch 0 is cold, batches 1 to 3 have 1, 2/3 and 1/3 of their modes assigned
    assert training.forced == pytest.approx(6 * 4 * (1 + 1 + 2 / 3 + 1 / 3))
    assert (validation.forced, validation.free) == (0, 3 * 5)  # after 0, 2 and 4 steps
    assert (test.forced, test.free) == (3 * 10, (2 + 3 + 1) * 10)  # three scripted routers and the oracle
    _, validation, _ = run_phases(load_config(TINY, [("evaluation.validation_queries", "0")]))
    assert validation.rollouts == 0


def test_lengths_are_those_of_the_questions():
    lengths, message = count_tokens(load_config(TINY))
    assert 0 < lengths.question_mean <= lengths.question_longest < 64
    assert message.startswith("Question:\n")


def dry_run(workdir, *overrides, command="train"):
    return cli.main([command, "--config", TINY, "--workdir", str(workdir), "--dry-run", *overrides])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("mesh.fsdp=0",), "mesh.fsdp=0 must be at least 1"),
        (("mesh.data=-2",), "mesh.data=-2 must be at least 1"),
        (("mesh.tensor=3",), "mesh.tensor=3: must divide the 2 key/value heads, one of [1, 2]"),
        (("mesh.data=4", "batch.micro_batch=7"), "batch.micro_batch=7 does not divide over data·fsdp = 4"),
    ],
)
def test_a_dry_run_refuses_a_mesh_that_a_run_would_refuse(tmp_path, capsys, overrides, says):
    assert dry_run(tmp_path / "run", *(f"--config.{each}" for each in overrides)) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--config.batch.micro_batch=0", "--config.deterministic=true"), "deterministic=True asks for the same sums"),
        (
            ("--config.batch.micro_batch=0", "--config.deterministic=false", *PAIR),
            "2 processes must all take the same number",
        ),
        (("--config.regime=stream", *PAIR), "regime='stream' is for one process"),
        (("--config.advantage.function=nobody:x",), "nobody"),
    ],
)
def test_a_dry_run_refuses_how_a_run_would_not_learn(tmp_path, capsys, given, says):
    assert dry_run(tmp_path / "run", *given) == 2
    assert says in capsys.readouterr().err


def test_a_dry_run_refuses_prompts_that_a_run_would_refuse(tmp_path, capsys):
    workdir = tmp_path / "w"
    given = ["train", "--config", TINY, "--workdir", str(workdir), "--dry-run", "--config.protocol.prompt_limit=34"]
    assert cli.main(given) == 2
    assert "over prompt_limit 34" in capsys.readouterr().err and not workdir.exists()


def test_a_dry_run_prints_calls_and_usd_and_touches_nothing(tmp_path, capsys):
    workdir = tmp_path / "run"
    assert dry_run(workdir) == 0
    printed = capsys.readouterr().out
    for told in ("warm start", "training", "validation", "final evaluation", "agentic", "worker_6", "nobody is paid"):
        assert told in printed
    assert not workdir.exists()


def test_phases_fit_a_terminal_of_80_columns():
    usd = Range(1.23e-06, 0.000123, 0.00123)
    phases = [(Phase(name, 1e6, 2e6), Range(3e6, 4e6, 8e6), usd) for name in ("warm start (unpaid)", "training")]
    found = Estimate({}, {}, {}, phases)
    for table in phase_tables(found):
        text = io.StringIO()
        print_one(table, Console(file=text, width=80, soft_wrap=True))
        assert "more columns" not in text.getvalue()
        assert all(cell in text.getvalue() for row in table.rows for cell in row)


@pytest.mark.parametrize(
    "cap, code, says",
    [
        ("run_usd=1000", 0, "enough for the worst"),
        ("run_usd=1.0", 0, "below the worst estimate"),
        ("run_usd=0.003", 2, "not enough for the low estimate"),
        ("step_usd=0.001", 2, "no call to worker_1, worker_3"),
        ("worker_usd=0.0001", 2, "no call to worker_1, worker_2"),
    ],
)
def test_caps_are_held_against_the_estimate(tmp_path, capsys, cap, code, says):
    assert dry_run(tmp_path / "run", f"--config.budget.{cap}") == code
    assert says in capsys.readouterr().out


def test_workers_of_ones_own_need_a_price_and_no_key(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = tmp_path / "own.py"
    config.write_text(
        f"import runpy\n\ndef get_config():\n    config = runpy.run_path({TINY!r})['get_config']()\n"
        "    config.workers.kind = 'http'\n    config.workers.endpoints = (dict(id='w', description='', model='m', "
        "base_url='https://host.invalid/v1', key_env='NO_SUCH_KEY', input_price=1.0, output_price=PRICE),)\n"
        "    config.evaluation.arms = ('trained',)\n    return config\n\nPRICE = 2.0\n"
    )
    arguments = ["warmstart", "--config", str(config), "--workdir", str(tmp_path / "run"), "--dry-run"]
    assert cli.main(arguments) == 0
    assert "nobody is paid" not in capsys.readouterr().out
    config.write_text(config.read_text().replace("PRICE = 2.0", "PRICE = None"))
    assert cli.main(arguments) == 2
    assert "has no price" in capsys.readouterr().err


def test_the_ledger_of_an_earlier_part_gives_the_typical_cost(tmp_path, capsys):
    ledger = Ledger(tmp_path / "ledger.jsonl", run="run")
    for rollout in range(30):
        for call in range(2 + rollout % 2):
            name = CallId(1, 0, rollout, call + 1, 0)
            ledger.attempt(name, "worker_1", 1, 1, 1, None, False, unknown_usd=0.001, mode=Mode.MULTI)
            ledger.attempt(name, "worker_1", 2, 1, 1, 0.001, True, mode=Mode.MULTI)
            ledger.call(name, "worker_1", CallStatus.OK, 2, 1, 1, 0.001, mode=Mode.MULTI)
    ledger.close()
    measured = read_measured(tmp_path, drills=False)
    assert measured.usd_by_worker == {"worker_1": (pytest.approx(0.002), 75)}
    assert measured.calls_by_mode == calls_by_mode(read_ledger(ledger.path)[0]) == {Mode.MULTI: 2.5}
    before = ledger.path.read_bytes()
    assert dry_run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "75 calls" in printed and "assumed" in printed and "holds 0.15 USD of spending (0.075 unknown)" in printed
    assert ledger.path.read_bytes() == before and not (tmp_path / "LOCK").exists()


def test_a_warm_start_that_is_there_costs_nothing_again(tmp_path, capsys):
    (tmp_path / "warmstart").mkdir()
    assert dry_run(tmp_path) == 0 and "warm start" not in capsys.readouterr().out
    assert dry_run(tmp_path, command="warmstart") == 0


def test_lines_of_other_kinds_count_no_rollout():
    assert calls_by_mode([{"kind": "attempt", "mode": "multi"}]) == {}
