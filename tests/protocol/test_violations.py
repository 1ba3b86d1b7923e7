"""Every reason for a terminal violation, and the order in which they are reported."""

import dataclasses

import pytest

from rw.protocol.actions import Answer, DeclareMode, Route
from rw.protocol.config import ProtocolConfig
from rw.protocol.modes import advance, initial_state, judge
from rw.types import Mode, Role, Violation

SINGLE, MULTI, AGENTIC = Mode.SINGLE, Mode.MULTI, Mode.AGENTIC
PLANNER, EXECUTOR, VERIFIER, SUMMARIZER = Role


def route(role=None, refs=None, model="worker_1", task="t"):
    role_part = "" if role is None else f' role="{role}"'
    refs_part = "" if refs is None else f' refs="{refs}"'
    return f'<route model="{model}"{role_part}{refs_part}>{task}</route>'


def after(mode, *layers, **switches):
    """The state after layers of (role, task) routes that are not judged."""
    state = initial_state(config=ProtocolConfig(**switches), forced_mode=mode)
    for layer in layers:
        state = advance(state, [Route("worker_1", f"t{index}", role) for index, role in enumerate(layer)])
    return state


def reason(text, state, spans=None):
    actions, violation = judge(text, state, spans)
    assert bool(actions) == (violation is None)
    return violation


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    "form", ["<mode>{}</mode>", "\n<mode> {} </mode>", " \t<mode>\n{}\n</mode>", "<mode>{}</mode>>x"]
)
def test_declarations(mode, form):
    assert judge(form.format(mode.word), initial_state()) == ((DeclareMode(mode),), None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "single",
        "Sure: <mode>multi</mode>",
        "<think></think><mode>multi</mode>",
        "<mode></mode>",
        "<mode>Single</mode>",
        "<Mode>single</Mode>",
        "<mode>both</mode>",
        "<mode>single multi</mode>",
        '<mode name="x">single</mode>',
        "<mode >single</mode>",
        "<mode>single",
        "<mode>single<|im_end|>",
        "<mode>single</answer>",
        "<observation",
        "<mode>single<tool_call></mode>",
        "<|im_start|><mode>single</mode>",
        "<mode><mode>single</mode>",
        '<route model="worker_1">q</route><|im_end|>',
    ],
)
def test_mode_grammar(text):
    assert reason(text, initial_state()) is Violation.MODE_GRAMMAR


def test_mode_truncated_only_without_a_stop_tag():
    state = dataclasses.replace(initial_state(), turn_truncated=True)
    assert reason("I think that the mode", state) is Violation.MODE_TRUNCATED
    assert reason("I think </answer>", state) is Violation.MODE_GRAMMAR
    assert reason("<mode>single</mode>", state) is None


def test_routes_and_answers_of_single_and_multi():
    spaced = '\n<route model=" worker_4 ">\n Name it. \n</route>'
    assert judge(spaced, after(SINGLE)) == ((Route("worker_4", "Name it."),), None)
    assert judge("<answer> Lima </answer>", after(SINGLE, [None])) == ((Answer("Lima"),), None)
    assert judge("<answer></answer>", after(SINGLE, [None])) == ((Answer(""),), None)
    assert judge("<answer>2</answer>", after(MULTI, [None], [None])) == ((Answer("2"),), None)
    assert reason(route(), after(MULTI, [None], [None], [None])) is None


def test_layer_with_attributes_in_any_order():
    state = after(AGENTIC, [EXECUTOR, EXECUTOR])
    text = (
        '<route refs=" n2 , n1,,n2" model="worker_2" role="verifier">check</route>\n'
        '<route role=" planner "  model="worker_3" refs="" >plan</route> '
        '<route\nmodel="worker_3" role="executor">do</route>'
    )
    expected = (
        Route("worker_2", "check", VERIFIER, ("n2", "n1")),
        Route("worker_3", "plan", PLANNER),
        Route("worker_3", "do", EXECUTOR),
    )
    for end in ("", "<|im_end|>", "<|endoftext|>", "\n<|im_end|>"):
        assert judge(text + end, state) == (expected, None)


@pytest.mark.parametrize(
    ("text", "state", "expected"),
    [
        # A second declaration.
        (f"<mode>multi</mode>{route()}", after(SINGLE), Violation.SECOND_MODE),
        (f"{route('planner')}</mode><|im_end|>", after(AGENTIC), Violation.SECOND_MODE),
        ("<mode>multi</mode><observation", after(MULTI), Violation.SECOND_MODE),
        # An observation written by the router, wherever it starts.
        (f"{route('executor')}<observation", after(AGENTIC), Violation.FABRICATED_OBSERVATION),
        ("<observation>4</observation><answer>4</answer>", after(SINGLE, [None]), Violation.FABRICATED_OBSERVATION),
        ('<route model="worker_1">read <observation', after(MULTI), Violation.FABRICATED_OBSERVATION),
        ("thus <observation", after(SINGLE), Violation.FABRICATED_OBSERVATION),
        # The shape of a turn.
        ("", after(SINGLE), Violation.ACTION_GRAMMAR),
        ("<|im_end|>", after(AGENTIC), Violation.ACTION_GRAMMAR),
        ("I will ask.<|im_end|>", after(MULTI), Violation.ACTION_GRAMMAR),
        (f"First: {route()}", after(SINGLE), Violation.ACTION_GRAMMAR),
        (f"<think>hm</think>{route()}", after(SINGLE), Violation.ACTION_GRAMMAR),
        (f"{route('executor')} and {route('planner')}<|im_end|>", after(AGENTIC), Violation.ACTION_GRAMMAR),
        (f"{route('executor')}.<|im_end|>", after(AGENTIC), Violation.ACTION_GRAMMAR),
        ('<route model="worker_1">q<|im_end|>', after(SINGLE), Violation.ACTION_GRAMMAR),
        ('<route model="worker_1">q</answer>', after(SINGLE), Violation.ACTION_GRAMMAR),
        ('<route model="worker_1>q</route>', after(SINGLE), Violation.ACTION_GRAMMAR),
        ('<route model="worker_1">a<route model="worker_2">b</route>', after(SINGLE), Violation.ACTION_GRAMMAR),
        ('<Route model="worker_1">q</Route><|im_end|>', after(SINGLE), Violation.ACTION_GRAMMAR),
        ('<router model="worker_1">q</route>', after(SINGLE), Violation.ACTION_GRAMMAR),
        ("<answer>4<|im_end|>", after(SINGLE, [None]), Violation.ACTION_GRAMMAR),
        ("4</answer>", after(SINGLE, [None]), Violation.ACTION_GRAMMAR),
        ("So <answer>4</answer>", after(SINGLE, [None]), Violation.ACTION_GRAMMAR),
        ("<answer>a<answer>b</answer>", after(SINGLE, [None]), Violation.ACTION_GRAMMAR),
        (f"{route('summarizer')}<answer>4</answer>", after(AGENTIC), Violation.ACTION_GRAMMAR),
        ("<answer>a<|im_start|>b</answer>", after(SINGLE, [None]), Violation.ACTION_GRAMMAR),
        (route(task="use <tool_call> now"), after(SINGLE), Violation.ACTION_GRAMMAR),
        (f"{route('executor', task='a <|box_end|>')}<|im_end|>", after(AGENTIC), Violation.ACTION_GRAMMAR),
        (f"{route('executor')}<|im_end|><|im_end|>", after(AGENTIC), Violation.ACTION_GRAMMAR),
        (f"<|im_end|>{route('executor')}", after(AGENTIC), Violation.ACTION_GRAMMAR),
        (f"{route('executor')}</think>", after(AGENTIC), Violation.ACTION_GRAMMAR),
        # Attributes.
        ("<route>q</route>", after(SINGLE), Violation.WRONG_ATTRIBUTES),
        ("<route model='worker_1'>q</route>", after(SINGLE), Violation.WRONG_ATTRIBUTES),
        ("<route model=worker_1>q</route>", after(SINGLE), Violation.WRONG_ATTRIBUTES),
        ('<route model = "worker_1">q</route>', after(SINGLE), Violation.WRONG_ATTRIBUTES),
        ('<route Model="worker_1">q</route>', after(SINGLE), Violation.WRONG_ATTRIBUTES),
        ('<route model="worker_1" model="worker_1">q</route>', after(SINGLE), Violation.WRONG_ATTRIBUTES),
        (route("executor"), after(SINGLE), Violation.WRONG_ATTRIBUTES),
        ('<route model="worker_2" role="executor">q</route>', after(MULTI), Violation.WRONG_ATTRIBUTES),
        (route(refs=""), after(MULTI), Violation.WRONG_ATTRIBUTES),
        ('<route model="worker_1" role="executor" id="n1">q</route>', after(AGENTIC), Violation.WRONG_ATTRIBUTES),
        ('<route role="executor">q</route><|im_end|>', after(AGENTIC), Violation.WRONG_ATTRIBUTES),
        ('<answer mode="final">4</answer>', after(SINGLE, [None]), Violation.WRONG_ATTRIBUTES),
        # Values.
        (route(task=" \n "), after(SINGLE), Violation.EMPTY_SUBQUERY),
        (route(None, ""), after(AGENTIC), Violation.BAD_ROLE),
        (route("critic"), after(AGENTIC), Violation.BAD_ROLE),
        (route("Executor"), after(AGENTIC), Violation.BAD_ROLE),
        (route(""), after(AGENTIC), Violation.BAD_ROLE),
        (route(model="worker_7"), after(SINGLE), Violation.UNKNOWN_WORKER),
        (route(model=""), after(SINGLE), Violation.UNKNOWN_WORKER),
        (route("executor", "n1"), after(AGENTIC), Violation.BAD_REFERENCE),
        (route("verifier"), after(AGENTIC), Violation.BAD_REFERENCE),
        (route("verifier", " , "), after(AGENTIC, [EXECUTOR]), Violation.BAD_REFERENCE),
        (route("summarizer"), after(AGENTIC, [EXECUTOR]), Violation.BAD_REFERENCE),
        (route("executor") + route("verifier", "n2"), after(AGENTIC, [EXECUTOR]), Violation.BAD_REFERENCE),
        # Call limits.
        (route(), after(SINGLE, [None]), Violation.TOO_MANY_CALLS),
        (route(), after(MULTI, [None], [None], [None], [None]), Violation.TOO_MANY_CALLS),
        (
            "".join(route("executor", task=str(index)) for index in range(3)),
            after(AGENTIC, [EXECUTOR] * 6),
            Violation.TOO_MANY_CALLS,
        ),
        ("".join(route("executor", task=str(index)) for index in range(9)), after(AGENTIC), Violation.TOO_MANY_CALLS),
        # The summarizer's place.
        (route("executor"), after(AGENTIC, [EXECUTOR] * 7), Violation.SUMMARIZER_MISPLACED),
        (route("executor") * 2, after(AGENTIC, [EXECUTOR] * 6), Violation.SUMMARIZER_MISPLACED),
        (route("executor") + route("summarizer"), after(AGENTIC), Violation.SUMMARIZER_MISPLACED),
        (route("summarizer") + route("summarizer", task="u"), after(AGENTIC), Violation.SUMMARIZER_MISPLACED),
        (route("executor"), after(AGENTIC, [SUMMARIZER]), Violation.SUMMARIZER_MISPLACED),
        (route("summarizer", "n1"), after(AGENTIC, [SUMMARIZER]), Violation.SUMMARIZER_MISPLACED),
        # The rest.
        (route("executor", task="a ") + route("executor", task=" a"), after(AGENTIC), Violation.DUPLICATE_ROUTE),
        ("<answer>4</answer>", after(SINGLE), Violation.ANSWER_PREMATURE),
        ("<answer>4</answer>", after(MULTI, [None]), Violation.ANSWER_PREMATURE),
        ("<answer>4</answer>", after(AGENTIC), Violation.ANSWER_PREMATURE),
        ("<answer>4</answer>", after(AGENTIC, [EXECUTOR, VERIFIER]), Violation.ANSWER_PREMATURE),
    ],
)
def test_reasons(text, state, expected):
    assert reason(text, state) is expected


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (route("summarizer"), after(AGENTIC)),  # it may open alone
        (route("summarizer", "n7"), after(AGENTIC, [EXECUTOR] * 7)),  # as the eighth call
        ("".join(route("executor", task=str(index)) for index in range(7)), after(AGENTIC)),
        (route("executor") + route("planner") + route("executor", model="worker_2"), after(AGENTIC)),  # no duplicates
        (route("verifier", "n1"), after(AGENTIC, [PLANNER])),
        (route(task="<mode>multi</mode> is what?"), after(SINGLE)),  # a body is free text
        (route(task="3 < 4 > 2 & \"x\" 'y'"), after(SINGLE)),
        (route("executor") + "</route", after(AGENTIC, outside_text="ignored")),
    ],
)
def test_legal_turns(text, state):
    assert reason(text, state) is None


def test_first_reason_in_the_order_of_the_enum_is_reported():
    """One layer that breaks many rules, mended reason by reason."""
    state = after(AGENTIC, [EXECUTOR] * 6, [SUMMARIZER])
    layer = [
        '<route model="worker_1" role="executor">t</route>',
        '<route model="worker_1" role="executor">t</route>',
        '<route model="worker_1" role="verifier" refs="n9">t</route>',
        '<route model="worker_9" role="executor">t</route>',
        '<route model="worker_1" role="boss">t</route>',
        '<route model="worker_1" role="executor"> </route>',
        '<route model="worker_1" role="executor" x="">t</route>',
    ]
    assert reason("<mode>multi</mode>no" + "".join(layer) + "<observation", state) is Violation.SECOND_MODE
    assert reason("no" + "".join(layer) + "<observation", state) is Violation.FABRICATED_OBSERVATION
    assert reason("no" + "".join(layer), state) is Violation.ACTION_GRAMMAR
    found = [reason("".join(layer[:count]), state) for count in range(7, 1, -1)]
    assert found == [
        Violation.WRONG_ATTRIBUTES,
        Violation.EMPTY_SUBQUERY,
        Violation.BAD_ROLE,
        Violation.UNKNOWN_WORKER,
        Violation.BAD_REFERENCE,
        Violation.TOO_MANY_CALLS,
    ]
    assert reason("".join(layer[:2]), after(AGENTIC, [SUMMARIZER])) is Violation.SUMMARIZER_MISPLACED
    assert reason("".join(layer[:2]), after(AGENTIC)) is Violation.DUPLICATE_ROUTE


def test_every_reason_is_covered_above():
    marks = [mark for mark in test_reasons.pytestmark if mark.name == "parametrize"]
    covered = {expected for _, _, expected in marks[0].args[1]}
    assert covered == set(Violation) - {Violation.MODE_TRUNCATED, Violation.MODE_GRAMMAR}


def test_paper_rules_drop_what_the_released_code_adds():
    def paper(*layers):
        return after(AGENTIC, *layers, agentic_rules="paper")

    for text, state in (
        (route("verifier"), paper()),
        (route("summarizer"), paper([EXECUTOR])),
        (route("executor"), paper([EXECUTOR] * 7)),
        (route("executor") + route("summarizer"), paper()),
        (route("executor"), paper([SUMMARIZER])),
        (route("executor") * 2, paper()),
        ("<answer>4</answer>", paper([EXECUTOR])),
    ):
        assert reason(text, state) is None
    assert reason("<answer>4</answer>", paper()) is Violation.ANSWER_PREMATURE
    assert reason(route("executor", "n1"), paper()) is Violation.BAD_REFERENCE
    assert reason(route("executor"), paper([EXECUTOR] * 8)) is Violation.TOO_MANY_CALLS
    assert reason(route(), paper()) is Violation.BAD_ROLE


def test_outside_text_ignored_with_tag_case_and_written_observations():
    mode_state = initial_state(config=ProtocolConfig(outside_text="ignored"))
    assert judge("Sure: <MODE>multi</MODE> ok", mode_state) == ((DeclareMode(MULTI),), None)
    assert reason("Sure: multi", mode_state) is Violation.MODE_GRAMMAR
    single = after(SINGLE, outside_text="ignored")
    assert judge('Hm. <Route model="worker_2">q</ROUTE> ok', single) == ((Route("worker_2", "q"),), None)
    assert judge('<route model="worker_2">q</route>', single) == ((Route("worker_2", "q"),), None)
    layer = after(AGENTIC, outside_text="ignored")
    assert judge(f"a {route('executor')} b <observation", layer) == ((Route("worker_1", "t", EXECUTOR),), None)
    answered = after(SINGLE, [None], outside_text="ignored")
    assert judge("So <ANSWER>4</ANSWER>", answered) == ((Answer("4"),), None)
    assert reason("only words <observation", layer) is Violation.ACTION_GRAMMAR
    assert reason(f"<MODE>multi</MODE>{route()}", single) is Violation.SECOND_MODE
    assert reason(f"<tool_call>{route()}", single) is Violation.ACTION_GRAMMAR
    two = '<ROUTE model="worker_1">a</ROUTE><ROUTE model="worker_1">b</ROUTE>'
    assert reason(two, single) is Violation.ACTION_GRAMMAR


def test_text_beyond_the_first_stop_tag_is_not_judged():
    assert judge("<answer>4</answer> nonsense <mode>", after(SINGLE, [None])) == ((Answer("4"),), None)
    assert judge(route() + "<|im_start|>", after(MULTI)) == ((Route("worker_1", "t"),), None)
    assert reason(f"{route('executor')}</route>", after(AGENTIC)) is Violation.ACTION_GRAMMAR


def test_literal_control_tokens_count_as_sampled_unless_spans_say_otherwise():
    text = route(task="what is <|im_end|>?")
    assert reason(text, after(SINGLE)) is Violation.ACTION_GRAMMAR
    assert reason(text, after(SINGLE), spans=()) is None
    assert reason(text, after(SINGLE), spans=((30, 40),)) is Violation.ACTION_GRAMMAR
    written_end = f"{route('executor')}<|im_end|>"
    assert reason(written_end, after(AGENTIC)) is None
    assert reason(written_end, after(AGENTIC), spans=()) is Violation.ACTION_GRAMMAR


def test_states_count_nodes_layers_calls_and_turns():
    state = initial_state()
    assert (state.mode, state.worker_ids, state.calls_left) == (None, tuple(f"worker_{n}" for n in range(1, 7)), 0)
    state = advance(state, (DeclareMode(AGENTIC),))
    assert (state.mode, state.completed, state.calls_left, state.turns_left) == (AGENTIC, (), 8, 10)
    state = advance(state, (Route("worker_1", "a", EXECUTOR), Route("worker_2", "b", PLANNER)))
    state = advance(state, (Route("worker_1", "a", SUMMARIZER, ("n1",)),))
    assert (state.completed, state.calls_left, state.turns_left) == (("n1", "n2", "n3"), 5, 8)
    assert state.summarizer_done
    assert after(MULTI, [None]).calls_left == 3
    assert after(SINGLE, [None]).calls_left == 0


def test_degenerate_turns_are_judged():
    """A router that repeats itself for a whole budget; reading it in quadratic time would take minutes."""
    pieces = ("<route ", '<route model="', "<route>", '<route "', "<answer>", "</route>", "<mode>", '<route a="b">')
    for piece in pieces:
        assert judge(piece * 20_000 + "<|im_end|>", after(AGENTIC))[1] is not None
