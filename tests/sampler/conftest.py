"""The real tokenizer, and a tiny router over a slice of ids for whatever needs weights."""

import pathlib

import pytest

import rw.protocol
from rw.protocol.chat import TokenCodec


@pytest.fixture(scope="session")
def codec():
    return TokenCodec.from_file(next(pathlib.Path(rw.protocol.__file__).parent.parent.rglob("qwen3_tokenizer.json.xz")))
