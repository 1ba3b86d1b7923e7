"""Checksummed lines: whatever a kill leaves is read up to its last whole line, and any other change is refused."""

import zlib

import pytest

from rw.workers.lines import DamagedLineError, read_lines, write_line

RECORDS = [{"kind": "turn", "tokens": [1, 2], "logprobs": [-0.1, -3.5]}, {"text": "naïve\u2028\n\ud800 ☃"}, {}]
DATA = b"".join(write_line(record) for record in RECORDS)


def test_every_prefix_gives_the_whole_lines_before_it():
    ends = [0, *(at + 1 for at, byte in enumerate(DATA) if byte == 0x0A)]
    for cut in range(len(DATA) + 1):
        records, whole = read_lines(DATA[:cut])
        assert whole == max(end for end in ends if end <= cut)
        assert records == RECORDS[: ends.index(whole)]


def test_every_changed_byte_before_the_tail_is_refused():
    for at in range(len(DATA)):
        for change in (0x01, 0x20, 0x80):
            damaged = DATA[:at] + bytes([DATA[at] ^ change]) + DATA[at + 1 :]
            if DATA[at] == 0x0A and at == len(DATA) - 1:
                continue  # without its newline the last line is a torn tail
            with pytest.raises(DamagedLineError, match="line"):
                read_lines(damaged)


def test_what_json_cannot_hold_is_not_written():
    with pytest.raises(ValueError, match="JSON|float"):
        write_line({"x": float("nan")})


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff"])
def test_a_checksum_does_not_make_a_record(text):
    with pytest.raises(DamagedLineError, match="line 1"):
        read_lines(b"%08x %s\n" % (zlib.crc32(text), text))
