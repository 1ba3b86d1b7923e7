"""When two answers count as one: what each data set's scorer would read in them."""

import pytest

from rw.evaluation.answer_keys import answer_key


@pytest.mark.parametrize(
    ("dataset", "same"),
    [
        ("math", ["So it is \\boxed{\\frac{1}{2}}.", "0.5", "1/2"]),
        ("aime", ["045", "45", "The answer is \\boxed{45}."]),
        ("omni_math", ["x^2 + 1", "x^2+1"]),
        ("super_gpqa", ["B", "(B)", "I think it is **B**."]),
        ("sat_bench", ["UNSAT", "It is unsatisfiable", "[UNSAT]"]),
        ("apps", ["Here:\n```python\nprint(1)  \n```", "```\nprint(1)\n```\n"]),
        ("nq", ["The Beatles", "beatles.", " the beatles"]),
        ("bbh", ["So the answer is\n**valid**.", "Valid"]),
        ("simulated", ["42", " 42. "]),
        ("a set of one's own", ["Blue  Whale", "blue whale."]),
    ],
)
def test_answers_that_a_scorer_reads_alike_agree(dataset, same):
    keys = {answer_key(answer, dataset) for answer in same}
    assert len(keys) == 1 and None not in keys


@pytest.mark.parametrize(
    ("dataset", "one", "other"),
    [
        ("math", "0.5", "50\\%"),
        ("math", "(1,2)", "(2,1)"),
        ("super_gpqa", "A", "B"),
        ("sat_bench", "SAT", "UNSAT"),
        ("apps", "```\nprint(1)\n```", "```\n print(1)\n```"),
        ("nq", "Lima", "Quito"),
        ("simulated", "-4", "4"),
    ],
)
def test_answers_that_differ_do_not_agree(dataset, one, other):
    assert answer_key(one, dataset) != answer_key(other, dataset)


@pytest.mark.parametrize("dataset", ["math", "super_gpqa", "sat_bench", "nq", "bbh", "simulated"])
def test_what_says_nothing_agrees_with_nothing(dataset):
    assert answer_key(None, dataset) is None and answer_key("", dataset) is None
