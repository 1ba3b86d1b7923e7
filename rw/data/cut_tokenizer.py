"""Cuts Qwen3's tokenizer to the pieces that the recorded questions and answers use: `python -m rw.data.cut_tokenizer`.

A tiny router spends nearly all of its time on the logits of 151,936 tokens. The recorded texts, and what is written
around them, use a tenth of these; the cut tokenizer splits exactly these texts exactly as Qwen3's does, others into
smaller pieces, and any text at all, since every byte stays. Ids are new, in the old order.
"""

from __future__ import annotations

import json
import lzma
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from rw.data import replay
from rw.protocol.chat import TokenCodec
from rw.protocol.prompts import Prompts
from rw.types import Mode, Role

FOLDER = replay.NQ6_PATH.parent
SOURCE, TARGET = FOLDER / "qwen3_tokenizer.json.xz", FOLDER / "qwen3_nq6_tokenizer.json.xz"
WRITTEN = (
    '<route model="worker_1" role="executor" refs="n1,n2">answer the question</route>',
    "<route>pick the best answer</route>",
    '<observation id="n1" role="executor"></observation>',
    "<answer>unknown</answer>",
    *(f"<mode>{mode.word}</mode>" for mode in Mode),
    *(f'role="{role}"' for role in Role),
    *("system", "user", "assistant", "\n\n"),
)


def recorded_texts() -> Iterator[str]:
    """Everything that is read or written around the recorded questions."""
    queries, cards, answers = replay.load_nq6()
    yield from (query.prompt for query in queries)
    yield from (answer.text for said in answers.values() for answer in said.values())
    yield from WRITTEN
    for name in ("short", "default"):
        prompts = Prompts.load(name)
        yield prompts.catalogue(cards)
        yield from prompts.spoken()  # no recorded question asks for a program


def cut(tokenizer_json: bytes, texts: Iterable[str]) -> bytes:
    """A tokenizer.json with the pieces of `texts`, what these are merged from, every byte, and all added tokens."""
    codec = TokenCodec(tokenizer_json)
    used = {int(token) for text in texts for token in codec.encode_text(text)}
    spec: dict[str, Any] = json.loads(tokenizer_json)
    vocabulary = spec["model"]["vocab"]
    merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in spec["model"]["merges"]]
    made_from: dict[str, list[tuple[str, str]]] = {}
    for pair in merges:
        made_from.setdefault("".join(pair), []).append(pair)
    control = {entry["content"] for entry in spec["added_tokens"]}
    kept = {piece for piece in vocabulary if len(piece) == 1 and piece not in control}
    waiting = [piece for piece, token in vocabulary.items() if token in used]
    while waiting:
        piece = waiting.pop()
        kept.add(piece)
        waiting += [part for pair in made_from.get(piece, ()) for part in pair if part not in kept]
    ordered = sorted(kept, key=vocabulary.__getitem__)
    added = sorted(spec["added_tokens"], key=lambda entry: entry["id"])
    spec["model"]["vocab"] = {piece: token for token, piece in enumerate(ordered)}
    spec["model"]["merges"] = [list(pair) for pair in merges if kept.issuperset((*pair, "".join(pair)))]
    spec["added_tokens"] = [{**entry, "id": len(ordered) + place} for place, entry in enumerate(added)]
    return json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode()


def main(target: pathlib.Path = TARGET) -> None:
    """Writes the file; the same records and the same tokenizer give the same vocabulary."""
    target.write_bytes(lzma.compress(cut(lzma.decompress(SOURCE.read_bytes()), recorded_texts()), preset=9))
    print(f"{target}: {TokenCodec.from_file(target).vocab_size} tokens")


if __name__ == "__main__":
    main()
