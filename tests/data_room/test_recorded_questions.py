"""The recorded questions: joined by name, priced in whole tokens, split by question."""

import hashlib
import json
import lzma
import re

import pytest

from rw.data.replay import NQ6_MODELS, NQ6_PATH, load_nq6, split
from rw.errors import DataError
from rw.scoring.short_answer import normalise


def raw_records() -> list[dict]:
    return [json.loads(line) for line in lzma.decompress(NQ6_PATH.read_bytes()).decode().split("\n") if line]


def record(**fields) -> dict:
    names = [model.model for model in NQ6_MODELS]
    made = {
        "q_id": 5,
        "query": "who won?",
        "gt": ["Ann"],
        "llm_name_list": names,
        "response_list": [f"said by {name}" for name in names],
        "cost_list": [model.output_price * 10 for model in NQ6_MODELS],
        "perf_list": [0.0] * 6,
    }
    return made | fields


def written(tmp_path, *records: dict):
    path = tmp_path / "outcomes.jsonl"
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    return path


def test_shipped_file_and_its_licence():
    queries, cards, answers = load_nq6()
    assert len(queries) == len(answers) == 320 and len({query.id for query in queries}) == 320
    query = queries[0]
    assert (query.id, query.dataset, query.domain) == ("nq-121", "nq", "recall")
    assert query.metadata == {"question": "when is the next episode of flash airing?"}
    assert query.prompt.startswith("when is the next episode of flash airing?\n") and query.prompt.count("\n") == 1
    assert query.reference == ("May\u00a08,\u00a02018",)
    assert [card.id for card in cards] == [f"worker_{k}" for k in range(1, 7)]
    licence = (NQ6_PATH.parent / "nq6_outcomes.LICENSE.txt").read_text()
    assert "MIT License" in licence and "ulab-uiuc/LLMRouter" in licence


def test_answers_are_joined_by_name_though_every_record_has_its_own_order():
    _, _, answers = load_nq6()
    records = raw_records()
    assert len({tuple(one["llm_name_list"]) for one in records}) > 100
    for one in records:
        said = answers[one["query"].strip()]
        for place, name in enumerate(one["llm_name_list"]):
            assert said[name].text == one["response_list"][place]
            assert said[name].cost_usd == one["cost_list"][place] / 1e6
            assert said[name].token_f1 == one["perf_list"][place]


def test_costs_are_whole_output_tokens_at_one_price_a_model():
    _, _, answers = load_nq6()
    prices = {model.model: model.output_price for model in NQ6_MODELS}
    for said in answers.values():
        for name, answer in said.items():
            assert abs(answer.output_tokens * prices[name] / 1e6 - answer.cost_usd) < 1e-12
            assert answer.finish_reason == ("length" if answer.output_tokens == 512 else "stop")


def test_mean_costs_and_scores_are_those_published_with_the_slice():
    _, _, answers = load_nq6()
    means = {
        model.model: (
            round(sum(said[model.model].token_f1 for said in answers.values()) / 320, 3),
            round(sum(said[model.model].cost_usd for said in answers.values()) / 320 * 1e6),
        )
        for model in NQ6_MODELS
    }
    assert means == {
        "google/gemma-2-27b-it": (0.448, 31),
        "meta/llama-3.1-70b-instruct": (0.206, 122),
        "meta/llama-3.1-8b-instruct": (0.272, 36),
        "mistralai/mistral-7b-instruct-v0.3": (0.146, 13),
        "mistralai/mixtral-8x22b-instruct-v0.1": (0.309, 81),
        "qwen/qwen2.5-7b-instruct": (0.138, 14),
    }


def test_cards_give_away_neither_model_nor_price():
    giveaways = re.compile(r"gemma|llama|mistral|mixtral|qwen|google|meta\b|alibaba|\d|\$|price|cheap", re.IGNORECASE)
    for model in NQ6_MODELS:
        assert not giveaways.search(model.card.description) and model.card.description.count(". ") == 1


def test_lines_end_at_newline_only(tmp_path):
    texts = ["a\u2028b", "c\x85d", "e\x0cf", "g", "h", "i"]
    queries, _, answers = load_nq6(written(tmp_path, record(response_list=texts)))
    assert len(queries) == 1
    assert [answers["who won?"][model.model].text for model in NQ6_MODELS] == texts


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cost_list": [0.81, 8.8, 1.8, 2.0, 12.0, 3.0]}, "nq-5: cost 0.81 of google/gemma-2-27b-it"),
        ({"cost_list": [0.0, 8.8, 1.8, 2.0, 12.0, 3.0]}, "nq-5: cost 0.0"),
        ({"cost_list": [0.8]}, "line 1: not a recorded outcome"),
        ({"llm_name_list": ["x", *(m.model for m in NQ6_MODELS[1:])]}, "nq-5: no answer of google/gemma-2-27b-it"),
        ({"gt": []}, "nq-5: question or reference answers are empty"),
        ({"query": " "}, "nq-5: question or reference answers are empty"),
        ({"query": None}, "line 1: not a recorded outcome"),
    ],
)
def test_unusable_records_are_refused_with_their_id(tmp_path, fields, message):
    with pytest.raises(DataError, match=re.escape(message)):
        load_nq6(written(tmp_path, record(**fields)))


def test_repeated_question_or_id_and_broken_line_are_refused(tmp_path):
    with pytest.raises(DataError, match="nq-6: its question was recorded before"):
        load_nq6(written(tmp_path, record(), record(q_id=6)))
    with pytest.raises(DataError, match="nq-5: its id was recorded before"):
        load_nq6(written(tmp_path, record(), record(query="who lost?")))
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps(record()) + "\n{broken\n")
    with pytest.raises(DataError, match="broken.jsonl line 2"):
        load_nq6(path)


def test_split_depends_on_seed_and_questions_and_not_on_their_order():
    queries, _, _ = load_nq6()
    train, validation, test = split(queries, seed=0)
    assert validation == []
    assert (len(train), len(test)) == (200, 120)
    assert {query.id for query in train}.isdisjoint(query.id for query in test)
    assert [query.id for query in train] == [query.id for query in queries if query in train]
    reversed_train, _, reversed_test = split(queries[::-1], seed=0)
    assert {query.id for query in reversed_test} == {query.id for query in test} and len(reversed_train) == 200
    assert {query.id for query in split(queries, seed=1)[2]} != {query.id for query in test}
    digest = hashlib.sha256(",".join(query.id for query in test).encode()).hexdigest()
    assert digest.startswith("1049cf79f77af3ec")  # another split would put tested questions into training
    with pytest.raises(DataError, match="cannot hold out 320 test and 0 validation of 320"):
        split(queries, seed=0, test=320)


def test_validation_queries_are_taken_from_the_training_ones():
    queries, _, _ = load_nq6()
    train, validation, test = split(queries, seed=3, test=120, validation=40)
    assert (len(train), len(validation), len(test)) == (160, 40, 120)
    assert test == split(queries, seed=3)[2]
    assert sorted(q.id for q in train + validation) == sorted(q.id for q in split(queries, seed=3)[0])


def token_f1(prediction: str, reference: str) -> float:
    """SQuAD's token F1."""
    given, wanted = normalise(prediction).split(), normalise(reference).split()
    common = sum(min(given.count(word), wanted.count(word)) for word in set(given))
    return 2 * common / (len(given) + len(wanted)) if common else 0.0


def test_recorded_scores_are_reproduced_by_our_normalisation():
    queries, _, answers = load_nq6()
    compared = 0
    for query in queries:
        for answer in answers[query.metadata["question"]].values():
            # As recorded: the last <answer> body counts, and a reply without one scores nothing.
            body = (re.findall(r"<answer>(.*?)</answer>", answer.text, re.DOTALL) or [""])[-1]
            score = max(token_f1(body, reference) for reference in query.reference)
            assert abs(score - answer.token_f1) < 1e-6, (query.id, answer.model)
            compared += 1
    assert compared == 1920
