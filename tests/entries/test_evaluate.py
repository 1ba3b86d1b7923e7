"""`rw evaluate`: what it answers and keeps, what it answers again, and what it refuses."""

import json
import os
import pathlib
import shutil
import signal

import jax.numpy as jnp
import pytest

from rw import evaluate, worker_pool
from rw.evaluation.outcomes import read_arms
from rw.learner.checkpoint import load_params, save_params
from rw.parts import params_path
from rw.workers.journal import Journal

from .evaluations import (
    ROUTER,
    answers,
    arguments,
    arm,
    arms,
    assert_same_arms,
    calls,
    json_lines,
    main,
    without_clock,
)

ROOT = pathlib.Path(__file__).parents[2]
FORCED = ("forced_agentic", "forced_multi", "forced_single")
TWO = ("--arms", "trained,forced_single")


@pytest.fixture(autouse=True)
def results(monkeypatch):
    """The directories whose results were asked for, in the place of writing them."""
    asked = []
    monkeypatch.setattr(evaluate, "write_results", lambda path, against: asked.append((path, against)) or path)
    monkeypatch.setattr(evaluate, "print_results", lambda path: print(f"results of {path}"))
    return asked


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An evaluation of all arms."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluate, "write_results", lambda path, against: path)
        patched.setattr(evaluate, "print_results", lambda path: None)
        workdir = tmp_path_factory.mktemp("whole") / "evaluation"
        main(arguments(ROOT, workdir, "--arms", "trained,forced,warm_start", evaluation__router_input_price=0.5))
    return workdir


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Saved parameters of another router, of step 7."""
    path = tmp_path_factory.mktemp("other") / "params.safetensors"
    params, metadata = load_params(params_path(ROUTER))
    name = "model.embed_tokens.weight"
    save_params(path, params | {name: params[name] * jnp.float32(1.25)}, {**metadata, "step": 7})
    return path


def test_the_router_answers_freely_and_in_each_mode(whole):
    assert arms(whole) == [*FORCED, "trained", "warm_start"]
    header, outcomes = arm(whole, "trained")
    assert header["router"]["path"] == ROUTER and len(header["router"]["fingerprint"]) == 64
    expected = {"split": "test", "queries": 6, "greedy": True, "source": "simulated", "step": None, "draw_seed": 0}
    assert expected.items() <= header.items()
    assert (header["router_input_price"], header["router_output_price"]) == (0.5, None)
    ids = [outcome["query_id"] for outcome in outcomes]
    assert len(set(ids)) == 6 and any(outcome["correct"] for outcome in outcomes)
    for name in FORCED:
        _, found = arm(whole, name)
        assert [outcome["query_id"] for outcome in found] == ids
        assert {outcome["mode"] for outcome in found} == {name.removeprefix("forced_")}
    header, again = arm(whole, "warm_start")  # the same router
    assert without_clock(again) == without_clock(outcomes) and header["step"] == 0
    assert not {path.name for path in whole.iterdir()} & {"checkpoints", "reference", "metrics.jsonl", "best"}
    assert not any((whole / "journal").glob("*"))


def test_trajectories_are_those_of_the_outcomes_and_the_ledger_has_their_cost(whole):
    spent = 0.0
    for name in arms(whole):
        _, outcomes = arm(whole, name)
        told = json_lines(whole / "evaluation" / "trajectories" / f"{name}.jsonl")
        for said, outcome in zip(told, outcomes, strict=True):
            assert all(said[key] == outcome[key] for key in ("query_id", "mode", "status", "answer", "cost_usd"))
            assert [call["worker_id"] for call in said["calls"]] == outcome["workers"] and "arrays" not in said
            assert said["turns"][0]["segment"] == "prompt" and said["question"] in said["turns"][0]["text"]
        spent += sum(outcome["cost_usd"] for outcome in outcomes)
    booked = [line for line in json_lines(whole / "ledger.jsonl") if line["kind"] == "call" and line["accepted"]]
    assert sum(line["cost_usd"] for line in booked) == pytest.approx(spent) and spent > 0
    assert {line["run"] for line in booked} == {f"evaluation/test_{name}" for name in arms(whole)}


def test_greedy_answers_are_the_same_again(whole, tmp_path):
    workdir = tmp_path / "evaluation"
    main(arguments(ROOT, workdir, "--arms", "forced_multi,trained", evaluation__router_input_price=0.5))
    again, before = answers(workdir), answers(whole)
    assert again and again == {name: before[name] for name in again}
    assert [path.name for path in sorted((workdir / "evaluation").iterdir())] == [
        "forced_multi.jsonl", "trained.jsonl", "trajectories",
    ]  # fmt: skip


def copied(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "evaluation")


def test_what_is_kept_is_not_answered_again_and_prices_only_rewrite_its_header(whole, tmp_path, capsys, results):
    workdir = copied(whole, tmp_path)
    before, ledger = answers(workdir), (workdir / "ledger.jsonl").read_bytes()
    prices = {"evaluation__router_input_price": 0.5, "evaluation__router_output_price": 2}
    main(arguments(ROOT, workdir, *TWO, **prices))
    assert "test:" not in capsys.readouterr().out and (workdir / "ledger.jsonl").read_bytes() == ledger
    after = answers(workdir)
    for name in ("trained.jsonl", "forced_single.jsonl"):
        assert after[name][0] == before[name][0] | {
            "router_output_price": 2.0, "config_fingerprint": after[name][0]["config_fingerprint"]
        }  # fmt: skip
        assert after[name][1:] == before[name][1:]
    assert after["forced_multi.jsonl"] == before["forced_multi.jsonl"]  # which was not asked for
    assert results == [(workdir, ())]


def test_of_a_damaged_arm_only_what_cannot_be_read_is_answered_again(whole, tmp_path, capsys):
    workdir, prices = copied(whole, tmp_path), {"evaluation__router_input_price": 0.5}
    before, paid = answers(workdir), len(calls(workdir))
    ids = [line["query_id"] for line in before["trained.jsonl"][1:]]
    for path in (workdir / "evaluation" / "trained.jsonl", workdir / "evaluation" / "trajectories" / "trained.jsonl"):
        lines = path.read_bytes().split(b"\n")
        cut = 3 if path.parent.name == "evaluation" else 2
        path.write_bytes(b"\n".join([*lines[:cut], lines[cut][:40] + b"\xff", *lines[cut + 1 :]]))
    main(arguments(ROOT, workdir, "--arms", "trained", **prices))
    said = capsys.readouterr().out
    assert "trained: 5 of 6 questions can be read, the others are asked again" in said and "superseded" not in said
    assert answers(workdir) == before and len(calls(workdir)) - paid == len(before["trained.jsonl"][3]["workers"])
    assert [line["query_id"] for line in answers(workdir)["trajectories/trained.jsonl"]] == ids
    path = workdir / "evaluation" / "forced_single.jsonl"
    path.write_bytes(path.read_bytes()[1:])
    main(arguments(ROOT, workdir, "--arms", "trained", **prices))
    assert "evaluation/superseded/, since their first line cannot be read: forced_single\n" in capsys.readouterr().out


def test_another_router_other_questions_and_another_protocol_are_noticed(whole, other, tmp_path, capsys):
    workdir = copied(whole, tmp_path)
    first, superseded = answers(workdir), workdir / "evaluation" / "superseded"
    main(arguments(ROOT, workdir, "--arms", "trained", checkpoint=other))
    header, _ = arm(workdir, "trained")
    assert header["step"] == 7 and header["router"]["fingerprint"] != first["trained.jsonl"][0]["router"]["fingerprint"]
    assert arms(workdir) == ["trained", "warm_start"]  # the router of the others has gone
    assert f"another router: {', '.join((*FORCED, 'trained'))}; a --workdir" in capsys.readouterr().out
    for folder in (superseded, superseded / "trajectories"):
        assert {path.stem for path in folder.glob("*.jsonl")} == {"trained", *FORCED}
    for changed in ({"evaluation__test_queries": 5}, {"evaluation__test_queries": 5, "protocol__response_budget": 479}):
        before = arm(workdir, "trained")[0]
        main(arguments(ROOT, workdir, "--arms", "trained", checkpoint=other, **changed))
        after = arm(workdir, "trained")[0]
        assert (before["queries"], before["conditions"]) != (after["queries"], after["conditions"])
    assert json.loads((superseded / "trained.jsonl").read_text().split("\n")[0]) == before


def test_calls_are_recorded_and_replayed_without_a_worker(tmp_path, monkeypatch):
    tape = {"workers__cassette": tmp_path / "calls.jsonl"}
    main(arguments(ROOT, tmp_path / "recorded", *TWO, **tape, workers__cassette_mode="record"))

    async def no_worker(*_, **__):
        raise AssertionError("a Worker was started")

    monkeypatch.setattr(worker_pool, "serve", no_worker)
    main(arguments(ROOT, tmp_path / "replayed", *TWO, **tape, workers__cassette_mode="replay"))
    heads = [read_arms(tmp_path / name) for name in ("recorded", "replayed")]
    assert [found.outcomes for found in heads[0].values()] == [found.outcomes for found in heads[1].values()]
    assert calls(tmp_path / "recorded") and not calls(tmp_path / "replayed")


def test_a_cap_ends_it_and_a_higher_one_continues_it(whole, tmp_path, capsys):
    workdir, given = tmp_path / "evaluation", ("--arms", "forced")
    main(arguments(ROOT, workdir, *given, budget__run_usd=0.0029), expect=5)  # a call may come to 0.00282
    assert "budget.run_usd=0.0029 USD leaves no room" in capsys.readouterr().err
    paid = calls(workdir)
    assert 0 < len(paid) and arms(workdir) != list(FORCED)
    main(arguments(ROOT, workdir, *given))
    assert len(set(calls(workdir))) == len(calls(workdir)) > len(paid)
    assert_same_arms(workdir, whole)


def test_sigterm_ends_it_in_order_and_the_same_command_continues_it(whole, tmp_path, monkeypatch, capsys):
    workdir, answered, write = tmp_path / "evaluation", [], Journal.write_response

    def write_and_stop(*given):
        write(*given)
        answered.append(given)
        if len(answered) == 9:  # in the second arm or the third
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Journal, "write_response", write_and_stop)
    main(arguments(ROOT, workdir, "--arms", "forced"), expect=128 + signal.SIGTERM)
    assert "stopped by SIGTERM; the same command continues the evaluation" in capsys.readouterr().out
    assert 1 <= len(arms(workdir)) < 3 and any((workdir / "journal").iterdir())
    main(arguments(ROOT, workdir, "--arms", "forced"))
    assert len(set(calls(workdir))) == len(calls(workdir))
    assert_same_arms(workdir, whole)


def refused(capsys, given, code=2):
    capsys.readouterr()
    main(given, expect=code)
    captured = capsys.readouterr()
    assert captured.err.startswith("rw evaluate: error: ") and captured.err.count("\n") == 1
    assert "test:" not in captured.out
    return captured.err


@pytest.mark.parametrize(
    ("flags", "values", "says"),
    [
        (("--arms", "traned"), {}, "unknown arm 'traned' of --arms; did you mean 'trained'?"),
        (("--arms", ","), {}, "--arms is empty; name some of trained, forced"),
        (("--step", "3"), {}, "is not the working directory of a run; leave it out"),
        (("--against", "nowhere"), {}, "no arm to compare with in 'nowhere'"),
        (("--nonsense",), {}, "unknown argument '--nonsense'"),
        ((), {"evaluation__test_queries": 0}, "this config has no test questions: set evaluation.test_queries"),
        ((), {"model__d_ff": 64}, "down_proj.weight is (2, 192, 96) there and (2, 64, 96) in the config"),
        ((), {"model__rope_theta": 5e4}, "of another model than config.model: rope_theta: 10000.0 → 50000.0"),
        ((), {"tokenizer__path": "qwen3_nq6", "model__vocab_size": 15_872}, "were trained with tokenizer"),
        (("--arms", "warm_start"), {"init__source": "warmstart", "init__path": ""}, "a warm start that is not there"),
    ],
)
def test_misuse_is_told_in_one_line(tmp_path, capsys, flags, values, says):
    assert says in refused(capsys, arguments(ROOT, tmp_path / "evaluation", *flags, **values))
    assert not (tmp_path / "evaluation" / "evaluation").exists()


def test_places_without_a_router_and_the_directory_of_a_run_are_refused(tmp_path, capsys):
    nowhere = refused(capsys, arguments(ROOT, tmp_path / "evaluation", checkpoint=tmp_path / "nowhere"))
    assert f"no parameters at {tmp_path / 'nowhere'}; correct the path" in nowhere
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    told = refused(capsys, arguments(ROOT, tmp_path / "run"))
    assert "is the working directory of a training run; take another --workdir" in told
    with pytest.raises(SystemExit) as ended:
        evaluate.main(["--config", str(ROOT / "configs" / "quickstart.py")])
    assert ended.value.code == 2 and "--checkpoint" in capsys.readouterr().err


def test_a_dry_run_estimates_each_arm_and_changes_nothing(tmp_path, capsys):
    given = arguments(ROOT, tmp_path / "evaluation", "--arms", "trained,warm_start,forced_multi", "--dry-run")
    main(given)
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in printed.split("\n") if "│" in line]
    assert rows[:3] == [["evaluation", "12"], ["mode multi forced", "6"], ["all", "18"]]
    assert (
        "as they are read" in printed
        and "moments" not in printed
        and "nobody is paid" in printed
        and not (tmp_path / "evaluation").exists()
    )
    main([*given, "--config.budget.run_usd=0.00001"], expect=2)
    assert "not enough for the low estimate" in capsys.readouterr().out
