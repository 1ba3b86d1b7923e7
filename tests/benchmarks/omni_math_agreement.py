"""How often the mathematical scorer agrees with a language model's judgement of replies to Omni-MATH.

    python tests/benchmarks/omni_math_agreement.py omni_math_outcomes.jsonl

A line of the file has `answer` and `outcomes`, and each outcome `model`, `model_generation`, `judge_verdict` ("TRUE" or
"FALSE") and `judge_text`, in which a section "Student Final Answer" repeats what the judge took for the answer. Two
things are scored: the reply as it stands, and the answer that the judge read out of it, which leaves the comparison
alone. Prints both agreements, and the disagreements sorted by kind. The records may not be passed on, so none is here.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from rw.scoring import SCORERS, math_answer, math_text
from rw.scoring.final_answer import undelimited
from rw.types import Query, Verdict

_END = 400  # characters in which a reply's answer ought to stand
_STUDENT = re.compile(r"## Student Final Answer\s*(.*?)\s*## Equivalence", re.DOTALL)


class Judged(NamedTuple):
    """One reply: what the judge said and read, and what the scorer says of the reply and of the judge's reading."""

    reference: str
    reply: str
    judged_right: bool
    read: str | None
    of_reply: Verdict
    of_read: Verdict | None


def judged_replies(path: pathlib.Path) -> Iterator[Judged]:
    """Every reply of the file. Split on newlines alone: texts may hold other separators of lines."""
    for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
        record = json.loads(line)
        query = Query("q", "omni_math", "math", record["problem"], record["answer"])
        for outcome in record["outcomes"]:
            found = _STUDENT.search(outcome["judge_text"])
            read = found[1] if found else None
            of_read = SCORERS["omni_math"](read, query) if read is not None else None
            of_reply = SCORERS["omni_math"](outcome["model_generation"], query)
            right = outcome["judge_verdict"] == "TRUE"
            yield Judged(record["answer"], outcome["model_generation"], right, read, of_reply, of_read)


def kind(judged: Judged, verdict: Verdict, text: str) -> str:
    """What a disagreement is about."""
    if verdict.correct:
        return "credited, and wrong to the judge"
    if math_answer.OPINIONS_DIFFER in verdict.detail:
        return "refused where opinions differ"
    if math_text.normalise(undelimited(judged.read or "")) not in math_text.normalise(text[-_END:]):
        return "refused: the reply does not end with what the judge read"
    if math_text.misread(undelimited(judged.reference)) == "prose":
        return "refused: the reference is prose, said in other words"
    return "refused: an answer in another form"


def report(name: str, pairs: list[tuple[Judged, Verdict, str]]) -> None:
    """Prints the agreement on one kind of text and each disagreement under its kind."""
    table = collections.Counter((judged.judged_right, verdict.correct) for judged, verdict, _ in pairs)
    agreed = table[True, True] + table[False, False]
    print(f"\n{name}: {agreed} of {len(pairs)} agree ({agreed / len(pairs):.1%})")
    print(f"  right to both {table[True, True]}, wrong to both {table[False, False]}")
    print(f"  right to the judge alone {table[True, False]}, to the scorer alone {table[False, True]}")
    kinds = collections.defaultdict(list)
    for judged, verdict, text in pairs:
        if judged.judged_right is not verdict.correct:
            kinds[kind(judged, verdict, text)].append((judged, verdict))
    for title, members in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"  {title}: {len(members)}")
        for judged, verdict in members:
            print(f"    {verdict.detail}; the judge read {(judged.read or '')[:80]!r}")


def main() -> None:
    """Prints the two reports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("outcomes", type=pathlib.Path)
    replies = list(judged_replies(parser.parse_args().outcomes))
    report("replies as they stand", [(one, one.of_reply, one.reply) for one in replies])
    report("answers as the judge read them", [(one, one.of_read, one.read) for one in replies if one.of_read])


if __name__ == "__main__":
    main()
