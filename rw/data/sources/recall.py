"""Facts to be recalled: TriviaQA and SimpleQA-Verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rw.data.answer_formats import SHORT_ANSWER
from rw.data.hub import Hub
from rw.data.sources.schema import Item, Place, Source, Unusable, field, known, text_of

WITHHELD = "<unk>"  # TriviaQA's answers in its test split


def read_trivia_qa(row: Mapping[str, Any], place: Place) -> Item:
    """TriviaQA, in the hub's layout, in the release's own (capitalised), or with `golden_answers` alone.

    The reference is the value followed by its aliases as written, each once; the scorer normalises. Some copies keep
    the quotes of the table that the questions came from; these are taken off.
    """
    if "golden_answers" in row:
        aliases = row["golden_answers"]
    else:
        answer = field(row, "answer", "Answer")
        if not isinstance(answer, Mapping):
            raise Unusable("answer_not_an_object")
        aliases = [field(answer, "value", "Value"), *(field(answer, "aliases", "Aliases") or ())]
    if isinstance(aliases, str) or not hasattr(aliases, "__iter__"):
        raise Unusable("aliases_not_a_list")
    texts = list(dict.fromkeys(alias for alias in aliases if isinstance(alias, str) and alias.strip()))
    if WITHHELD in texts:
        raise Unusable("answer_withheld")
    if not texts:
        raise Unusable("no_aliases")
    key = str(field(row, "question_id", "QuestionId", "id") or "")
    return Item(key, unquoted(text_of(row, "question", "Question")), SHORT_ANSWER, tuple(texts), {})


def unquoted(text: str) -> str:
    """A table's cell without its quotes, where it still has them: around it, and doubled inside."""
    inner = text.strip()[1:-1]
    is_cell = text.strip()[:1] == text.strip()[-1:] == '"' and '""' in inner and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_cell else text


def read_simple_qa_verified(row: Mapping[str, Any], place: Place) -> Item:
    """SimpleQA-Verified: problem and answer, whose range or alternatives in brackets are kept for the scorer."""
    metadata = known(row, ["answer_type", "topic", "multi_step", "requires_reasoning"])
    key = str(row.get("original_index") or "").strip()
    return Item(key, text_of(row, "problem"), SHORT_ANSWER, text_of(row, "answer"), metadata)


SOURCES = {
    "trivia_qa": Source(
        read_trivia_qa,
        "recall",
        # The hub's test split withholds its answers, so its validation split is ours to test with.
        Hub("mandarjoshi/trivia_qa", {"train": "train", "test": "validation"}, ("rc.nocontext",)),
        container="Data",
        unread=("entity_pages", "search_results"),
    ),
    "simple_qa_verified": Source(
        read_simple_qa_verified,
        "recall",
        Hub("google/simpleqa-verified", {"train": "eval", "test": "eval"}, ("simpleqa_verified",)),
    ),
}
