"""Stop tags are found in text and cut at tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rw.protocol.stop import StopScanner, first_stop, stop_tags
from rw.types import Mode

ALL_TAGS = ("</mode>", "</route>", "</answer>", "<observation")


def first_hit(codec, tags, ids):
    """Index of the first token that completes a tag."""
    scanner = StopScanner(codec, tags)
    return next((index for index, token in enumerate(ids) if scanner.feed(int(token))), None)


def test_tags_of_each_turn():
    assert stop_tags(None) == ("</mode>", "</answer>", "<observation")
    assert stop_tags(Mode.SINGLE) == stop_tags(Mode.MULTI) == ("</route>", "</answer>", "<observation")
    assert stop_tags(Mode.AGENTIC) == ("</answer>", "<observation")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a</route><b", (9, "</route>")),
        ("</answer></route>", (9, "</answer>")),
        ("<observation</route>", (12, "<observation")),
        ("</rout>", None),
        ("</ROUTE>", None),
    ],
)
def test_first_completed_tag(text, found):
    assert first_stop(text, ALL_TAGS) == found
    bytes_found = first_stop(text.encode(), [tag.encode() for tag in ALL_TAGS])
    assert bytes_found == (found and (found[0], found[1].encode()))


def test_token_that_carries_more_than_the_tag_completes_it(codec):
    ids = codec.encode_text("</route><")
    assert codec.token_bytes[ids[-1]] == b"><"
    assert first_hit(codec, ("</route>",), ids) == len(ids) - 1


def test_each_completion_is_reported_once(codec):
    scanner = StopScanner(codec, ("</mode>", "<observation"))
    hits = [scanner.feed(int(token)) for token in codec.encode_text("</mode> and </mode>!")]
    assert hits.count(True) == 2
    assert not StopScanner(codec, ()).feed(5)


@given(st.data())
def test_any_split_into_tokens_cuts_at_the_same_byte(codec, data):
    """The text's first completed tag lies in the reported token and in none before, however the text is tokenised."""
    parts = st.sampled_from((*ALL_TAGS, "<", "</", "route", ">", "é", "𓂀", " x", "</rou", "ans", "obs", "\n"))
    raw = "".join(data.draw(st.lists(parts, max_size=8))).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=len(raw))) | {0, len(raw)})
    ids = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        try:
            ids += codec.encode_text(raw[start:end].decode()).tolist()
        except UnicodeDecodeError:  # inside a character: byte tokens
            ids += [codec.token_bytes.index(bytes([byte])) for byte in raw[start:end]]
    pieces = [codec.token_bytes[index] for index in ids]
    assert b"".join(pieces) == raw
    found = first_stop(raw, [tag.encode() for tag in ALL_TAGS])
    hit = first_hit(codec, ALL_TAGS, ids)
    if found is None:
        assert hit is None
    else:
        before = len(b"".join(pieces[:hit]))
        assert before < found[0] <= before + len(pieces[hit])
