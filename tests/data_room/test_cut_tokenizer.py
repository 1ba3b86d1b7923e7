"""The tokenizer cut to the recorded texts splits them as Qwen3's does, with a tenth of the tokens."""

import lzma

import pytest

from rw.data import replay
from rw.data.cut_tokenizer import SOURCE, TARGET, cut, recorded_texts
from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.framing import Framing
from rw.protocol.prompts import Prompts


@pytest.fixture(scope="module")
def codecs():
    return TokenCodec.from_file(SOURCE), TokenCodec.from_file(TARGET)


def pieces(codec, text):
    return [codec.token_bytes[token] for token in codec.encode_text(text)]


def test_recorded_texts_are_split_as_by_the_whole_tokenizer(codecs):
    whole, small = codecs
    assert small.vocab_size == 15_817 and whole.vocab_size == 151_669
    texts = list(recorded_texts())
    assert len(texts) > 320 * 7
    assert [text for text in texts if pieces(whole, text) != pieces(small, text)] == []


def test_any_text_survives(codecs):
    _, small = codecs
    text = "Ⅻ zebras, 𝄞 and <|im_end|>\n\t\x00 naïve façade Ωμέγα 漢字"
    assert small.decode_bytes(small.encode_text(text)).decode() == text
    assert not set(small.encode_text(text).tolist()) & small.control_ids


def test_added_tokens_stay_and_tags_have_clean_borders(codecs):
    whole, small = codecs
    assert [small.decode([token]) for token in sorted(small.control_ids)] == [
        whole.decode([token]) for token in sorted(whole.control_ids)
    ]
    _, cards, _ = replay.load_nq6()
    _, contents = Framing(small, Prompts.load("short"), cards, ProtocolConfig()).candidate_contents()
    assert [small.decode(content) for content in contents] == ["single", "multi", "agentic"]


@pytest.mark.full
def test_the_file_is_what_the_command_makes():
    made = TokenCodec(cut(lzma.decompress(SOURCE.read_bytes()), recorded_texts()))
    assert made.fingerprint == TokenCodec.from_file(TARGET).fingerprint
