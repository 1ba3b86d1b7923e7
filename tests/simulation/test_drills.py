"""Drills: random words that are the same each time, and that a router can only copy."""

import pytest

from rw.data.cut_tokenizer import TARGET
from rw.errors import ConfigError
from rw.protocol.chat import TokenCodec
from rw.protocol.prompts import Prompts
from rw.simulation.drills import FORMAT, Drills
from rw.simulation.messages import answer_body
from rw.simulation.plans import copied_answer
from rw.workers.loopback import CompletionCall, CompletionError


@pytest.fixture(scope="module")
def codec():
    return TokenCodec.from_file(TARGET)


@pytest.fixture(scope="module")
def drills(codec):
    return Drills(codec, seed=5)


def replies(drills, count=400):
    return [drills.reply("worker_1", f"message {number}") for number in range(count)]


def test_batches_are_a_function_of_seed_and_index(codec, drills):
    batch = drills.queries(3, 8)
    assert batch == Drills(codec, 5).queries(3, 8) and batch[:4] == drills.queries(3, 4)
    prompts = {query.prompt for seed in (5, 6) for index in (3, 4) for query in Drills(codec, seed).queries(index, 8)}
    assert len(prompts) == 32
    assert all(query.prompt == f"{query.metadata['question']}\n{FORMAT}" for query in batch)


def test_a_worker_says_the_same_to_the_same_message_only(drills):
    content = Prompts.load("short").worker_message("what is it?", "answer the question")
    call = CompletionCall("worker_2", content, None, None, None, None)
    said = drills.handler(call)
    assert said == drills.handler(call) and said.input_tokens == 0 and said.output_tokens > 0
    assert said.text == drills.reply("worker_2", content) != drills.reply("worker_3", content)


def test_what_is_no_worker_message_is_refused(drills):
    with pytest.raises(CompletionError, match="no question and task"):
        drills.handler(CompletionCall("worker_2", "hello", None, None, None, None))


def test_most_answers_stand_in_a_tag_and_some_are_a_first_line(drills):
    tagged = [reply for reply in replies(drills) if answer_body(reply) is not None]
    assert 340 <= len(tagged) <= 380  # nine in ten
    assert all(copied_answer(reply) == answer_body(reply) for reply in tagged)
    assert 30 <= sum(
        reply.split("<answer>")[0].count(answer_body(reply)) > 0 for reply in tagged
    )  # said before the tag
    assert {len(answer_body(reply).split()) for reply in tagged} == set(range(1, 9))


def test_words_are_of_all_ranks(codec, drills):
    seen = {word.lower() for reply in replies(drills, 2000) for word in reply.split() if word.isalpha()}
    assert len(seen) > 2000  # of about 6,000 that are a piece of the vocabulary


def test_a_vocabulary_without_words_is_refused(codec, monkeypatch):
    monkeypatch.setattr(codec, "token_bytes", [b" a", b"b"], raising=False)
    with pytest.raises(ConfigError, match="the tokenizer has 1 whole words; drills need 100"):
        Drills(codec, 0)
