"""The response budget, turns, and what ends a trajectory as exhausted."""

import dataclasses

import pytest

from rw.types import Mode, Segment, Status, Violation

PROMPT = "<|im_start|>user\nChoose.\nSolve 3x+2=14.<|im_end|>\n<|im_start|>assistant\n"
ROUTE = '<route model="worker_4">Name it.</route>'
LAYER = '<route model="worker_1" role="executor">a</route>'
INVALID = Status.TERMINAL_INVALID


@pytest.mark.parametrize("exhausted", ["zero", "judged", "invalid"])
def test_budget_that_cuts_a_route(play, codec, exhausted):
    start = play(Mode.SINGLE).dialogue.context.response_length
    cut = codec.encode_text('<route model="wor')
    player = play(Mode.SINGLE, response_budget=start + len(cut), exhausted=exhausted)
    assert player.dialogue.next_turn().max_tokens == len(cut)
    assert player.write(cut, stop="length") == ()
    expected = {
        "zero": (Status.EXHAUSTED, None, "response_budget"),
        "judged": (INVALID, Violation.ACTION_GRAMMAR, None),
        "invalid": (INVALID, None, "response_budget"),
    }
    assert (*player.outcome, player.dialogue.cause) == expected[exhausted]
    assert player.runs()[-1] == ("I", '<route model="wor')


def test_long_turn_that_the_budget_cuts_is_not_judged(play, codec):
    """Longer than a mode turn may be, whose limit is no concern of later turns."""
    start = play(Mode.SINGLE).dialogue.context.response_length
    player = play(Mode.SINGLE, response_budget=start + 200)
    player.write(codec.encode_text(" a" * 200), stop="length")
    assert player.outcome == (Status.EXHAUSTED, None)


def test_cut_layer_of_complete_routes_is_exhausted_and_sends_nothing(play, codec):
    start = play(Mode.AGENTIC).dialogue.context.response_length
    cut = codec.encode_text(LAYER)
    for exhausted in ("zero", "judged"):
        player = play(Mode.AGENTIC, response_budget=start + len(cut), exhausted=exhausted)
        assert player.write(cut, stop="length") == ()
        assert player.outcome == (Status.EXHAUSTED, None)


def test_mode_turn_cut_by_the_budget_is_exhausted(play, codec):
    player = play(response_budget=10)
    assert player.dialogue.next_turn().max_tokens == 10
    player.write(codec.encode_text(" a" * 10), stop="length")
    assert (*player.outcome, player.dialogue.cause) == (Status.EXHAUSTED, None, "response_budget")


def test_answer_that_ends_exactly_at_the_budget_counts(play, codec):
    probe = play(Mode.SINGLE)
    probe.write(ROUTE)
    probe.reply("r")
    answer = codec.encode_text("<answer>4</answer>")
    budget = probe.dialogue.context.response_length + len(answer)
    for stop in ("tag", "length"):
        player = play(Mode.SINGLE, response_budget=budget)
        player.write(ROUTE)
        player.reply("r")
        assert player.dialogue.next_turn().max_tokens == len(answer)
        player.write(answer, stop=stop)
        assert player.outcome == (Status.ANSWERED, None)
        assert player.dialogue.answer == "4"
    player = play(Mode.SINGLE, response_budget=budget - 1)
    player.write(ROUTE)
    player.reply("r")
    player.write(answer[:-1], stop="length")
    assert player.outcome == (Status.EXHAUSTED, None)


def test_insertion_without_room_for_one_more_token_is_not_made(play):
    probe = play(Mode.SINGLE)
    probe.write(ROUTE)
    before = probe.dialogue.context.response_length
    probe.reply("r")
    after = probe.dialogue.context.response_length
    player = play(Mode.SINGLE, response_budget=after)
    player.write(ROUTE)
    player.reply("r")
    assert (*player.outcome, player.dialogue.cause) == (Status.EXHAUSTED, None, "response_budget")
    assert player.dialogue.context.response_length == before
    player = play(Mode.SINGLE, response_budget=after + 1)
    player.write(ROUTE)
    player.reply("r")
    assert player.dialogue.status is None
    assert player.dialogue.next_turn().max_tokens == 1


def test_rules_that_do_not_fit_exhaust_free_and_forced(play):
    rules = play(Mode.SINGLE).dialogue.context.response_length
    forced = play(Mode.SINGLE, response_budget=rules)
    assert (*forced.outcome, forced.dialogue.cause) == (Status.EXHAUSTED, None, "response_budget")
    assert forced.dialogue.next_turn() is None
    assert forced.runs() == [("P", PROMPT)]
    free = play(response_budget=rules)
    free.write("<mode>single</mode>")
    assert (free.outcome, free.dialogue.mode) == ((Status.EXHAUSTED, None), Mode.SINGLE)
    assert play(Mode.SINGLE, response_budget=rules + 1).dialogue.next_turn().max_tokens == 1


def test_late_turns_have_all_of_what_is_left(play, codec):
    """No per-turn cap but the mode turn's: three long turns are all kept."""
    player = play(Mode.MULTI)
    for _ in range(3):
        assert player.dialogue.next_turn().max_tokens == 12288 - player.dialogue.context.response_length
        player.write(f'<route model="worker_1">{"word " * 300}</route>')
        player.reply("r")
    assert (player.dialogue.context.segments == Segment.INNER).sum() > 900


@pytest.mark.parametrize(("exhausted", "status"), [("zero", Status.EXHAUSTED), ("invalid", INVALID)])
def test_turns_used_up(play, exhausted, status):
    player = play(Mode.AGENTIC, exhausted=exhausted)
    player.dialogue.state = dataclasses.replace(player.dialogue.state, turns_taken=10)
    assert player.dialogue.next_turn() is None
    assert (*player.outcome, player.dialogue.cause) == (status, None, "turns")
