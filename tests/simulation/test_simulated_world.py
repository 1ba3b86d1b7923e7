"""The world's facts are permutations and tables of its seed, and every question can be written, read and solved."""

import itertools

import pytest

from rw.simulation.world import MODULUS, OPERATIONS, Kind, Question, World, all_questions, read_question


def question(text: str) -> Question:
    found = read_question(text)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", list(Kind))
def test_every_sampled_question_is_read_back_as_itself(kind):
    for asked in itertools.islice(all_questions(kind), 0, None, 97):
        assert read_question(f"{asked.text}\nReply with one number.") == asked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "what is this?",
        "recall tricky: what age has unicorn?",
        "math simple: take the age of otter, then plus 30.",
        "math simple: take the age of otter, then plus 7. Also more.",
    ],
)
def test_other_text_is_no_question(text):
    assert read_question(text) is None


def test_slots_say_what_the_text_says():
    asked = question("reason tricky: find x where flip of x plus 12 is 7.")
    assert (asked.kind, asked.domain, asked.difficulty, asked.steps) == (Kind.REASON_SEARCH, "reason", "tricky", 1)
    assert (asked["operation"], asked["plus"], asked["target"]) == ("flip", "12", "7")


def test_operations_are_permutations_that_differ():
    permutations = World(3).permutations
    assert all(sorted(permutations[name]) == list(range(MODULUS)) for name in OPERATIONS)
    assert len(set(permutations.values())) == len(OPERATIONS)


def test_answers_follow_from_the_facts():
    world = World(0)
    age = world.entry("recall", "otter", "age")
    assert world.answer(question("recall simple: what age has otter?")) == age
    assert world.answer(question("know tricky: which age suits otter?")) == world.entry("know", "otter", "age")
    assert world.answer(question("math simple: take the age of otter, then plus 29.")) == (age + 29) % 30
    code = question("code tricky: start with 20 plus 15, then run flip.")
    assert world.step(code, 0) == 5
    assert world.answer(code) == world.permutations["flip"][5]
    x = world.answer(question("reason simple: find x where fold of x plus 12 is 7."))
    assert (world.permutations["fold"][x] + 12) % 30 == 7


def test_a_second_step_without_a_first_result_is_refused():
    with pytest.raises(ValueError, match="needs the first"):
        World(0).step(question("code tricky: start with 20 plus 15, then run flip."), 1)


def test_worlds_of_different_seeds_differ():
    asked = [question(f"recall simple: what age has {thing}?") for thing in ("otter", "falcon", "badger", "tiger")]
    answers = {tuple(World(seed).answer(each) for each in asked) for seed in range(5)}
    assert len(answers) == 5
