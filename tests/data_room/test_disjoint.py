"""What is the same, nearly the same, and different; and that many questions are compared in little time."""

import dataclasses
import itertools
import pathlib
import random

import pytest

from rw.data.disjoint import NEARLY_SAME, SAME, Questions, overlapping
from rw.data.source import load
from rw.types import Query

RECORDS = pathlib.Path(__file__).parent.parent / "data" / "sources"
LINE = "Put the final answer by itself on the last line."


def query(text, key="a", line=LINE):
    return Query(f"x/{key}", "math", "math", f"{text}\n\n{line}" if line else text, "1")


def records():
    return [
        query
        for name, file in (("math", "math"), ("math_500", "math500"), ("super_gpqa", "supergpqa"), ("aime", "aime25"))
        for query in load(name, RECORDS / f"{file}.jsonl").queries
    ]


LONG = "A farmer has 12 sheep and sells half of them at the market in town; how many sheep has the farmer then?"


@pytest.mark.parametrize(
    "other, reason",
    [
        (LONG, SAME),
        (LONG.upper().replace(" ", "  ") + "\n", SAME),
        (LONG.replace("12", "14"), NEARLY_SAME),
        (LONG.replace("farmer", "shepherd"), NEARLY_SAME),
        ("Please answer this. " + LONG, NEARLY_SAME),
        (LONG + " Give a number.", NEARLY_SAME),
        ("A farmer buys 3 horses at the market in town and rides one home; how many horses walk behind it then?", None),
        ("What is the capital of France?", None),
        ("", None),
    ],
)
def test_rewording_is_recognised_and_other_questions_are_not(other, reason):
    found = overlapping([query(other)], [query("Where?", "z"), query(LONG, "b")])
    assert found == ({"x/a": reason} if reason else {})


def test_the_answer_line_does_not_count_and_a_last_paragraph_of_the_question_does():
    assert overlapping([query("Who?")], [query("Where?")]) == {}
    assert overlapping([query("Who?", line="")], [query("Who?")]) == {"x/a": SAME}
    assert overlapping([query("Part one.\n\nWho?", line="")], [query("Part one.\n\nWhere?", line="")]) == {}


def test_short_questions_are_the_same_or_not():
    assert overlapping([query("Pi?")], [query("Pi?", "b"), query("Tau?", "c")]) == {"x/a": SAME}
    assert overlapping([query("2+3")], [query("2-3", "b")]) == {}


def test_short_questions_of_one_form_are_nearly_the_same():
    one, other = (query(f"What is the capital of {name}?") for name in ("France", "Spain"))
    assert overlapping([one], [other]) == {"x/a": NEARLY_SAME}
    assert overlapping([one], [query("What is the largest city of Spain?")]) == {}


def test_the_likest_is_named_with_how_like_it_is():
    held = Questions([query("a b c d e f", "b"), query("a b c d x y", "c"), query("a b c d e z", "d")])
    assert held.match(query("a b c d e g")) == ("x/b", 0.6, False)  # abc, bcd and cde of these and deg, def
    assert held.match(query("A b c d x y.")) == ("x/c", 1.0, True)
    assert held.match(query("q r s t u v")) is None
    assert held.match(query("a b c d e f g h i j")) == ("x/b", 0.5, False)
    assert held.match(query("a b c d e f g h i j k")) is None
    assert Questions([query("a b a b a b", "b")]).match(query("a b a b")) == ("x/b", 1.0, False)


def test_agrees_with_comparing_every_pair():
    rng = random.Random(1)
    texts = [" ".join(rng.choice("abcd") for _ in range(rng.randint(1, 12))) for _ in range(120)]
    queries = [query(text, str(place)) for place, text in enumerate(texts)]
    mine, others = queries[:60], queries[60:]

    def runs(text):
        words = text.split()
        return {tuple(words[i : i + 3]) for i in range(max(len(words) - 2, 1))}

    expected = {}
    for one, other in itertools.product(mine, others):
        a, b = (q.prompt.removesuffix(f"\n\n{LINE}") for q in (one, other))
        likeness = len(runs(a) & runs(b)) / len(runs(a) | runs(b))
        if a == b:
            expected[one.id] = SAME  # whatever was found before it
        elif likeness >= 0.5:
            expected.setdefault(one.id, NEARLY_SAME)
    assert {NEARLY_SAME, SAME} == set(expected.values())
    assert overlapping(mine, others) == expected


def test_records_are_like_themselves_with_a_word_changed_and_like_no_other():
    queries = records()
    assert len(queries) == 31
    rng = random.Random(0)
    for place, one in enumerate(queries):
        assert overlapping([one], queries[:place] + queries[place + 1 :]) == {}
        words = one.prompt.split(" ")
        if len(words) > 25:
            words[rng.randrange(len(words) - 11)] = "changed"
            assert overlapping([dataclasses.replace(one, prompt=" ".join(words))], queries) == {one.id: NEARLY_SAME}
