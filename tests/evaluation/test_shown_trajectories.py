"""Which trajectories a page shows, and their calls as a graph."""

import json

import pytest

from rw.errors import DataError
from rw.evaluation.outcomes import ArmResult, Outcome, trajectories_path
from rw.evaluation.shown_trajectories import HEAD, MOST_PER_ARM, TAIL, cut, graph, shown, spread


def call(node, turn=None, references=(), **changes):
    return {"node_id": node, "worker_id": "worker_1", "references": list(references), "turn": turn, **changes}


def outcome(place, mode="single", right=True, status="answered", dataset="math"):
    return Outcome(f"q{place}", "math", mode, status, None, None, right, 0.0, (), dataset=dataset, domain="math")


def test_columns_are_turns_and_edges_follow_references():
    calls = [call("n1", 1), call("n2", 1), call("n3", 2, ["n1", "n2"])]
    nodes, edges = graph(calls, "agentic", "answered")
    assert nodes == [["question", 0, 0], ["n1", 1, 0], ["n2", 1, 1], ["n3", 2, 0], ["answer", 3, 0]]
    assert edges == [["question", "n1"], ["question", "n2"], ["n1", "n3"], ["n2", "n3"], ["n3", "answer"]]


def test_calls_in_multi_follow_one_another():
    _, edges = graph([call("n1", 1), call("n2", 2)], "multi", "answered")
    assert edges == [["question", "n1"], ["n1", "n2"], ["n2", "answer"]]


@pytest.mark.parametrize("mode", ["multi", "agentic"])
def test_without_turns_columns_follow_order_or_references(mode):
    nodes, _ = graph([call("n1"), call("n2", references=["n1"])], mode, "answered")
    assert [column for _, column, _ in nodes] == [0, 1, 2, 3]


def test_what_made_no_call_or_no_answer_has_a_graph_too():
    assert graph([], None, "terminal_invalid") == (
        [["question", 0, 0], ["stopped", 1, 0]], [["question", "stopped"]],
    )  # fmt: skip
    _, edges = graph([call("n1", 1, ["n9"])], "agentic", "answered")
    assert edges == [["question", "n1"], ["n1", "answer"]]  # an unknown reference is none


def test_a_spread_takes_turns_over_modes_and_endings_and_does_not_depend_on_the_order():
    outcomes = [outcome(i) for i in range(300)]
    outcomes += [outcome(300, "agentic", False), outcome(301, "multi"), outcome(302, None, False, "terminal_invalid")]
    found = spread(outcomes, 12)
    assert len(found) == 12 and {"q300", "q301", "q302"} <= {o.query_id for o in found}
    assert spread(outcomes[::-1], 12) == found and len(spread(outcomes[:3], 12)) == 3


def test_long_texts_keep_their_ends_and_say_what_is_left_out():
    text = "a" * HEAD + "b" * 1000 + "c" * TAIL
    found = cut(text)
    assert found.startswith("a" * HEAD) and found.endswith("c" * TAIL) and f"1,000 of {len(text):,} characters" in found
    assert "b" not in found.replace("be", "") and cut("short") == "short" and cut(None) is None


def test_damaged_files_name_their_line(tmp_path):
    path = trajectories_path(tmp_path, "trained")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"query_id": "other"}) + "\n{}\n")
    with pytest.raises(DataError, match="line 2: no trajectory .*; restore the file, or remove it"):
        shown(tmp_path, {"trained": ArmResult("trained", {}, (outcome(0),))})


def test_an_arm_without_trajectories_shows_none(tmp_path):
    assert shown(tmp_path, {"trained": ArmResult("trained", {}, (outcome(0),))}) == {}
    assert MOST_PER_ARM >= 40
