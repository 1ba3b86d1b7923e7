"""Results of arms: their numbers, text and page, of whole and odd evaluations."""

import dataclasses
import html.parser
import json
import re

import numpy as np
import pytest
from rich.console import Console

from rw import cli
from rw.errors import DataError, WorkdirError
from rw.evaluation import report
from rw.evaluation.arm_names import KINDS, kind, ordered, title
from rw.evaluation.outcomes import ArmResult, arm_path, read_arm, write_arm
from rw.evaluation.results import print_results, write_results
from rw.evaluation.results_html import embedded


class Reader(html.parser.HTMLParser):
    """Tags with their attributes, and the text of scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts, self.within = [], [], None

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.within = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.within = None

    def handle_data(self, data):
        if self.within == "script":
            self.scripts[-1] += data


def read_page(path):
    reader = Reader()
    reader.feed(path.read_text())
    return reader


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("results") / "run_a"
    made.write_arms(workdir, 60)
    made.write_trajectories(workdir, ("trained", "oracle"))
    return workdir, write_results(workdir)


def test_json_text_page_and_plots_are_written(whole):
    workdir, path = whole
    assert path == workdir / "report" / "results.html"
    names = {file.name for file in path.parent.iterdir()}
    assert {"results.html", "results.md", "results.json", "results_pareto.png", "results_modes.png"} <= names
    assert not [name for name in names if name.endswith(".part")]
    text = path.with_suffix(".md").read_text()
    for words in ("SIMULATED", "| trained router |", "authors' figures", "not the paper's questions", "RouterArena"):
        assert words in text, words
    for file in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (path.parent / file).is_file()


def test_the_numbers_are_those_of_the_files(whole):
    workdir, path = whole
    summary = json.loads(path.with_suffix(".json").read_text())
    outcomes = read_arm(arm_path(workdir, "trained")).outcomes
    right = sum(o.correct for o in outcomes) / len(outcomes)
    assert summary["arms"]["trained"]["accuracies"]["average"]["mean"] == pytest.approx(right)
    assert len(summary["differences"]) == 10 * 9 // 2 and summary["reference"] == "trained"
    found = summary["against_reference"]["forced_single"]["average"]
    pair = next(d for d in summary["differences"] if d["first"] == "trained" and d["second"] == "forced_single")
    assert found["mean"] == pytest.approx(-pair["average"]["mean"]) and found["low"] < found["mean"] < found["high"]
    assert not summary["is_the_papers_test"]


def test_results_made_again_are_the_same(whole, tmp_path, unpainted):
    workdir, path = whole
    again = write_results(workdir, tmp_path / "elsewhere")
    assert again.with_suffix(".json").read_bytes() == path.with_suffix(".json").read_bytes()
    assert again.with_suffix(".md").read_bytes() == path.with_suffix(".md").read_bytes()


def test_the_page_asks_nobody_for_anything(whole):
    page = read_page(whole[1])
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#")), (tag, name, value[:60])
    assert "url(" not in whole[1].read_text().replace("url(#tip)", "") and "@import" not in whole[1].read_text()


def test_texts_of_workers_cannot_leave_the_data(whole):
    page = read_page(whole[1])
    assert len(page.scripts) == 2  # the data and the page's own
    assert not [tag for tag, attributes in page.tags if "onerror" in attributes]
    data = json.loads(page.scripts[0])
    call = data["arms"]["trained"]["trajectories"][0]["calls"][0]
    assert "</script>" in call["output"] and "\ud83d" in call["output"] and "<" not in page.scripts[0]


def test_embedded_json_is_ascii_without_markup():
    text = embedded({"a": "</script><!-- \u2028 \ud800 é &"})
    assert text.isascii() and not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!-- \u2028 \ud800 é &"}


def test_the_page_says_how_many_trajectories_it_holds(whole):
    page = whole[1].read_text()
    data = json.loads(read_page(whole[1]).scripts[0])
    shown = len(data["arms"]["trained"]["trajectories"])
    assert data["arms"]["trained"]["of"] == 60 and f"{shown} of 60 of trained router" in page
    assert list(data["arms"]) == ["trained", "oracle"]  # those that keep trajectories


def test_other_evaluations_are_compared_on_common_questions(whole, made, tmp_path, unpainted):
    workdir, _ = whole
    other = tmp_path / "run_b"
    made.write_arms(other, 50, skill=0.2)
    path = write_results(workdir, tmp_path / "out", against=[str(other), f"{workdir}:oracle"])
    summary = json.loads(path.with_suffix(".json").read_text())
    names = [found["name"] for found in summary["against"]]
    assert "run_b:trained" in names and names[-1] == "run_a:oracle" and len(names) == 11
    found = next(found for found in summary["against"] if found["name"] == "run_b:trained")["minus"]["trained"]
    assert found["questions"] == 50 and found["only_first"] == 10
    assert "run_b:trained: 50 of its 50 questions are in common" in path.with_suffix(".md").read_text()
    console = Console(width=200, record=True, file=open("/dev/null", "w"))
    print_results(path, console)
    printed = console.export_text()
    assert "trained router minus run_b:trained" in printed and str(path) in printed.replace("\n", "")


def test_what_cannot_be_compared_is_refused(whole, made, tmp_path, unpainted):
    workdir, _ = whole
    with pytest.raises(WorkdirError, match="no arm 'oracl' .*; did you mean 'oracle'"):
        write_results(workdir, tmp_path, against=[f"{workdir}:oracl"])
    with pytest.raises(WorkdirError, match="no arm to compare with"):
        write_results(workdir, tmp_path, against=[str(tmp_path / "nowhere")])
    with pytest.raises(WorkdirError, match="no arm was evaluated"):
        write_results(tmp_path / "nowhere")
    made.write_arms(tmp_path / "draw", 60, seed=5)
    with pytest.raises(DataError, match="another draw_seed"):
        write_results(workdir, tmp_path, against=[str(tmp_path / "draw")])
    made.write_arms(tmp_path / "texts", 60)
    made.write_trajectories(tmp_path / "texts", ("trained",), words="other words")
    with pytest.raises(DataError, match="has another text"):
        write_results(workdir, tmp_path, against=[str(tmp_path / "texts")])


def test_one_arm_of_graded_scores_without_modes_costs_or_trajectories(made, tmp_path):
    outcomes = [
        dataclasses.replace(
            o, mode=None, cost_usd=None, score=0.5, workers=(), dataset="nq", domain="recall", status="answered"
        )
        for o in made.answers(np.random.default_rng(0), 8, 0.5)
    ]
    write_arm(tmp_path, ArmResult("baseline_mf", {"source": "llmrouter9", "modelled_cost": True}, tuple(outcomes)))
    path = write_results(tmp_path)
    summary = json.loads(path.with_suffix(".json").read_text())
    arm = summary["arms"]["baseline_mf"]
    assert arm["accuracies"]["average"]["mean"] == 0.5 and arm["router_arena"] is None
    assert arm["cost_usd"]["mean"] is None and arm["mode_share"]["overall"] is None
    assert not list(path.parent.glob("*.png")) and 'id="browse"' not in path.read_text()
    assert "modelled" in path.with_suffix(".md").read_text()


def test_other_conditions_of_an_arm_that_is_compared_are_told(made, tmp_path, unpainted):
    outcomes = made.answers(np.random.default_rng(0), 20, 0.5)
    for name, conditions in (("here", "a"), ("same", "a"), ("there", "b")):
        write_arm(tmp_path / name, ArmResult("trained", {"source": "nq6", "conditions": conditions}, outcomes))
    for name, differs in (("same", False), ("there", True)):
        path = write_results(tmp_path / "here", against=[str(tmp_path / name)])
        assert ("asked under other conditions" in path.with_suffix(".md").read_text()) == differs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "aime", "domain": "math"}, "held-out sets alone"),
        ({"status": "infrastructure_failure", "correct": False, "cost_usd": None, "mode": None}, "| 20 |"),
        ({"cost_usd": 0.0, "workers": ()}, "0.00 ± 0.00"),
        (None, "There is no question"),
    ],
    ids=["held out alone", "all lost", "free", "empty"],
)
def test_odd_evaluations_are_told_as_they_are(made, tmp_path, unpainted, changes, words):
    for arm in ("trained", "forced_single", 'baseline_<b>&"x"'):
        outcomes = [dataclasses.replace(o, **(changes or {})) for o in made.answers(np.random.default_rng(0), 20, 0.5)]
        write_arm(tmp_path, ArmResult(arm, {}, tuple(outcomes) if changes else ()))
    path = write_results(tmp_path)
    assert words in path.with_suffix(".md").read_text()
    assert "<td>&lt;b&gt;&amp;&quot;x&quot;</td>" in path.read_text()
    json.loads(
        path.with_suffix(".json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in results.json")
    )


def test_a_report_has_the_results_and_links_them(made, tmp_path, unpainted, capsys):
    workdir = made.whole_run(tmp_path / "run")
    assert cli.main(["report", str(workdir)]) == 0
    folder = workdir / report.FOLDER
    assert "](results.html)" in (folder / "report.md").read_text() and (folder / "results.html").is_file()
    without = made.write_config(tmp_path / "without")
    made.write_rows(without, 2)
    assert cli.main(["report", str(without)]) == 0
    assert not (without / report.FOLDER / "results.html").exists()
    assert "results.html" not in (without / report.FOLDER / "report.md").read_text()


def test_an_evaluation_alone_and_a_comparison_are_reported_too(made, tmp_path, unpainted, capsys):
    made.write_arms(tmp_path / "one", 20)
    made.write_arms(tmp_path / "two", 20, skill=0.1)
    assert cli.main(["report", str(tmp_path / "one"), "--against", f"{tmp_path / 'two'}:trained"]) == 0
    assert "trained router minus two:trained" in capsys.readouterr().out
    assert (tmp_path / "one" / "report" / "results.html").is_file()
    assert not (tmp_path / "one" / "report" / "report.md").exists()
    assert cli.main(["report", str(tmp_path / "one"), str(tmp_path / "two"), "--against", "x"]) == 2
    assert "--against compares the arms of one WORKDIR" in capsys.readouterr().err


def test_arms_have_names_kinds_and_an_order():
    names = ["baseline_oracle", "baseline_always_worker_10", "baseline_always_worker_2", "forced_agentic",
             "baseline_knn", "forced_single", "trained", "warm_start", "baseline_prompt_multi"]  # fmt: skip
    assert ordered(names) == [
        "trained", "forced_single", "forced_agentic", "warm_start", "baseline_prompt_multi",
        "baseline_always_worker_2", "baseline_always_worker_10", "baseline_knn", "baseline_oracle",
    ]  # fmt: skip
    assert {kind(name) for name in names} <= set(KINDS) and kind("something_new") == "rule"
    assert title("baseline_always_qwen-7b") == "always qwen-7b" and title("forced_multi") == "forced to multi"
