"""The codec between text and router tokens.

Text is always encoded as plain text by a tokenizer without added tokens, since the libraries' own switches still let
some of them through; a control token enters the context only as a frame fragment of ours or as a sampled token.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from rw.errors import ConfigError

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
END_LITERALS = (IM_END, END_OF_TEXT)
# Qwen3's added tokens, for judging text whose token ids are not at hand.
QWEN3_CONTROL_LITERALS = (
    *(f"<|{name}|>" for name in ("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start")),
    *(f"<|{name}|>" for name in ("box_end", "quad_start", "quad_end", "vision_start", "vision_end", "vision_pad")),
    *(f"<|{name}|>" for name in ("image_pad", "video_pad", "fim_prefix", "fim_middle", "fim_suffix", "fim_pad")),
    *(f"<|{name}|>" for name in ("repo_name", "file_sep")),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)


@dataclasses.dataclass(frozen=True)
class TurnText:
    """A turn's text, control tokens visible as their literals, and the character span of each sampled control token."""

    text: str
    control_spans: tuple[tuple[int, int], ...]


@functools.cache
def _byte_of_letter() -> dict[int, int]:
    """Byte-level BPE writes each byte as a printable letter: code point -> byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in table]
    return {**table, **{256 + index: byte for index, byte in enumerate(hidden)}}


def _uses_bytes(part: Any) -> bool:
    """Whether a tokenizer part is, or contains, a ByteLevel step."""
    if isinstance(part, dict):
        return part.get("type") == "ByteLevel" or any(_uses_bytes(value) for value in part.values())
    return isinstance(part, list) and any(_uses_bytes(value) for value in part)


class TokenCodec:
    """Text to token ids and back, for a byte-level BPE with Qwen's chat tokens.

    Attributes:
        vocab_size: ids that exist; a model's padded vocabulary may be larger.
        im_start, im_end, endoftext: the chat tokens' ids.
        end_tokens: ids that end a router turn.
        control_ids: ids of all added tokens.
        fingerprint: sha256 of the unpacked tokenizer file, hex.
    """

    def __init__(self, tokenizer_json: bytes, name: str = "tokenizer"):
        """Raises ConfigError where the file is no byte-level BPE with Qwen's chat tokens."""
        try:
            spec = json.loads(tokenizer_json)
            added = {entry["content"]: int(entry["id"]) for entry in spec["added_tokens"]}
            vocabulary = {token: index for token, index in spec["model"]["vocab"].items() if token not in added}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{name} is not a tokenizer.json of Hugging Face tokenizers: {error!r}") from error
        if spec["model"].get("type") != "BPE" or not _uses_bytes(spec.get("decoder")):
            raise ConfigError(f"{name}: model {spec['model'].get('type')!r} is not a byte-level BPE")
        missing = [token for token in (IM_START, IM_END, END_OF_TEXT) if token not in added]
        if missing:
            raise ConfigError(f"{name} has no added token {missing[0]}; the router's chat frame needs it")
        ids = [*vocabulary.values(), *added.values()]
        if sorted(ids) != list(range(len(ids))):
            raise ConfigError(f"{name}: its {len(ids)} token ids are not 0..{len(ids) - 1}, each once")
        self.vocab_size = len(ids)
        self.im_start, self.im_end, self.endoftext = added[IM_START], added[IM_END], added[END_OF_TEXT]
        self.end_tokens = frozenset((self.im_end, self.endoftext))
        self.control_ids = frozenset(added.values())
        self.fingerprint = hashlib.sha256(tokenizer_json).hexdigest()
        self._added, self._vocabulary = added, vocabulary
        # Added tokens go, and with them their vocabulary entries: then no text can yield their ids.
        spec["added_tokens"] = []
        spec["model"]["vocab"] = vocabulary
        spec.update(truncation=None, padding=None, post_processor=None)
        self._plain = Tokenizer.from_str(json.dumps(spec))

    @classmethod
    def from_file(cls, path: str | Path) -> TokenCodec:
        """Reads `tokenizer.json` or `tokenizer.json.xz`; ConfigError where it cannot be read or used."""
        path = Path(path)
        try:
            data = path.read_bytes()
            return cls(lzma.decompress(data) if path.suffix == ".xz" else data, str(path))
        except (OSError, lzma.LZMAError) as error:
            raise ConfigError(f"cannot read tokenizer {path}: {error}") from error

    @functools.cached_property
    def token_bytes(self) -> list[bytes]:
        """Bytes of each id; of a control token its literal."""
        table = _byte_of_letter()
        by_id = [b""] * self.vocab_size
        for token, index in self._vocabulary.items():
            by_id[index] = token.translate(table).encode("latin-1")
        for token, index in self._added.items():
            by_id[index] = token.encode()
        return by_id

    def encode_text(self, text: str) -> np.ndarray:
        """Plain text as i32[n]: never a control id, whatever the text says; decodes to the text's NFC form."""
        try:
            encoding = self._plain.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # a lone surrogate, as broken JSON escapes leave them
            repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            encoding = self._plain.encode(repaired, add_special_tokens=False)
        return np.asarray(encoding.ids, np.int32)

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Bytes of ids, control tokens as their literals. Raises ValueError for an id that does not exist."""
        table = self.token_bytes
        numbers = np.asarray(ids, np.int64).reshape(-1)
        if numbers.size and not (0 <= numbers.min() and numbers.max() < self.vocab_size):
            raise ValueError(f"token ids {numbers.min()}..{numbers.max()} are outside 0..{self.vocab_size - 1}")
        return b"".join([table[number] for number in numbers.tolist()])

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids, control tokens visible; broken UTF-8 becomes U+FFFD."""
        return self.decode_turn(ids).text

    def decode_turn(self, ids: Sequence[int] | np.ndarray) -> TurnText:
        """Text of a turn and where its sampled control tokens stand in it."""
        numbers = np.asarray(ids, np.int64).reshape(-1)
        controls = [index for index, number in enumerate(numbers.tolist()) if number in self.control_ids]
        pieces, spans, length, start = [], [], 0, 0
        for index in (*controls, len(numbers)):
            pieces.append(self.decode_bytes(numbers[start:index]).decode("utf-8", "replace"))
            length += len(pieces[-1])
            if index < len(numbers):
                pieces.append(self.token_bytes[numbers[index]].decode())
                spans.append((length, length + len(pieces[-1])))
                length = spans[-1][1]
            start = index + 1
        return TurnText("".join(pieces), tuple(spans))
