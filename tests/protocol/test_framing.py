"""Observations cut in token space, the switches of the frame, and piecewise tokenisation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.errors import ConfigError, DataError
from rw.protocol.framing import cut_middle
from rw.types import Mode, Query, Segment, WorkerCard

END = "<|im_end|>"
USER = "<|im_end|>\n<|im_start|>user\n"
ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"
STATE_1 = "state: layer 1, nodes none, refs none, 8 calls, 10 turns, summarizer open"
STATE_2 = "state: layer 2, nodes n1/executor n2/planner, refs n1,n2, 6 calls, 9 turns, summarizer open"
CATALOGUE = "Workers:\n" + "\n".join(f"worker_{n}: Skill {n}." for n in range(1, 7))
ROUTE = '<route model="worker_1">q</route>'
LAYER = '<route model="worker_1" role="executor">a</route><route model="worker_2" role="planner">b</route><|im_end|>'


def observation_of(player):
    context = player.dialogue.context
    return context.tokens[context.segments == Segment.OBSERVATION]


def ask(player):
    player.write(ROUTE)
    return player


def test_long_reply_keeps_head_and_tail_and_counts_wrapper_and_marker(play, codec):
    player = ask(play(Mode.SINGLE, observation_limit=61))
    body = codec.encode_text(" ".join(str(number) for number in range(1000)))
    player.reply(codec.decode(body))
    kept = observation_of(player)
    opening, closing = codec.encode_text("<observation>"), codec.encode_text("</observation>")
    marker = codec.encode_text(" [cut] ")
    left = 61 - len(opening) - len(closing) - len(marker)
    tail = left // 2
    expected = [*opening, *body[: left - tail], *marker, *body[len(body) - tail :], *closing]
    assert kept.tolist() == expected
    assert len(kept) == 61
    assert left % 2 == 1  # so that the rounding is seen


@pytest.mark.parametrize(("extra", "is_cut"), [(0, False), (1, True)])
def test_default_limit_is_2048_with_the_wrapper(play, codec, extra, is_cut):
    wrapper = len(codec.encode_text("<observation>")) + len(codec.encode_text("</observation>"))
    reply = "x" + " x" * (2048 - wrapper - 1 + extra)
    assert len(codec.encode_text(reply)) == 2048 - wrapper + extra
    player = ask(play(Mode.SINGLE)).reply(reply)
    assert len(observation_of(player)) == 2048
    assert ("[cut]" in codec.decode(observation_of(player))) is is_cut


@given(
    st.text(st.sampled_from("a b𓂀𠜎🫨é\n0漢"), min_size=1, max_size=120),
    st.integers(0, 60),
)
def test_cut_never_splits_a_character(codec, text, room):
    body, marker = codec.encode_text(text), codec.encode_text("|")
    room += len(marker)
    if len(body) <= room:
        return
    kept = cut_middle(body, marker, room, codec)
    assert len(kept) <= room
    head, _, tail = codec.decode(kept).partition("|")
    whole = codec.decode(body)
    assert whole.startswith(head) and whole.endswith(tail)
    assert "\ufffd" not in head + tail


def test_partial_characters_at_both_borders_are_dropped(codec):
    body = codec.encode_text("𠜎𠜎𠜎𠜎")  # three tokens each
    marker = codec.encode_text("|")
    assert len(body) == 12
    assert codec.decode(cut_middle(body, marker, 11, codec)) == "𠜎|𠜎"  # head 5, tail 5: two tokens dropped at each
    assert codec.decode(cut_middle(body, marker, 7, codec)) == "𠜎|𠜎"
    assert codec.decode(cut_middle(body, marker, 6, codec)) == "𠜎|"
    assert codec.decode(cut_middle(body, marker, 1, codec)) == "|"


def test_wrapper_that_does_not_fit_is_refused(make_protocol):
    with pytest.raises(ConfigError, match="observations of 16 tokens"):
        make_protocol(observation_limit=16)


def test_turn_budget_for_observations_is_shared(play, codec):
    long = "x" + " x" * 6000
    player = play(Mode.AGENTIC, observation_budget="turn")
    player.write(LAYER)
    player.reply(long, "short")
    observations = codec.decode(observation_of(player))
    first = codec.encode_text(observations.partition("</observation>")[0] + "</observation>")
    assert len(first) == 2048  # 4096 in two shares; the short one's is not handed on
    budget = 1700
    player = play(Mode.SINGLE, observation_budget="turn", response_budget=budget)
    player.write(ROUTE)
    left = player.dialogue.tokens_left
    player.reply(long)
    assert len(observation_of(player)) == left - 1024
    player = play(Mode.SINGLE, observation_budget="turn", response_budget=1200)
    player.write(ROUTE)
    player.reply(long)
    assert len(observation_of(player)) == 256


def test_every_piece_is_tokenised_by_itself(play, codec, query):
    """A reply that starts and ends with what merges with its neighbours keeps its own ids, and so do they."""
    reply = ">\n</x>\n"
    player = ask(play(Mode.SINGLE)).reply(reply)
    expected = [*codec.encode_text("<observation>"), *codec.encode_text(reply), *codec.encode_text("</observation>")]
    assert observation_of(player).tolist() == expected
    merged = codec.encode_text(f"<observation>{reply}</observation>").tolist()
    assert merged != expected  # what one call would have made of it
    odd = Query("q", "math", "math", "\n\n leading and trailing \n", "")
    prompt = player.protocol.prompt_tokens(odd)
    assert codec.encode_text(odd.prompt).tolist() in [
        prompt[start : start + len(codec.encode_text(odd.prompt))].tolist() for start in range(len(prompt))
    ]


def test_prompt_is_one_user_message(make_protocol, codec, query):
    prompt = make_protocol().prompt_tokens(query)
    text = "<|im_start|>user\nChoose.\nSolve 3x+2=14.<|im_end|>\n<|im_start|>assistant\n"
    assert codec.decode(prompt) == text
    controls = [token for token in prompt.tolist() if token in codec.control_ids]
    assert controls == [codec.im_start, codec.im_end, codec.im_start]


def test_query_over_the_limit_is_refused_with_its_id(make_protocol, query):
    tokens = len(make_protocol().prompt_tokens(query))
    make_protocol(prompt_limit=tokens).check_fits(query)
    tight = make_protocol(prompt_limit=tokens - 1)
    message = f"query 'q-1': its prompt takes {tokens} tokens, over prompt_limit {tokens - 1}"
    for refuse in (tight.check_fits, tight.dialogue, tight.mode_candidates):
        with pytest.raises(DataError, match=message):
            refuse(query)


def test_catalogue_in_a_system_message(play):
    player = play(Mode.SINGLE, catalogue="system")
    assert player.runs() == [
        (
            "P",
            f"<|im_start|>system\n{CATALOGUE}<|im_end|>\n<|im_start|>user\nChoose.\nSolve 3x+2=14.<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        ("J", f"<mode>single</mode>{USER}One call.{ASSISTANT}"),
    ]


def test_released_framing_of_single(play):
    player = play(framing="released")
    player.write("<mode>single</mode>")
    player.write(ROUTE)
    player.reply("four")
    player.write("<answer>4</answer>")
    assert player.runs()[1:] == [
        ("M", "<mode>single</mode>"),
        ("J", f"{USER}One call.\n\n{CATALOGUE}{ASSISTANT}"),
        ("I", ROUTE),
        ("J", "\n\n"),
        ("O", "<observation>four</observation>"),
        ("J", "\n\n"),
        ("I", "<answer>4</answer>"),
    ]


def test_released_framing_of_a_forced_agentic_layer(play):
    player = play(Mode.AGENTIC, framing="released")
    player.write(LAYER)
    player.reply("A", "B")
    assert player.runs()[1:] == [
        ("J", f"{USER}<mode>agentic</mode>{USER}Layers.\n\n{CATALOGUE}{USER}{STATE_1}{ASSISTANT}"),
        ("I", LAYER),
        ("J", "\n"),
        ("O", '<observation id="n1" role="executor">A</observation>'),
        ("J", "\n\n"),
        ("O", '<observation id="n2" role="planner">B</observation>'),
        ("J", f"\n{USER}{STATE_2}{ASSISTANT}"),
    ]


def test_mode_candidates_hold_content_tokens_only(make_protocol, codec, query):
    protocol = make_protocol()
    prefix, contents = protocol.mode_candidates(query)
    assert codec.decode(prefix) == codec.decode(protocol.prompt_tokens(query)) + "<mode>"
    assert [[codec.decode([token]) for token in content] for content in contents] == [
        ["single"],
        ["multi"],
        ["ag", "entic"],
    ]
    whole = protocol.dialogue(query, Mode.AGENTIC).context.tokens
    assert np.array_equal(whole[: len(prefix)], prefix)
    assert whole[len(prefix) : len(prefix) + 2].tolist() == contents[2].tolist()


@pytest.mark.parametrize("ids", [(), ("worker_1", "worker_1"), ('a"b',), ("a b",)])
def test_worker_ids_must_be_spellable_and_unique(make_protocol, ids):
    with pytest.raises(ConfigError, match="Worker id"):
        make_protocol(cards=tuple(WorkerCard(worker_id, "d") for worker_id in ids))


def test_multi_shows_the_last_reply_or_none(play):
    for switch, shown in (("reply", ["", "one", "two"]), ("none", ["", "", ""])):
        player = play(Mode.MULTI, multi_previous=switch)
        for previous, reply in zip(shown, ("one", "two", "three"), strict=True):
            (call,) = player.write(ROUTE)
            assert ("Previous reply:" in call.content) is bool(previous)
            assert f"Previous reply:\n{previous}\n" in call.content or not previous
            player.reply(reply)
