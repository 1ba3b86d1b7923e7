"""The strict action grammar: from a turn's text to its elements, without a word on whether a mode allows them.

A body is free text up to its closing tag but holds no other opening `<route` or `<answer`: the first is then unclosed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from rw.protocol.chat import END_LITERALS, QWEN3_CONTROL_LITERALS
from rw.protocol.stop import first_stop
from rw.types import Mode

_FLAGS = {False: re.ASCII, True: re.ASCII | re.IGNORECASE}  # keyed by `any_case`
_OPENING = {any_case: re.compile(r"<(route|answer)(?=[\s>])", flags) for any_case, flags in _FLAGS.items()}
# No `<` before the tag's end, so that a turn of nothing but unclosed tags is read in linear time.
_ATTRIBUTE_PART = re.compile(r'([^"<>]*+(?:"[^"<]*+"[^"<>]*+)*+)>', re.ASCII)
_CLOSING = {
    any_case: {tag: re.compile(f"</{tag}>", flags) for tag in ("route", "answer")} for any_case, flags in _FLAGS.items()
}
_ATTRIBUTE = re.compile(r'\s+([A-Za-z_][A-Za-z0-9_-]*)="([^"]*)"', re.ASCII)
_MODE_ELEMENT = {any_case: re.compile(r"<mode>([^<]*)</mode>", flags) for any_case, flags in _FLAGS.items()}
_MODE_TAG = {any_case: re.compile(r"</?mode\b", flags) for any_case, flags in _FLAGS.items()}
_CONTROL = re.compile("|".join(re.escape(literal) for literal in QWEN3_CONTROL_LITERALS))


@dataclasses.dataclass(frozen=True)
class Turn:
    """A turn cut at its first completed stop tag, less the end token that closed it."""

    text: str
    stop_tag: str | None
    holds_control: bool  # a sampled control token anywhere but at the end


@dataclasses.dataclass(frozen=True)
class Element:
    """One complete element; `attributes` is what stood in its opening tag, None where that is not well formed."""

    tag: str  # route or answer
    attributes: tuple[tuple[str, str], ...] | None
    body: str


@dataclasses.dataclass(frozen=True)
class Elements:
    """All complete elements of a turn in order, and the text outside them."""

    elements: tuple[Element, ...]
    outside: str

    def of(self, tag: str) -> tuple[Element, ...]:
        return tuple(element for element in self.elements if element.tag == tag)


def control_spans(text: str) -> tuple[tuple[int, int], ...]:
    """Spans of literal control tokens, for text whose token ids are not at hand."""
    return tuple(match.span() for match in _CONTROL.finditer(text))


def cut_turn(text: str, spans: Sequence[tuple[int, int]], tags: Sequence[str]) -> Turn:
    """Cuts at the first completed stop tag, since bytes beyond it are ignored, or takes off a closing end token."""
    stop = first_stop(text, tags)
    if stop is not None:
        end, tag = stop
        return Turn(text[:end], tag, any(start < end for start, _ in spans))
    if spans and spans[-1][1] == len(text) and text[spans[-1][0] :] in END_LITERALS:
        return Turn(text[: spans[-1][0]], None, len(spans) > 1)
    return Turn(text, None, bool(spans))


def find_elements(text: str, any_case: bool = False) -> Elements:
    """Splits a turn into complete route and answer elements and what stands outside them, in one pass."""
    elements: list[Element] = []
    outside: list[str] = []
    closings = {tag: pattern.search(text) for tag, pattern in _CLOSING[any_case].items()}
    done = scan = 0
    while opening := _OPENING[any_case].search(text, scan):
        scan = opening.end()
        tag = opening[1].lower()
        head = _ATTRIBUTE_PART.match(text, scan)
        if closings[tag] and closings[tag].start() < scan:
            closings[tag] = _CLOSING[any_case][tag].search(text, scan)
        closing = closings[tag]
        if not head or not closing or _OPENING[any_case].search(text, head.end(), closing.start()):
            continue  # unclosed: its opening tag stays outside
        outside.append(text[done : opening.start()])
        elements.append(Element(tag, parse_attributes(head[1]), text[head.end() : closing.start()].strip()))
        done = scan = closing.end()
    outside.append(text[done:])
    return Elements(tuple(elements), "\n".join(outside))


def parse_attributes(text: str) -> tuple[tuple[str, str], ...] | None:
    """` name="value"` repeated, in any order, values stripped; None where anything else stands there."""
    attributes, position = [], 0
    while match := _ATTRIBUTE.match(text, position):
        attributes.append((match[1], match[2].strip()))
        position = match.end()
    return None if text[position:].strip() else tuple(attributes)


def parse_references(value: str) -> tuple[str, ...]:
    """Comma-separated node ids; blanks are dropped, a repeat counts once."""
    return tuple(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))


def parse_mode(text: str, outside_ignored: bool = False) -> Mode | None:
    """The declared mode, or None where the turn is not exactly one declaration (or, leniently, holds none)."""
    pattern = _MODE_ELEMENT[outside_ignored]
    match = pattern.search(text) if outside_ignored else pattern.fullmatch(text.strip())
    word = match[1].strip() if match else None
    return next((mode for mode in Mode if mode.word == word), None)


def holds_mode_tag(text: str, any_case: bool = False) -> bool:
    """Whether a mode tag, opening or closing, stands in the text."""
    return _MODE_TAG[any_case].search(text) is not None
