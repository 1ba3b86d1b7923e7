"""Scorers against verdicts that others recorded: MATH-500's answers, RouterArena's scores, F1 of Natural Questions."""

import collections
import json
import lzma
import os
import pathlib
import random
import re

import pytest

from rw.data import replay
from rw.scoring import SCORERS
from rw.scoring.final_answer import final_answer
from rw.scoring.short_answer import normalise
from rw.types import Query

DATA = pathlib.Path(__file__).parent.parent / "data" / "scorers"
FULL = bool(os.environ.get("RW_TEST_FULL"))


def records(path: pathlib.Path) -> list[dict]:
    data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line]


def answers_of_math() -> list[str]:
    """Reference answers of MATH-500, and in the full tier of MATH too, each once."""
    golds = [row["answer"] for row in records(DATA / "math_references.jsonl") if FULL or row["set"] == "math_500"]
    return list(dict.fromkeys(golds))


def judged(answer, reference, dataset="math_500"):
    return SCORERS[dataset](answer, Query("q1", dataset, "math", "?", reference))


@pytest.mark.parametrize(
    "form",
    ["{}", r"\boxed{{{}}}", "The answer is ${}$.", "So\n\n$${}$$", "**Final answer:** $\\boxed{{{}}}$", "x=3\n{}"],
)
def test_references_of_math_are_equal_to_themselves_however_they_are_given(form):
    for gold in answers_of_math():
        verdict = judged(form.format(gold), gold)
        assert verdict.correct, verdict


# Of the references used here, these are the same number.
ALIKE = ({r"\frac{1}{2}", r"\frac12"}, {r"1\frac{4}{5}", r"\frac9{5}"}, {"15", r"15^\circ"})


def test_references_of_math_are_equal_to_no_other():
    golds = answers_of_math()
    pairs = [(one, other) for one in golds for other in golds if one != other]
    assert len(pairs) == (172 * 171 if FULL else 66 * 65)
    if not FULL:
        pairs = random.Random(0).sample(pairs, 600)
    assert [pair for pair in pairs if judged(*pair).correct and not any(set(pair) <= alike for alike in ALIKE)] == []


def last_box(text: str) -> str:
    """The body of an answer that was asked for in a box; the whole of one that has none."""
    return final_answer(text) if r"\boxed" in text else text


def routerarena(metric: str) -> list[dict]:
    return [record for record in records(DATA / "routerarena_outcomes.jsonl.xz") if record["metric"] == metric]


def test_multiple_choice_scores_of_routerarena():
    """The recorded rule compares all of the box with the letter, ours the last letter in it: one answer differs."""
    different = []
    rows = routerarena("mcq_accuracy")
    for record in rows:
        truth = record["ground_truth"]
        letter = truth.upper() if truth.isalpha() else "ABCDEFGHIJ"[int(float(truth))]
        query = Query("q1", "super_gpqa", "knowledge", "?", letter, {"letters": record["letters"]})
        correct = SCORERS["super_gpqa"](last_box(record["generated_answer"]), query).correct
        if correct is not bool(record["score"]):
            different.append((letter, correct, re.search(r"\\boxed.*", record["generated_answer"])[0]))
    assert len(rows) == 434
    assert different == [("C", True, r"\boxed{C. ~(M ∨ S)}.")]  # right, and refused because the box says more


def test_exact_match_scores_of_routerarena():
    """The same normalisation, but theirs reads an underscore in a reference as a space, where SQuAD's drops it."""
    rows = routerarena("exact_match")
    different = set()
    for record in rows:
        truth, body = record["ground_truth"], last_box(record["generated_answer"])
        correct = SCORERS["trivia_qa"](body, Query("q1", "trivia_qa", "recall", "?", (truth,))).correct
        if correct is not bool(record["score"]):
            different.add((truth, body, correct))
    assert len(rows) == 34
    assert different == {("The_Bahamas", "The Bahamas", False), ("Bill_Gates", "Bill Gates", False)}


def token_f1(answer: str, reference: str) -> float:
    """F1 of the words that two texts share, after SQuAD's normalisation."""
    given, expected = normalise(answer).split(), normalise(reference).split()
    shared = sum((collections.Counter(given) & collections.Counter(expected)).values())
    return 2 * shared / (len(given) + len(expected)) if shared else 0.0


def test_token_f1_of_every_recorded_answer_to_natural_questions():
    """Scored was the last closed `<answer>` of a reply; one without any scored 0, whatever it said."""
    queries, _, answers = replay.load_nq6()
    compared = 0
    for query in queries:
        for answer in answers[query.metadata["question"]].values():
            bodies = re.findall(r"<answer>(.*?)</answer>", answer.text, re.DOTALL)
            f1 = max(token_f1(bodies[-1], one) for one in query.reference) if bodies else 0.0
            assert f1 == pytest.approx(answer.token_f1, abs=1e-9), (query.id, answer.model)
            if bodies and SCORERS["nq"](bodies[-1], query).correct:
                assert answer.token_f1 == 1.0
            compared += 1
    assert compared == 320 * 6


def test_targets_of_bbh_match_themselves_and_no_other_of_their_task():
    by_task = collections.defaultdict(set)
    for record in records(DATA / "bbh_targets.jsonl"):
        by_task[record["task"]].add(record["target"])
    assert len(by_task) == 27
    for task, targets in by_task.items():
        for target in targets:
            for given in (target, f"So the answer is {target}.", f"**Answer:** {target}"):
                right = {one for one in targets if judged(given, one, "bbh").correct}
                assert right == {target}, (task, given)


def test_letters_of_supergpqa_are_found_before_their_options():
    for record in records(DATA.parent / "sources" / "supergpqa.jsonl"):
        letters = "ABCDEFGHIJ"[: len(record["options"])]
        query = Query("q1", "super_gpqa", "knowledge", "?", record["answer_letter"], {"letters": letters})
        for given in (
            record["answer_letter"],
            f"**{record['answer_letter']}**",
            f"The answer is ({record['answer_letter']}).",
        ):
            assert SCORERS["super_gpqa"](given, query).correct
        assert not SCORERS["super_gpqa"]("ABCDEFGHIJ".replace(record["answer_letter"], ""), query).correct
