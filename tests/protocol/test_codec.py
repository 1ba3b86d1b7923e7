"""Text to ids and back with the real Qwen3 tokenizer."""

import json
import lzma
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from rw.errors import ConfigError
from rw.protocol.chat import QWEN3_CONTROL_LITERALS, TokenCodec


def small_bpe():
    """A byte-level BPE whose trainer puts the control tokens into the vocabulary itself, as it does by default."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>")]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["route the query to a worker"] * 3, trainer)
    return tokenizer.to_str()


def test_facts_of_the_published_tokenizer(codec):
    assert codec.vocab_size == 151_669
    assert (codec.endoftext, codec.im_start, codec.im_end) == (151_643, 151_644, 151_645)
    assert codec.end_tokens == {151_643, 151_645}
    assert codec.control_ids == set(range(151_643, 151_669))
    assert codec.fingerprint == "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
    assert len(codec.token_bytes) == 151_669
    assert codec.token_bytes[151_667] == b"<think>"
    assert codec.token_bytes[codec.encode_text(" é")[0]].decode() == " é"
    assert {codec.token_bytes[index].decode() for index in codec.control_ids} == set(QWEN3_CONTROL_LITERALS)


def test_declaration_has_clean_borders(codec):
    pieces = [codec.token_bytes[index] for index in codec.encode_text("<mode>agentic</mode>")]
    assert pieces == [b"<", b"mode", b">", b"ag", b"entic", b"</", b"mode", b">"]


def test_all_bytes_have_a_token(codec):
    assert {bytes([byte]) for byte in range(256)} <= set(codec.token_bytes)


@pytest.mark.parametrize("literal", QWEN3_CONTROL_LITERALS)
def test_no_literal_becomes_a_control_token(codec, literal):
    ids = codec.encode_text(f"a{literal} {literal}\n{literal}")
    assert ids.dtype == np.int32
    assert not set(ids.tolist()) & codec.control_ids
    assert codec.decode(ids) == f"a{literal} {literal}\n{literal}"


@given(st.text(st.characters(codec="utf-8"), max_size=60), st.sampled_from(QWEN3_CONTROL_LITERALS))
def test_text_survives_up_to_nfc(codec, text, literal):
    ids = codec.encode_text(text + literal + text)
    assert codec.decode(ids) == unicodedata.normalize("NFC", text + literal + text)
    assert not set(ids.tolist()) & codec.control_ids


def test_empty_text_and_lone_surrogate(codec):
    assert codec.encode_text("").tolist() == []
    assert codec.encode_text("").dtype == np.int32
    assert codec.decode(codec.encode_text("a\ud800b")) == "a\ufffdb"
    assert codec.decode(codec.encode_text("\ud83d\ude00")) == "😀"  # a pair in two escapes is one character


def test_turn_shows_sampled_control_tokens_and_their_places(codec):
    ids = [*codec.encode_text("aé"), codec.im_start, *codec.encode_text("<think>"), 151_657, codec.im_end]
    turn = codec.decode_turn(ids)
    assert turn.text == "aé<|im_start|><think><tool_call><|im_end|>"
    assert turn.control_spans == ((2, 14), (21, 32), (32, 42))


def test_split_character_is_joined_or_marked(codec):
    ids = codec.encode_text("𓂀")
    assert len(ids) > 1
    assert codec.decode(ids) == "𓂀"
    assert codec.decode_turn([ids[0], codec.im_end]).text == "\ufffd<|im_end|>"
    assert codec.decode_turn([ids[0], codec.im_end]).control_spans == ((1, 11),)


@pytest.mark.parametrize("bad", [151_669, 151_935, -1])
def test_ids_that_do_not_exist_are_refused(codec, bad):
    with pytest.raises(ValueError, match="outside 0..151668"):
        codec.decode([1, bad])


def test_control_tokens_inside_the_vocabulary_cannot_be_written(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(small_bpe())
    codec = TokenCodec.from_file(path)
    assert codec.control_ids == {0, 1, 2, 3}
    ids = codec.encode_text("<|im_end|><think>worker")
    assert not set(ids.tolist()) & codec.control_ids
    assert codec.decode(ids) == "<|im_end|><think>worker"
    spec = json.loads(path.read_text())
    spec["pre_tokenizer"]["use_regex"], spec["model"]["ignore_merges"] = False, True  # whole texts are looked up
    whole = TokenCodec(json.dumps(spec).encode())
    assert not set(whole.encode_text("<think>").tolist()) & whole.control_ids
    packed = tmp_path / "tokenizer.json.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert TokenCodec.from_file(packed).fingerprint == codec.fingerprint


def test_bad_files_are_refused_by_name(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ConfigError, match="cannot read tokenizer"):
        TokenCodec.from_file(path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer.json"):
        TokenCodec.from_file(path)
    spec = json.loads(small_bpe())
    path.write_text(json.dumps({**spec, "decoder": None}))
    with pytest.raises(ConfigError, match="not a byte-level BPE"):
        TokenCodec.from_file(path)
    path.write_text(json.dumps({**spec, "added_tokens": spec["added_tokens"][:2]}))
    with pytest.raises(ConfigError, match=r"has no added token <\|im_end\|>"):
        TokenCodec.from_file(path)
    gap = {**spec["model"]["vocab"], "~~": 5000}
    path.write_text(json.dumps({**spec, "model": {**spec["model"], "vocab": gap}}))
    with pytest.raises(ConfigError, match="each once"):
        TokenCodec.from_file(path)
    (tmp_path / "broken.json.xz").write_bytes(b"no xz")
    with pytest.raises(ConfigError, match="cannot read tokenizer"):
        TokenCodec.from_file(tmp_path / "broken.json.xz")
