"""Template sets and the texts made from them."""

import pytest

from rw.errors import ConfigError
from rw.protocol.config import SWITCHES, ProtocolConfig
from rw.protocol.modes import ModeState, Node, initial_state
from rw.protocol.prompts import FILE, TEMPLATES, Prompts
from rw.types import Mode, Role, WorkerCard

CARDS = (WorkerCard("worker_1", "Good at {braces}."), WorkerCard("worker_2", "Good at sums."))


@pytest.fixture(params=["default", "short"])
def packaged(request):
    return Prompts.load(request.param)


def test_selector_is_symmetric_and_names_no_worker(packaged):
    before, after = packaged.selector_parts()
    text = before + after
    assert [text.count(mode.word) for mode in Mode] == [1, 1, 1]
    assert "worker_" not in text
    assert after == ""  # the query stands last


def test_default_selector_gives_each_mode_one_clause_of_like_length():
    lines = [line for line in Prompts.load("default").selector_parts()[0].splitlines() if "<mode>" in line]
    assert len(lines) == 3
    assert max(map(len, lines)) - min(map(len, lines)) <= 20


def test_catalogue_shows_ids_and_descriptions(packaged):
    lines = packaged.catalogue(CARDS).splitlines()[-2:]
    assert all(card.id in line and card.description in line for card, line in zip(CARDS, lines, strict=True))


def test_rules_follow_mode_and_switch(packaged):
    rules = {(mode, switch): packaged.rules(mode, switch) for mode in Mode for switch in ("released", "paper")}
    assert rules[Mode.SINGLE, "released"] == rules[Mode.SINGLE, "paper"]
    assert rules[Mode.MULTI, "released"] == rules[Mode.MULTI, "paper"]
    assert rules[Mode.AGENTIC, "released"] != rules[Mode.AGENTIC, "paper"]
    assert len(set(rules.values())) == 4
    assert all(mode.word in text for (mode, _), text in rules.items())


def test_routing_state_says_all_that_limits_the_next_layer(prompt_texts):
    prompts = Prompts(prompt_texts)
    first = initial_state(forced_mode=Mode.AGENTIC)
    assert prompts.routing_state(first) == ("state: layer 1, nodes none, refs none, 8 calls, 10 turns, summarizer open")
    nodes = (Node("n1", Role.EXECUTOR), Node("n2", Role.VERIFIER), Node("n3", Role.SUMMARIZER))
    later = ModeState(first.worker_ids, first.config, Mode.AGENTIC, nodes, turns_taken=2)
    assert prompts.routing_state(later) == (
        "state: layer 3, nodes n1/executor n2/verifier n3/summarizer, refs n1,n2,n3, 5 calls, 8 turns, summarizer done"
    )


def test_remarks_on_programs_say_how_they_fared(packaged):
    assert "7" in packaged.program_tests("pass", 7, 7)
    failed = packaged.program_tests("wrong", 2, 7, "expected {4}, got 5")
    assert all(word in failed for word in ("2", "7", "wrong", "expected {4}, got 5"))
    assert failed.replace("\nexpected {4}, got 5", "") == packaged.program_tests("wrong", 2, 7)
    assert "time" in packaged.program_output("time", "so far {x}") and "so far {x}" in packaged.program_output(
        "time", "so far {x}"
    )


def test_worker_messages_have_fixed_headings_in_order(prompt_texts):
    prompts = Prompts(prompt_texts)
    assert prompts.worker_message("Q?\nNumber.", "Do {x}.") == (
        "Question:\nQ?\nNumber.\n\nTask:\nDo {x}.\n\nEnd with an answer."
    )
    assert prompts.worker_message("Q?", "Again.", previous="4\n\n5") == (
        "Question:\nQ?\n\nTask:\nAgain.\n\nPrevious reply:\n4\n\n5\n\nEnd with an answer."
    )
    shown = [("n1", Role.PLANNER, "1. add"), ("n3", Role.EXECUTOR, "{4}")]
    assert prompts.worker_message("Q?", "Check.", Role.VERIFIER, shown) == (
        "Role: verifier\nCheck it.\n\nQuestion:\nQ?\n\nTask:\nCheck.\n\nReply of n1 (planner):\n1. add"
        "\n\nReply of n3 (executor):\n{4}\n\nPASS or FAIL."
    )
    endings = [prompts.worker_message("Q?", "T.", role).rpartition("\n\n")[2] for role in Role]
    assert endings == ["Steps only.", "End with an answer.", "PASS or FAIL.", "End with an answer."]


def test_reply_formats_of_packaged_sets(packaged):
    plan, do, check, join = (packaged.worker_message("Q?", "T.", role).splitlines()[-1] for role in Role)
    assert "<answer>" in do and do == join
    assert "not answer" in plan
    assert all(word in check for word in ("PASS", "FAIL", "place", "reason", "remedy", "not answer"))


def test_directory_of_ones_own(tmp_path):
    text = (TEMPLATES / "short" / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace("choose", "take"))
    assert Prompts.load(tmp_path).selector_parts()[0].startswith("take ")
    (tmp_path / FILE).write_text("selector = ")
    with pytest.raises(ConfigError, match=FILE):
        Prompts.load(tmp_path)
    with pytest.raises(ConfigError, match="neither one of default, short nor a directory"):
        Prompts.load("shorter")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selector": "no place"}, "selector lacks {query}"),
        ({"selector": "{query} {query}"}, "selector has {query}"),
        ({"selector": "{query} {workers}"}, "selector has {workers}"),
        ({"rules.single": "{calls}"}, "rules.single has {calls}"),
        ({"rules.extra": "x"}, "'rules.extra' is unknown"),
        ({"observation.marker": 3}, "observation.marker = 3 is not a text"),
    ],
)
def test_wrong_texts_are_named(prompt_texts, change, message):
    with pytest.raises(ConfigError) as error:
        Prompts({**prompt_texts, **change})
    assert message in str(error.value)
    del prompt_texts["worker"]
    with pytest.raises(ConfigError, match="'worker' is missing"):
        Prompts(prompt_texts)


@pytest.mark.parametrize("name", SWITCHES)
def test_illegal_switch_names_value_and_legal_ones(name):
    with pytest.raises(ConfigError) as error:
        ProtocolConfig(**{name: "maybe"})
    assert str(error.value) == f"protocol.{name}='maybe' is not one of {', '.join(SWITCHES[name])}"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "64"])
def test_illegal_limit(value):
    with pytest.raises(ConfigError, match="protocol.mode_turn_limit="):
        ProtocolConfig(mode_turn_limit=value)


def test_defaults_are_the_papers():
    config = ProtocolConfig()
    assert (config.prompt_limit, config.response_budget) == (6144, 12288)
    assert (config.mode_turn_limit, config.observation_limit) == (64, 2048)
