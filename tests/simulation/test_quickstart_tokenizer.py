"""The quickstart's tokenizer: decisions are single tokens, tags are spelled as in Qwen3's, and texts come back."""

import itertools
import re
import unicodedata

import hypothesis
import hypothesis.strategies as st
import pytest

from rw.protocol.chat import QWEN3_CONTROL_LITERALS, TokenCodec
from rw.protocol.prompts import Prompts
from rw.simulation import make_tokenizer, skills, trials
from rw.simulation.make_tokenizer import TARGET, conversation
from rw.simulation.policies import HabitPolicy
from rw.simulation.queries import batch
from rw.simulation.workers import SimulatedWorld
from rw.simulation.world import NUMBERS
from rw.types import Mode, Role


@pytest.fixture(scope="module")
def codec() -> TokenCodec:
    return TokenCodec.from_file(TARGET)


def pieces(codec: TokenCodec, text: str) -> list[str]:
    return [codec.token_bytes[index].decode("utf-8", "replace") for index in codec.encode_text(text)]


def world_texts() -> list[str]:
    """What is written in episodes that the tokenizer was not trained on: another world, test queries, other habits."""
    world, prompts, policy = SimulatedWorld(11), Prompts.load(trials.TEMPLATES), HabitPolicy(11)
    texts = list(prompts.spoken())
    for number, asked in enumerate(batch(11, 0, 30, "test")):
        texts.append(asked.prompt)
        for mode in Mode:
            texts += conversation(world, asked, policy.plan(asked, number, mode), prompts)
    return texts


def test_size_and_control_tokens(codec):
    assert 1024 <= codec.vocab_size <= 4096
    assert [codec.token_bytes[index].decode() for index in sorted(codec.control_ids)] == [
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
        "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
        "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
        "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
        "<think>", "</think>",
    ]  # fmt: skip
    assert sorted(codec.control_ids) == list(range(codec.vocab_size - 26, codec.vocab_size))


def test_texts_of_the_world_are_one_token_a_word(codec):
    words = [word for text in world_texts() for word in re.findall(r" ?\w+", text)]  # with the blank before it
    assert len(words) > 5000
    assert sum(len(codec.encode_text(word)) == 1 for word in words) / len(words) >= 0.95


def test_no_token_mixes_letters_with_tag_punctuation_or_newlines(codec):
    for index in range(codec.vocab_size):
        if index not in codec.control_ids:
            token = codec.token_bytes[index].decode("utf-8", "replace")
            assert not (re.search(r"[^\W_]", token) and re.search(r'[<>/="\n\r]', token)), token


def test_tags_are_spelled_token_by_token(codec):
    for mode in Mode:
        assert pieces(codec, f"<mode>{mode.word}</mode>") == ["<", "mode", ">", mode.word, "</", "mode", ">"]
    assert pieces(codec, "<answer>17</answer>") == ["<", "answer", ">", "17", "</", "answer", ">"]
    assert pieces(codec, '<route model="worker_3">step one</route>') == [
        "<", "route", " model", '="', "worker_3", '">', "step", " one", "</", "route", ">",
    ]  # fmt: skip
    route = '<route model="worker_6" role="summarizer" refs="n1,n2">pick</route><|im_end|>'
    assert pieces(codec, route)[4:16] == [
        "worker_6", '"', " role", '="', "summarizer", '"', " refs", '="', "n1", ",", "n2", '">',
    ]  # fmt: skip


def test_a_closing_tags_last_token_carries_nothing_else(codec):
    ends = {codec.token_bytes[index] for index in range(codec.vocab_size) if b">" in codec.token_bytes[index]}
    assert {end for end in ends if end.decode() not in QWEN3_CONTROL_LITERALS} == {b">", b'">'}


def test_decisions_are_single_tokens(codec):
    nodes = [f"n{number}" for number in range(1, 9)]
    for word in (*skills.WORKER_IDS, *nodes, *NUMBERS, *(mode.word for mode in Mode), *Role):
        assert len(codec.encode_text(word)) == 1, word


def test_mode_candidates_differ_in_one_token(codec):
    ids = [tuple(codec.encode_text(mode.word)) for mode in Mode]
    assert len(set(ids)) == 3
    assert all(len(each) == 1 for each in ids)


def test_control_literals_in_text_are_plain_tokens(codec):
    for literal in QWEN3_CONTROL_LITERALS:
        ids = codec.encode_text(f"a {literal} b")
        assert not set(ids.tolist()) & codec.control_ids
        assert codec.decode(ids) == f"a {literal} b"


@hypothesis.given(text=st.text())
def test_text_comes_back_up_to_nfc(codec, text):
    assert codec.decode(codec.encode_text(text)) == unicodedata.normalize("NFC", text)


def test_texts_of_the_world_come_back(codec):
    for text in itertools.islice(world_texts(), 0, None, 7):
        assert codec.decode(codec.encode_text(text)) == text


@pytest.mark.full
def test_the_committed_file_is_what_the_script_makes(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["make_tokenizer", "--target", str(tmp_path / "made.json")])
    make_tokenizer.main()
    assert (tmp_path / "made.json").read_bytes() == TARGET.read_bytes(), "run python -m rw.simulation.make_tokenizer"
