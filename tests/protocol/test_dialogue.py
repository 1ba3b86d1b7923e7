"""Whole trajectories token by token: worked examples of each mode, and how they end."""

import numpy as np
import pytest

from rw.protocol.dialogue import PlannedCall, TurnLimits
from rw.types import Mode, Role, Segment, Status, Violation

USER = "<|im_end|>\n<|im_start|>user\n"
USER_AFTER_END = "\n<|im_start|>user\n"
ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"
PROMPT = "<|im_start|>user\nChoose.\nSolve 3x+2=14.<|im_end|>\n<|im_start|>assistant\n"
CATALOGUE = "\n\nWorkers:\n" + "\n".join(f"worker_{n}: Skill {n}." for n in range(1, 7))
ROUTE = '<route model="worker_4">Name it.</route>'
INVALID = Status.TERMINAL_INVALID


def state_text(layer, nodes, refs, calls, turns, summarizer):
    return f"state: layer {layer}, nodes {nodes}, refs {refs}, {calls} calls, {turns} turns, summarizer {summarizer}"


def executor(task, worker=1, refs=None):
    shown = "" if refs is None else f' refs="{refs}"'
    return f'<route model="worker_{worker}" role="executor"{shown}>{task}</route>'


def summarizer(refs):
    return f'<route model="worker_5" role="summarizer" refs="{refs}">Join.</route><|im_end|>'


def test_single_free(play):
    player = play()
    assert player.dialogue.next_turn() == TurnLimits(64, ("</mode>", "</answer>", "<observation"))
    assert player.write("<mode>single</mode>") == ()
    assert player.write(ROUTE) == (
        PlannedCall(
            "n1",
            "worker_4",
            None,
            (),
            "Name it.",
            "Question:\nSolve 3x+2=14.\n\nTask:\nName it.\n\nEnd with an answer.",
        ),
    )
    player.reply("Lima.")
    assert player.write("<answer>Lima</answer>") == ()
    assert player.runs() == [
        ("P", PROMPT),
        ("M", "<mode>single</mode>"),
        ("J", f"{USER}One call.{CATALOGUE}{ASSISTANT}"),
        ("I", ROUTE),
        ("J", USER),
        ("O", "<observation>Lima.</observation>"),
        ("J", ASSISTANT),
        ("I", "<answer>Lima</answer>"),
    ]
    dialogue = player.dialogue
    assert (dialogue.status, dialogue.violation, dialogue.cause) == (Status.ANSWERED, None, None)
    assert (dialogue.answer, dialogue.mode, dialogue.turn) == ("Lima", Mode.SINGLE, 3)
    assert dialogue.next_turn() is None


def test_multi_forced(play):
    player = play(Mode.MULTI)
    assert player.dialogue.turn == 1
    player.write('<route model="worker_1">Solve 3x+2=14.</route>')
    player.reply("x=4")
    (second,) = player.write('<route model="worker_3">Test that root.</route>')
    assert second == PlannedCall(
        "n2",
        "worker_3",
        None,
        (),
        "Test that root.",
        "Question:\nSolve 3x+2=14.\n\nTask:\nTest that root.\n\nPrevious reply:\nx=4\n\nEnd with an answer.",
    )
    player.reply("Holds.")
    player.write("<answer>4</answer>")
    assert player.runs() == [
        ("P", PROMPT),
        ("J", f"<mode>multi</mode>{USER}Some calls.{CATALOGUE}{ASSISTANT}"),
        ("I", '<route model="worker_1">Solve 3x+2=14.</route>'),
        ("J", USER),
        ("O", "<observation>x=4</observation>"),
        ("J", ASSISTANT),
        ("I", '<route model="worker_3">Test that root.</route>'),
        ("J", USER),
        ("O", "<observation>Holds.</observation>"),
        ("J", ASSISTANT),
        ("I", "<answer>4</answer>"),
    ]
    assert player.outcome == (Status.ANSWERED, None)


def test_agentic_free(play):
    player = play()
    player.write("<mode>agentic</mode>")
    layer = executor("a", refs="") + executor("b", worker=3) + "<|im_end|>"
    assert [(call.node_id, call.worker_id, call.role, call.references) for call in player.write(layer)] == [
        ("n1", "worker_1", Role.EXECUTOR, ()),
        ("n2", "worker_3", Role.EXECUTOR, ()),
    ]
    player.reply("A", "B")
    (join,) = player.write(summarizer("n1,n2"))
    assert join.content == (
        "Role: summarizer\nJoin it.\n\nQuestion:\nSolve 3x+2=14.\n\nTask:\nJoin.\n\n"
        "Reply of n1 (executor):\nA\n\nReply of n2 (executor):\nB\n\nEnd with an answer."
    )
    player.reply("AB")
    player.write("<answer>4</answer>")
    first = state_text(1, "none", "none", 8, 10, "open")
    second = state_text(2, "n1/executor n2/executor", "n1,n2", 6, 9, "open")
    third = state_text(3, "n1/executor n2/executor n3/summarizer", "n1,n2,n3", 5, 8, "done")
    assert player.runs() == [
        ("P", PROMPT),
        ("M", "<mode>agentic</mode>"),
        ("J", f"{USER}Layers.{CATALOGUE}\n\n{first}{ASSISTANT}"),
        ("I", layer),
        ("J", USER_AFTER_END),
        ("O", '<observation id="n1" role="executor">A</observation>'),
        ("J", "\n"),
        ("O", '<observation id="n2" role="executor">B</observation>'),
        ("J", f"\n\n{second}{ASSISTANT}"),
        ("I", summarizer("n1,n2")),
        ("J", USER_AFTER_END),
        ("O", '<observation id="n3" role="summarizer">AB</observation>'),
        ("J", f"\n\n{third}{ASSISTANT}"),
        ("I", "<answer>4</answer>"),
    ]
    assert player.outcome == (Status.ANSWERED, None)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("agentic_rules", ["released", "paper"])
def test_forced_and_free_contexts_agree_id_for_id(play, mode, agentic_rules):
    free = play(agentic_rules=agentic_rules)
    free.write(f"<mode>{mode.word}</mode>")
    forced = play(mode, agentic_rules=agentic_rules)
    assert forced.dialogue.context.tokens.tolist() == free.dialogue.context.tokens.tolist()
    assert (forced.dialogue.turn, forced.dialogue.state) == (free.dialogue.turn, free.dialogue.state)
    assert not np.isin(forced.dialogue.context.segments, (Segment.MODE, Segment.INNER)).any()


def test_eight_calls_in_eight_layers_leave_turns_to_answer(play, codec):
    player = play(Mode.AGENTIC)
    for number in range(1, 8):
        player.write(executor(f"step {number}", refs=f"n{number - 1}" if number > 1 else "") + "<|im_end|>")
        player.reply(f"reply {number}")
    (last,) = player.write(summarizer("n7, n1"))
    assert last.node_id == "n8"
    assert last.references == ("n7", "n1")
    assert "Reply of n7 (executor):\nreply 7\n\nReply of n1 (executor):\nreply 1" in last.content
    player.reply("all")
    player.write("<answer>4</answer>")
    assert player.outcome == (Status.ANSWERED, None)
    assert player.dialogue.turn == 10
    nodes = " ".join([*(f"n{n}/executor" for n in range(1, 8)), "n8/summarizer"])
    last_state = state_text(9, nodes, "n1,n2,n3,n4,n5,n6,n7,n8", 0, 2, "done")
    assert last_state in codec.decode(player.dialogue.context.tokens)


def test_every_turn_extends_the_one_before_by_what_was_sampled_and_inserted(play, codec):
    """Four calls deep, with ids that no tokenizer would give: prompt_t == prompt_{t-1} + sampled + inserted."""
    player = play()
    odd, usual = [53122, 316], [393, 30002]
    assert codec.decode(odd) == codec.decode(usual) == " Pantom"
    assert codec.encode_text(" Pantom").tolist() == usual
    player.write("<mode>multi</mode>")
    for number in range(4):
        before = player.dialogue.context.tokens
        sampled = [*codec.encode_text('<route model="worker_1">ask'), *odd, *codec.encode_text(f"{number}</route>")]
        player.write(sampled)
        player.reply("Pantom")
        now, segments = player.dialogue.context.tokens, player.dialogue.context.segments
        assert now[: len(before)].tolist() == before.tolist()
        assert now[len(before) : len(before) + len(sampled)].tolist() == sampled
        assert set(segments[len(before) : len(before) + len(sampled)]) == {Segment.INNER}
        assert set(segments[len(before) + len(sampled) :]) == {Segment.INJECTED, Segment.OBSERVATION}
        assert player.calls[0].subquery == f"ask Pantom{number}"
    player.write("<answer>4</answer>")
    assert player.outcome == (Status.ANSWERED, None)
    context = player.dialogue.context
    sampled_mask = np.isin(context.segments, (Segment.MODE, Segment.INNER))
    assert (context.logprobs[sampled_mask] == -0.5).all()
    assert (context.logprobs[~sampled_mask] == 0).all()


def test_control_tokens_are_those_of_one_chat_render(play, codec):
    """What a chat template would give for the whole conversation, written out by hand."""
    player = play()
    player.write("<mode>agentic</mode>")
    player.write(executor("a") + executor("b", 2) + "<|im_end|>")
    player.reply("<|im_end|>", "<think>")
    player.write(executor("c", refs="n1") + "<|endoftext|>")
    player.reply("<tool_call>")
    player.write(summarizer("n3"))
    player.reply("done")
    player.write("<answer>4</answer>")
    start, end = codec.im_start, codec.im_end
    turns = [[start, end, start], [end, start, end, start], [end, start, end, start]]
    turns += [[codec.endoftext, end, start, end, start], [end, start, end, start]]
    controls = [token for token in player.dialogue.context.tokens.tolist() if token in codec.control_ids]
    assert controls == [token for turn in turns for token in turn]
    headers = codec.decode(player.dialogue.context.tokens).count("<|im_start|>assistant\n")
    assert headers == 5


def test_exactly_one_end_token_closes_a_turn(play, codec):
    player = play(Mode.AGENTIC)
    player.write(executor("a") + "<|im_end|>")
    player.reply("A")
    sampled = player.runs()[2:4]
    assert sampled == [("I", executor("a") + "<|im_end|>"), ("J", USER_AFTER_END)]
    player = play(Mode.AGENTIC)
    player.write(executor("a") + "<|endoftext|>")
    player.reply("A")
    assert player.runs()[2:4] == [("I", executor("a") + "<|endoftext|>"), ("J", USER)]


def test_prose_before_the_declaration_is_invalid_and_all_mode(play):
    player = play()
    player.write("Sure: <mode>multi</mode>")
    assert player.outcome == (INVALID, Violation.MODE_GRAMMAR)
    assert player.runs() == [("P", PROMPT), ("M", "Sure: <mode>multi</mode>")]
    assert (player.dialogue.mode, player.dialogue.next_turn()) == (None, None)


def test_end_token_and_overshoot_of_the_mode_turn_are_mode_tokens(play, codec):
    player = play()
    player.write("<mode>single<|im_end|>")
    assert player.outcome == (INVALID, Violation.MODE_GRAMMAR)
    assert player.runs()[1] == ("M", "<mode>single<|im_end|>")
    player = play()
    ids = codec.encode_text("<mode>single</mode>\n")
    assert codec.token_bytes[ids[-1]] == b">\n"
    player.write(ids)
    assert player.dialogue.mode is Mode.SINGLE
    assert player.runs()[1] == ("M", "<mode>single</mode>\n")


def test_mode_turn_of_64_tokens_without_a_tag_is_truncated(play, codec):
    words = codec.encode_text(" a" * 64)
    assert len(words) == 64
    player = play()
    player.write(words, stop="length")
    assert player.outcome == (INVALID, Violation.MODE_TRUNCATED)
    assert player.runs()[1] == ("M", " a" * 64)
    player = play()
    player.write([*words[:63], codec.im_end])
    assert player.outcome == (INVALID, Violation.MODE_TRUNCATED)
    player = play()
    player.write([*words[:62], codec.im_end])
    assert player.outcome == (INVALID, Violation.MODE_GRAMMAR)
    player = play()
    blank = codec.encode_text("\n")
    declaration = codec.encode_text("<mode>single</mode>")
    player.write([*np.repeat(blank, 64 - len(declaration)), *declaration], stop="length")  # the 64th completes it
    assert player.dialogue.mode is Mode.SINGLE


@pytest.mark.parametrize(
    ("mode", "turns", "reason"),
    [
        (Mode.SINGLE, ["<answer>4</answer>"], Violation.ANSWER_PREMATURE),
        (Mode.MULTI, [ROUTE, "<answer>4</answer>"], Violation.ANSWER_PREMATURE),
        (Mode.AGENTIC, [executor("a") + "<|im_end|>", "<answer>4</answer>"], Violation.ANSWER_PREMATURE),
        (Mode.SINGLE, [ROUTE, ROUTE], Violation.TOO_MANY_CALLS),
        (Mode.MULTI, [ROUTE] * 5, Violation.TOO_MANY_CALLS),
        (
            Mode.AGENTIC,
            [*[executor(str(n)) + "<|im_end|>" for n in range(6)], "".join(map(executor, "abc")) + "<|im_end|>"],
            Violation.TOO_MANY_CALLS,
        ),
        (Mode.MULTI, ['<route model="worker_2" role="executor">q</route>'], Violation.WRONG_ATTRIBUTES),
        (Mode.AGENTIC, [executor("a", refs="n1") + "<|im_end|>"], Violation.BAD_REFERENCE),
        (Mode.AGENTIC, ['<route model="worker_1" role="verifier">q</route><|im_end|>'], Violation.BAD_REFERENCE),
        (Mode.AGENTIC, [executor(str(n)) + "<|im_end|>" for n in range(8)], Violation.SUMMARIZER_MISPLACED),
        (
            Mode.AGENTIC,
            [executor("a") + "<|im_end|>", executor("b") + summarizer("n1")],
            Violation.SUMMARIZER_MISPLACED,
        ),
        (
            Mode.AGENTIC,
            [executor("a") + "<|im_end|>", summarizer("n1"), executor("b") + "<|im_end|>"],
            Violation.SUMMARIZER_MISPLACED,
        ),
        (Mode.AGENTIC, [executor("a") + "<observation"], Violation.FABRICATED_OBSERVATION),
        (Mode.SINGLE, [ROUTE, "<answer>4<|im_start|>4</answer>"], Violation.ACTION_GRAMMAR),
        (Mode.SINGLE, ['<route model="worker_1">a <tool_call> b</route>'], Violation.ACTION_GRAMMAR),
    ],
)
def test_worked_violations(play, mode, turns, reason):
    """The offending turn ends the trajectory, is kept as policy tokens, and sends nothing."""
    player = play(mode)
    for turn in turns[:-1]:
        player.reply(*["ok"] * len(player.write(turn)))
    assert player.dialogue.status is None
    assert player.write(turns[-1]) == ()
    assert player.outcome == (INVALID, reason)
    assert player.runs()[-1] == ("I", turns[-1])
    assert player.dialogue.answer is None
    assert player.dialogue.next_turn() is None


def test_tag_completed_by_a_token_that_says_more_is_legal(play, codec):
    player = play(Mode.SINGLE)
    ids = codec.encode_text('<route model="worker_1">q</route><')
    assert codec.token_bytes[ids[-1]] == b"><"
    (call,) = player.write(ids)
    assert call.subquery == "q"
    player.reply("r")
    assert player.runs()[2:4] == [("I", '<route model="worker_1">q</route><'), ("J", USER)]
    player.write("<answer>4</answer>")
    assert player.outcome == (Status.ANSWERED, None)


def test_control_token_written_in_letters_is_text(play, codec):
    """The ids decide: the letters of a control token, sampled one by one, are no control token."""
    player = play(Mode.SINGLE)
    (call,) = player.write(codec.encode_text('<route model="worker_1">what is <|im_end|>?</route>'))
    assert call.subquery == "what is <|im_end|>?"


def test_workers_read_replies_whole_and_the_router_reads_them_cut(play, codec):
    long = " ".join(str(number) for number in range(3000))
    player = play(Mode.MULTI)
    player.write(ROUTE)
    player.reply(long)
    assert long not in codec.decode(player.dialogue.context.tokens)
    (call,) = player.write(ROUTE)
    assert f"Previous reply:\n{long}\n\n" in call.content
    player = play(Mode.AGENTIC)
    player.write(executor("a") + "<|im_end|>")
    player.reply(long)
    (call,) = player.write(summarizer("n1"))
    assert f"Reply of n1 (executor):\n{long}\n\n" in call.content


def test_paper_rules_answer_after_one_executor(play):
    player = play(Mode.AGENTIC, agentic_rules="paper")
    assert "Layers, free." in player.runs()[1][1]
    player.write(executor("a") + "<|im_end|>")
    player.reply("A")
    player.write("<answer>4</answer>")
    assert player.outcome == (Status.ANSWERED, None)


def test_outside_text_ignored_reaches_the_workers(play):
    player = play(outside_text="ignored")
    player.write("Sure: <mode>agentic</mode>")
    (call,) = player.write("Now " + executor("a") + " and <observation")
    assert (call.node_id, call.subquery) == ("n1", "a")


def test_empty_answer_is_an_answer(play):
    player = play(Mode.SINGLE)
    player.write(ROUTE)
    player.reply("r")
    player.write("<answer> </answer>")
    assert (player.outcome, player.dialogue.answer) == ((Status.ANSWERED, None), "")


def test_what_no_sampler_may_return_is_refused_and_leaves_no_trace(play, codec):
    player = play()
    before = len(player.dialogue.context)
    declaration = codec.encode_text("<mode>single</mode>")
    for ids, stop, message in (
        ([], "length", "0 sampled tokens"),
        (codec.encode_text(" a" * 65), "length", "65 sampled tokens; a turn has 1 to 64"),
        (declaration[:-1], "tag", "stopped by 'tag'"),
        (declaration, "end_token", "stopped by 'end_token'"),
        ([*declaration, codec.im_end], "end_token", "tokens follow the one that completed a stop tag"),
        (declaration, "stop", "stop 'stop' is not one of"),
        ([151_700], "length", "outside 0..151668"),
    ):
        with pytest.raises(ValueError, match=message):
            player.dialogue.take_turn(ids, np.zeros(len(ids)), stop)
    with pytest.raises(ValueError, match="equally long"):
        player.dialogue.take_turn(declaration, np.zeros(2), "tag")
    assert (len(player.dialogue.context), player.dialogue.turn, player.dialogue.status) == (before, 0, None)


def test_steps_out_of_order_are_refused(play, codec):
    player = play(Mode.SINGLE)
    with pytest.raises(RuntimeError, match="0 replies are due"):
        player.reply("r")
    player.write(ROUTE)
    with pytest.raises(RuntimeError, match="1 replies are due"):
        player.write(ROUTE)
    with pytest.raises(RuntimeError, match="1 replies are due, not 2"):
        player.reply("a", "b")
    player.reply("r")
    player.write("<answer>4</answer>")
    with pytest.raises(RuntimeError, match="the trajectory has ended: answered"):
        player.write("<answer>4</answer>")
