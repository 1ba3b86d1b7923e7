"""Where in a text its final answer stands. Texts only: no algebra, no scoring.

The question asks for the answer on its own last line, but routers write boxes, sentences and headings too. Read in this
order, on the last `READ` characters: the last `\\boxed{…}` (or the last row of them); what follows the last `####`; a
last line that is nothing but an answer; what follows the last "answer is" or "answer:"; the end of the last line.
"""

from __future__ import annotations

import re

READ = 8192  # characters at the end of a text in which an answer is looked for
_BOXES = 16  # a longer row of boxes is no answer

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_JOINED = re.compile(r"[\s$,;]*(?:(?:and|or)\b)?[\s$,;]*(?:\\(?:text|mathrm)\{\s*(?:,?\s*(?:and|or))\s*\})?[\s$,;]*")
_DISPLAY = re.compile(r"\\\[.*?\\\]|\$\$.*?\$\$|\\begin\{([a-z]*matrix|cases|array)\}.*?\\end\{\1\}", re.DOTALL)
_SEGMENT = re.compile(
    r"\\\((?P<round>.+?)\\\)|\\\[(?P<square>.+?)\\\]|\$\$(?P<double>.+?)\$\$"
    r"|(?<![\\\d])\$(?P<single>(?:\\\$|[^$])+?)(?<!\\)\$(?!\d)"
)
_MARKER = re.compile(
    r"\b(?:answers?|result|solutions?)\b(?:\s+(?:to|of|for)\b[^:=.\n$]{0,80}?)?\s*(?:\*\*)?\s*(?:(?:is|are|was)\b\s*:?|[:=])\s*",
    re.IGNORECASE,
)
_VERB = re.compile(r"(?:\b(?:is|are|be|equals?|equal to|get|gives?|obtain|yields?)\b:?|:)\s+", re.IGNORECASE)
_LABEL = re.compile(r"[A-Z][a-z]{2,20}(?: [a-z]{2,15}){0,3}\s*[:=]\s+(?=\S)")  # "Total: 12"
_NAMED = re.compile(r"([A-Za-z](?:_\{?\w\}?)?)\s*=\s*\Z")  # "x =" before a box
_REASON = re.compile(r",?\s+(?:which|because|since)\b.*", re.DOTALL)  # behind an answer
_RANGE = re.compile(r"(?<=[$)\]])\s*,?\s*(?:for\s+(?:all|any|every|each|some)|where)\b.*", re.DOTALL)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FENCE = re.compile(r"^\s*(?:```\w*|---+|\*\*\*+)\s*$")


def final_answer(text: str) -> str:
    """The part of `text` that says its answer; may be empty. Never raises."""
    text = text[-READ:]
    if (boxed := _boxed(text)) is not None:
        return boxed
    if "####" in text and (given := text.rpartition("####")[2].strip()):
        return undelimited(given.split("\n")[0])
    lines = [line for line in _on_one_line(text).split("\n") if line.strip() and not _FENCE.match(line)]
    if not lines:
        return ""
    last = plain(lines[-1])
    if _is_bare(last):
        return _of_bare(last)
    for line in reversed(lines):
        if (marked := after_marker(plain(line))) is not None:
            return _end_of(_REASON.sub("", marked) or marked)
    return _end_of(last)


def last_line(text: str) -> str:
    """The last line that holds anything, as it stands."""
    lines = [line for line in text[-READ:].split("\n") if line.strip() and not _FENCE.match(line)]
    return lines[-1].strip() if lines else ""


def after_marker(line: str) -> str | None:
    """What follows the last "answer is", "answer:" or the like of a line; None without one or with nothing behind."""
    ends = [match.end() for match in _MARKER.finditer(line)]
    return (line[ends[-1] :].strip() or None) if ends else None


def undelimited(text: str) -> str:
    """A whole answer without the box, dollars or brackets around it the full stop behind it and the = before it."""
    text = _on_one_line(text).strip()
    for _ in range(4):
        before = text
        text = text.strip("*`").strip()
        text = re.sub(r"(?<=[^.\\])\.$|[,;:]$", "", text).rstrip()
        text = re.sub(r"^=\s*(?=[^\s=])", "", text)  # the last line of a calculation
        match = _SEGMENT.fullmatch(text)
        if match and not re.search(r"(?<!\\)\$", match[match.lastgroup]):
            text = match[match.lastgroup].strip()
        box = _BOX.match(text)
        if box and (inner := _braced(text, box.end())) and inner[1] == len(text):
            text = inner[0].strip()
        if text.startswith("{") and (inner := _braced(text, 0)) and inner[1] == len(text):
            text = inner[0].strip()
        if text == before:
            break
    return text


def _boxed(text: str) -> str | None:
    """The content of the last box; of the last row of boxes that only commas, "and" and "or" part, joined by commas."""
    boxes = []
    for match in list(_BOX.finditer(text))[-_BOXES:]:
        inner = _braced(text, match.end())
        if inner and inner[0].strip():
            boxes.append((match.start(), inner[1], inner[0].strip()))
    if not boxes:
        return None
    row, start = [boxes[-1][2]], boxes[-1][0]
    for begin, end, content in reversed(boxes[:-1]):
        between = text[end:start]
        names = _NAMED.search(text, 0, begin), _NAMED.search(between)
        if all(names) and names[0][1] == names[1][1]:  # $x = \\boxed{1}$ or $x = \\boxed{2}$
            between = between[: names[1].start()]
        if len(between) > 40 or not re.search(r",|\band\b|\bor\b", between) or not _JOINED.fullmatch(between):
            break
        row.insert(0, content)
        start = begin
    return undelimited(", ".join(row))


def _braced(text: str, start: int) -> tuple[str, int] | None:
    """(content, end) of the group at `start`: braces, or the one thing that TeX takes without them.

    Braces that never close hold the rest of the line.
    """
    if not text.startswith("{", start):
        match = re.compile(r"\\[a-zA-Z]+|[^\s{}\\]+").match(text, start)
        return (match[0], match.end()) if match else None
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : at], at + 1
    line = text[start + 1 :].split("\n")[0]
    return line, start + 1 + len(line)


def _on_one_line(text: str) -> str:
    return _DISPLAY.sub(lambda match: match[0].replace("\n", " "), text)


def plain(line: str) -> str:
    """A line without Markdown's marks: emphasis, headings, bullets, quotes."""
    line = line.replace("**", "").replace("__", "").strip()
    return re.sub(r"^(?:[#>]+|[-*+])\s+(?=\S)", "", line).strip("`").strip()


def _is_bare(line: str) -> bool:
    """Nothing but an answer: no words outside maths, or very few and no verb among them."""
    outside = re.sub(r"\\(?:text|mathrm|textbf|operatorname)\s*\{[^{}]*\}", " ", _SEGMENT.sub(" ", line))
    words = _WORD.findall(outside)
    return not words or (len(words) <= 3 and not _MARKER.search(line) and not _VERB.search(line + " "))


def _of_bare(line: str) -> str:
    """A line without sentences. Delimiters inside it go where signs outside them belong to the answer."""
    whole = undelimited(line)
    if not _SEGMENT.search(whole):
        return whole
    if re.search(r"[\d=(){}\[\]<>/^+-]", _SEGMENT.sub("", whole)):
        return undelimited(_SEGMENT.sub(lambda match: match[match.lastgroup], whole))
    return _end_of(whole)


def _end_of(line: str) -> str:
    """The answer at the end of a sentence: its last row of formulas, else what follows its last verb.

    A sentence that opens with Yes or No is left whole.
    """
    if re.match(r"(?:yes|no|true|false)\b[,.;:]", line, re.IGNORECASE):
        return undelimited(line)
    if label := _LABEL.match(line):
        line = line[label.end() :]
    if range_ := _RANGE.search(line, 1):
        line = line[: range_.start()] if _SEGMENT.search(line, 0, range_.start()) else line
    segments = list(_SEGMENT.finditer(line))
    tail = line[segments[-1].end() :] if segments else line
    verbs = [match.end() for match in _VERB.finditer(tail) if tail[match.end() :].strip()]
    if segments and not (verbs and re.search(r"\d", tail[verbs[-1] :])):
        row = [segments[-1]]
        for segment in reversed(segments[:-1]):
            if not re.fullmatch(r"\s*(?:,\s*)?(?:and|or)?\s*", line[segment.end() : row[0].start()]):
                break
            row.insert(0, segment)
        return undelimited(", ".join(segment[segment.lastgroup].strip() for segment in row))
    words = len(_WORD.findall(tail))
    return undelimited(tail[verbs[-1] :] if verbs and (segments or words >= 2) else line)
