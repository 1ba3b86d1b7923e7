"""Answers and the file of their verdicts: JSON lines that are added to as answers are judged, and read back.

Nothing here judges. What is kept belongs to one response, question, scorer version and set of rules; anything else is
judged again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import TextIO

from rw.errors import DataError, FailureCause
from rw.scoring.config import ScoringConfig
from rw.types import ProgramTests, Query, Verdict, VerdictKind

_TORN_ID = re.compile(rb'\{"id": "(?:[^"\\]|\\.)*"')  # the beginning of a line of ours, and what follows it
_BEHIND_ID = b', "index": '
FAULTS = (VerdictKind.SANDBOX_FAULT.value, FailureCause.SCORER_FAULT.value)


@dataclasses.dataclass(frozen=True)
class Response:
    """An answer to the question of that id; `index` counts the answers to one question."""

    id: str
    text: str
    index: int = 0

    @property
    def sha256(self) -> str:
        return _digest(self.text)


@dataclasses.dataclass(frozen=True)
class Judged:
    """A line of the output. `verdict` is a VerdictKind, or `scorer_fault`; `rules`: a digest of question and rules."""

    id: str
    index: int
    verdict: str
    correct: bool
    detail: str
    scorer: str
    tier: str
    response_sha256: str
    rules: str

    @property
    def is_fault(self) -> bool:
        """Whether nothing was learnt of the answer."""
        return self.verdict in FAULTS


def read_responses(path: str | os.PathLike[str]) -> list[Response]:
    """The responses of a file of JSON lines, each an object with `id` and `response`; other keys are not read.

    Raises:
        DataError: it cannot be read, or a line is not like that; names the line.
    """
    try:
        lines = pathlib.Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            found.append(_response(line, f"{path} line {number}"))
    if not found:
        raise DataError(f'{path} holds no responses; a line is {{"id": …, "response": …}}')
    return found


def _response(line: bytes, where: str) -> Response:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON: {error}") from error
    if not isinstance(record, dict) or not {"id", "response"} <= record.keys():
        raise DataError(f'{where} is not of the form {{"id": …, "response": …}}')
    name, text = record["id"], record["response"]
    if isinstance(name, bool) or not isinstance(name, (str, int)) or not isinstance(text, str):
        raise DataError(f"{where}: id {name!r} must be a text or whole number, response a text")
    return Response(str(name), text)


class Verdicts:
    """The output file: what it holds, as far as it still holds good, and what is added. Use it `with`.

    It is locked meanwhile, so that two commands cannot tear each other's lines.
    """

    def __init__(self, path: str | os.PathLike[str], config: ScoringConfig, versions: Mapping[str, str]):
        """`versions`: name and version of the scorer of each data set.

        Raises:
            DataError: a line that is none of ours, other than a torn last one, the file is left as it is then; a place
                that cannot be written; or another command that writes there.
        """
        self.path = pathlib.Path(path)
        self._versions = dict(versions)
        rules = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        del rules["allow_weak_sandbox"]  # the tier of each verdict says what came of it
        self._rules = json.dumps(rules, sort_keys=True)
        self._questions: dict[str, str] = {}
        self._known: dict[tuple[str, int], Judged] = {}
        try:
            self._file = self._locked(self.path, "a+")
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {error.strerror}") from error
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def open(self, due: Iterable[Response]) -> None:
        """Begins to write; what is there of responses that are judged again goes first, in one rename."""
        again = {(response.id, response.index) for response in due} & self._known.keys()
        if again:
            rest = [judged for place, judged in self._known.items() if place not in again]
            aside = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
            with self._file:  # the old file stays locked until the new one, locked too, has its name
                self._file = self._locked(aside, "w")
                try:
                    self._file.write("".join(map(_line, rest)))
                    self._file.flush()
                    os.replace(aside, self.path)
                except OSError as error:
                    aside.unlink()
                    raise DataError(f"cannot write {self.path}: {error.strerror}") from error

    def kept(self, response: Response, query: Query) -> Judged | None:
        """What is known of a response; None where it has to be judged."""
        found = self._known.get((response.id, response.index))
        if found is None or found.is_fault:
            return None
        same = (found.response_sha256, found.rules) == (response.sha256, self._rules_of(query))
        return found if same and found.scorer == self._versions.get(query.dataset) else None

    def add(self, response: Response, query: Query, verdict: Verdict) -> Judged:
        """Writes a line, which is on its way to the disk when this returns."""
        kind = verdict.kind or (VerdictKind.PASS if verdict.correct else VerdictKind.WRONG)
        judged = Judged(
            id=response.id,
            index=response.index,
            verdict=str(kind),
            correct=verdict.correct,
            detail=verdict.detail,
            scorer=verdict.scorer,
            tier=verdict.tier,
            response_sha256=response.sha256,
            rules=self._rules_of(query),
        )
        try:
            self._file.write(_line(judged))
            self._file.flush()
        except OSError as error:
            raise DataError(f"cannot write {self.path}: {error.strerror}") from error
        return judged

    def __enter__(self) -> Verdicts:
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(OSError):  # of a full disk, which was told before
            self._file.close()

    def _locked(self, path: pathlib.Path, mode: str) -> TextIO:
        file = open(path, mode, encoding="ascii", newline="\n")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = os.path.samestat(os.fstat(file.fileno()), os.stat(path))  # else another has just replaced it
        except BlockingIOError:
            is_free = False
        except OSError:  # a file system without locks
            is_free = True
        if not is_free:
            file.close()
            raise DataError(f"another rw score writes {self.path}; wait for it, or name another --output")
        return file

    def _rules_of(self, query: Query) -> str:
        """Digest of all that a verdict depends on beside the response."""
        if query.id not in self._questions:
            reference = vars(query.reference) if isinstance(query.reference, ProgramTests) else query.reference
            asked = [query.dataset, query.prompt, reference, dict(query.metadata)]
            self._questions[query.id] = _digest(self._rules + json.dumps(asked, sort_keys=True))[:16]
        return self._questions[query.id]

    def _read(self) -> None:
        """Takes up what is there. A torn last line goes, and of several lines for one response the last one counts."""
        *lines, torn = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            judged = _judged(line, f"{self.path} line {number}")
            self._known[judged.id, judged.index] = judged
        if torn and not _is_torn(torn):
            raise DataError(
                f"{self.path} is no file of verdicts of rw score; name another --output, or remove the file"
            )
        if torn:
            os.ftruncate(self._file.fileno(), self.path.stat().st_size - len(torn))


_TYPES = {field.name: field.type for field in dataclasses.fields(Judged)}  # names of types, as annotations are texts


def _line(judged: Judged) -> str:
    return json.dumps(dataclasses.asdict(judged)) + "\n"  # escaped: a detail may hold half a surrogate pair


def _judged(line: bytes, where: str) -> Judged:
    try:
        judged = Judged(**json.loads(line))
        if not all(type(value).__name__ == _TYPES[name] for name, value in vars(judged).items()):
            raise TypeError("a field of another type")
        return judged
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{where} is no verdict of rw score; name another --output, or remove the file") from error


def _is_torn(text: bytes) -> bool:
    """Whether a line of ours may begin so: what is another's must not be cut away."""
    found = _TORN_ID.match(text)
    if found is None:
        return b'{"id": "'.startswith(text[:8])
    behind = text[found.end() :]
    return behind.startswith(_BEHIND_ID) or _BEHIND_ID.startswith(behind)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
