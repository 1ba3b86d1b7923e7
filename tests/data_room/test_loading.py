"""Loading as such: ids, duplicates, unknown sets, files of a split, and the hub through a stand-in for its library."""

import sys
import types

import pytest

from rw.data import hub
from rw.data.source import load
from rw.data.sources import SOURCES, own
from rw.data.sources.schema import Options
from rw.data.wording import normalised
from rw.errors import DataError
from rw.scoring import SCORERS

NAMES = {
    "math", "omni_math", "math_500", "gsm8k", "aime", "apps", "live_code_bench", "taco", "human_eval", "mbpp",
    "super_gpqa", "gpqa_diamond", "sat_bench", "bbh", "trivia_qa", "simple_qa_verified", "custom",
}  # fmt: skip


def gsm(question, answer=1):
    return {"question": question, "answer": f"#### {answer}"}


def trivia(key, question):
    return {"id": key, "question": question, "golden_answers": ["x"]}


def test_every_set_has_a_loader_and_a_domain_of_the_paper():
    assert set(SOURCES) == NAMES
    domains = {name: source.domain for name, source in SOURCES.items() if name != "custom"}
    assert set(domains.values()) == {"math", "code", "knowledge", "reason", "recall"}
    assert [name for name, domain in domains.items() if domain == "reason"] == ["sat_bench", "bbh"]


def test_every_set_and_every_scorer_that_own_questions_may_name_is_judged():
    assert NAMES - {"custom"} | set(own.SCORERS) <= set(SCORERS)


def test_ids_without_a_set_of_their_own_depend_on_the_question_alone():
    three = load("gsm8k", [gsm("A?"), gsm("B?"), gsm("C?")]).queries
    assert load("gsm8k", [gsm("C?", 5)]).queries[0].id == three[2].id
    assert len({query.id for query in three}) == 3
    assert three[0].id == "gsm8k/2d003dcd002f"


def test_equal_questions_and_equal_ids_are_duplicates():
    rows = [
        trivia("a", "Who said “yes” – and why?"),
        trivia("b", 'who said  "yes" -\tand why ?!'),
        trivia("a", "Someone else?"),
        trivia("c", "Who said yes and why?"),
        trivia("", "And now?"),
        trivia("", "And now?"),
    ]
    loaded = load("trivia_qa", rows)
    assert [query.id for query in loaded.queries][:2] == ["trivia_qa/a", "trivia_qa/c"] and len(loaded.queries) == 3
    assert loaded.dropped == {"duplicate": 3} and loaded.examples["duplicate"][:2] == ("trivia_qa/b", "trivia_qa/a")
    assert loaded.rows == 6


@pytest.mark.parametrize("one, other", [("x + 1", "x - 1"), ("( [ {", "( [ <"), ("3 * 4", "34"), ("x²", "x2")])
def test_marks_tell_questions_apart(one, other):
    assert normalised(one) != normalised(other)
    assert len(load("gsm8k", [gsm(one), gsm(other)]).queries) == 2


def test_questions_that_no_text_encoding_takes_are_loaded():
    (query,) = load("gsm8k", [gsm("half a pair \ud83d?")]).queries
    assert query.prompt.startswith("half a pair \ud83d?")


@pytest.mark.parametrize(
    "name, says",
    [
        ("trivia", "did you mean 'trivia_qa'"),
        ("SuperGPQA", "did you mean 'super_gpqa'"),
        ("gpqa-diamond", "did you mean 'gpqa_diamond'"),
        ("qqq", "known are math, "),
    ],
)
def test_unknown_sets_are_refused_with_the_nearest(name, says):
    with pytest.raises(DataError, match=says):
        load(name, [])


def test_the_split_chooses_files_under_the_names_that_the_set_gives_it(tmp_path):
    for name in ("train", "validation"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": "{name}", "question": "{name}?", "golden_answers": ["x"]}}\n')
    assert [query.id for query in load("trivia_qa", tmp_path, split="test").queries] == ["trivia_qa/validation"]
    assert [query.id for query in load("trivia_qa", tmp_path, split="train").queries] == ["trivia_qa/train"]


def test_rows_are_counted_while_they_are_read():
    counts = []
    load("gsm8k", [gsm("A?"), gsm("A?"), gsm("B?")], on_row=counts.append)
    assert counts == [1, 2, 3]


def test_dropping_afterwards_is_counted_with_the_rest():
    loaded = load("gsm8k", [gsm("A?"), gsm("A?"), gsm("B?"), gsm("C?")])
    fewer = loaded.without({loaded.queries[1].id: "long", loaded.queries[2].id: "long"})
    assert fewer.queries == loaded.queries[:1] and fewer.dropped == {"duplicate": 1, "long": 2} and fewer.rows == 4
    assert fewer.examples["long"] == (loaded.queries[1].id, loaded.queries[2].id)
    assert loaded.dropped == {"duplicate": 1} and "long" not in loaded.examples


def test_options_of_a_split_are_those_of_the_call():
    row = {"problem_id": 0, "question": "Q?", "input_output": '{"inputs": ["1"], "outputs": ["1"]}'}
    ids = [
        load("apps", [row], split=split, options=Options(split="x")).queries[0].id for split in ("", "train", "test")
    ]
    assert ids == ["apps/0", "apps/train-0", "apps/test-0"]


@pytest.fixture
def library(monkeypatch):
    """A module `datasets` whose load_dataset notes what it is asked for and gives the rows of its `tables`."""
    module = types.ModuleType("datasets")
    module.asked, module.tables = [], {}

    def load_dataset(**arguments):
        module.asked.append(arguments)
        rows = module.tables[arguments.get("name")]
        if isinstance(rows, Exception):
            raise rows
        return rows

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_the_hub_gives_rows_of_all_configs_one_after_another(library):
    configs = SOURCES["bbh"].hub.configs
    library.tables = {config: [{"input": f"{config}?", "target": "x"}] for config in configs}
    loaded = load("bbh", "hub", split="test")
    assert [query.metadata["task"] for query in loaded.queries] == list(configs) and len(configs) == 27
    assert library.asked[0] == {"path": "lukaemon/bbh", "name": configs[0], "split": "test", "streaming": True}
    (record,) = loaded.files
    assert record["name"] == "hub lukaemon/bbh" and len(record["sha256"]) == 64 and record["bytes"] > 27 * 20


def test_sets_that_would_need_a_script_are_read_from_their_files(library):
    library.tables = {None: [{"problem_id": 3, "question": "Q?", "input_output": '{"inputs":["1"],"outputs":["1"]}'}]}
    assert load("apps", "hub", split="test").queries[0].id == "apps/test-3"
    assert library.asked == [
        {"path": "json", "data_files": "hf://datasets/codeparrot/apps/test.jsonl", "split": "train", "streaming": True}
    ]


def test_a_set_of_one_split_has_it_under_every_name(library):
    library.tables = {None: []}
    for split in ("train", "test", ""):
        load("super_gpqa", "hub", split=split)
    assert {arguments["split"] for arguments in library.asked} == {"train"}


@pytest.mark.parametrize(
    "dataset, split, says", [("math", "", "choose with --split"), ("math_500", "train", "not 'train'")]
)
def test_a_split_must_be_one_of_the_hubs(library, dataset, split, says):
    with pytest.raises(DataError, match=says):
        load(dataset, "hub", split=split)


def test_what_the_hub_cannot_deliver_says_what_to_do(library):
    library.tables = {"main": ConnectionError("no route")}
    with pytest.raises(
        DataError, match=r"openai/gsm8k/main test could not be read .*no route\); fetch its files by hand"
    ):
        load("gsm8k", "hub", split="test")


def test_without_the_library_the_hub_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install -e '.\\[data\\]'"):
        next(hub.hub_rows(SOURCES["gsm8k"].hub, "test"))
    with pytest.raises(DataError, match="on no hub"):
        load("custom", "hub")
