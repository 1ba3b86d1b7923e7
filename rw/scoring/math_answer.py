"""Scorers of mathematical answers: MATH, Omni-MATH, MATH-500, GSM8K, AIME (RouteWeaver, Appendix B.2).

An answer is right where it is mathematically equal to the reference. Up to three opinions are heard:

- text: the two are the same text but for typesetting (can only say yes; see `math_text.same_text`);
- numbers: both are plain numbers or lists of them, compared exactly (yes or no; see `math_text.same_numbers`);
- the algebra: math-verify, or the released rule, in a child process that is killed when it takes too long.

Where they differ, equal texts decide, then plain numbers, then the algebra; and `detail` says `opinions differ`, so
that such verdicts can be found. The algebra's yes does not count against plain evaluation at a few points (its floats
are compared to six decimals, and equations without solutions are all alike to it), nor where letters differ in case,
a set's braces meet a point's brackets or named values change places; and texts that it is known to misread
(`math_text.misread`: prose, dots, …) are not shown to it. Units are not compared: a question names its own. The algebra
never loads into the caller's process.
"""

from __future__ import annotations

from collections.abc import Callable

from rw.scoring import math_text
from rw.scoring.config import ScoringConfig
from rw.scoring.final_answer import final_answer, undelimited
from rw.scoring.timed import ChildDied, ChildNotStarted, TimedProcess, TookTooLong
from rw.types import Query, Verdict, VerdictKind

VERSION = 1
OPINIONS_DIFFER = "opinions differ"
_VETOES = ("points", "case", "brackets", "places")

_ALGEBRA = TimedProcess("rw.scoring.math_process")


def math_scorer(config: ScoringConfig, name: str = "math") -> Callable[[str, Query], Verdict]:
    """The scorer by `config.math_equality`; a comparison may take `config.math_s` seconds."""
    version = _version(name, config)

    def score(response: str, query: Query) -> Verdict:
        references = _references(query)
        given = final_answer(response) if isinstance(response, str) else ""
        if not given or not references:
            return _verdict(False, "no answer" if references else "no reference", version)
        verdicts = [_judge(reference, given, config, version) for reference in references]
        return next((verdict for verdict in verdicts if verdict.correct), verdicts[0])

    return score


def aime_scorer(config: ScoringConfig) -> Callable[[str, Query], Verdict]:
    """As MATH, but both sides are integers where they can be: the reference 045 is 45, whatever the rule."""
    otherwise, version = math_scorer(config, "aime"), _version("aime", config)

    def score(response: str, query: Query) -> Verdict:
        given = final_answer(response) if isinstance(response, str) else ""
        ours = [_integer(reference) for reference in _references(query)]
        theirs = _integer(math_text.value_side(given, ""))
        if theirs is None or None in ours:
            return otherwise(response, query)
        correct = theirs in ours
        return _verdict(correct, f"{theirs} {'is' if correct else 'is not'} {query.reference}", version)

    return score


def _version(name: str, config: ScoringConfig) -> str:
    """What verdicts are signed with: "math/1", or "math_string/1" under another rule of equality than the default."""
    rule = "" if config.math_equality == "math_verify" else f"_{config.math_equality}"
    return f"{name}{rule}/{VERSION}"


def close() -> None:
    """Ends this process's child. A later comparison starts another."""
    _ALGEBRA.close()


def _references(query: Query) -> list[str]:
    accepted = query.reference if isinstance(query.reference, (tuple, list)) else (query.reference,)
    texts = [str(one) for one in accepted if isinstance(one, (str, int, float))]
    return [text for text in (undelimited(text.rpartition("####")[2]) for text in texts) if text]


def _integer(text: str) -> int | None:
    numbers = math_text.numbers(text) if len(text) <= 64 else None
    one = numbers[0] if numbers and len(numbers) == 1 else None
    return int(one.value) if one and one.value.denominator == 1 and not (one.percent or one.base) else None


def _judge(gold: str, given: str, config: ScoringConfig, version: str) -> Verdict:
    rule, trouble, note = config.math_equality, None, ""
    text, algebra = math_text.same_text(gold, given), {}
    if rule == "string":
        return _verdict(bool(text), _said(gold, given, bool(text)), version)
    if why := _unreadable(gold, given, rule):
        note = "" if text else f"; not shown to {rule}: {why}"
    else:
        try:
            algebra = _asked(gold, given, config)
        except TookTooLong as error:
            trouble, note = VerdictKind.TIME, f"; {rule}: {error}"
        except ChildDied as error:
            trouble, note = VerdictKind.CRASH, f"; {rule}: {error}"
        except ChildNotStarted as error:
            return Verdict(False, f"no process to compare in: {error}", kind=VerdictKind.SANDBOX_FAULT, scorer=version)
    opinions = {"text": text, "numbers": math_text.same_numbers(gold, given), **algebra}
    if rule == "released" and algebra:
        opinions = algebra  # to reproduce the authors' numbers on their terms
    heard = {name: opinion for name, opinion in opinions.items() if opinion is not None}
    if text and heard.get("math_verify"):  # of words, which are no values and have no variables
        heard = {name: opinion for name, opinion in heard.items() if name not in _VETOES}
    correct = _decided(heard)
    detail = _said(gold, given, correct) + note
    if len(set(heard.values())) > 1:
        said = ", ".join(f"{name} {'yes' if opinion else 'no'}" for name, opinion in heard.items())
        detail += f"; {OPINIONS_DIFFER}: {said}"
    return _verdict(correct, detail, version, trouble if not heard else None)


def _decided(heard: dict[str, bool]) -> bool:
    """Equal texts decide, then plain numbers, then the algebra unless something of `_VETOES` is against it."""
    for name in ("text", "numbers"):
        if name in heard:
            return heard[name]
    return all(heard.get(name, True) for name in _VETOES) and any(
        heard.get(rule, False) for rule in ("math_verify", "released")
    )


def _unreadable(gold: str, given: str, rule: str) -> str | None:
    texts = math_text.latex(gold), math_text.latex(given)
    if rule == "math_verify":
        return math_text.misread(texts[0]) or math_text.misread(texts[1])
    return "too long" if max(map(len, texts)) > math_text.LONGEST else None


def _asked(gold: str, given: str, config: ScoringConfig) -> dict[str, bool | None]:
    """The opinions of the algebra and what bears on them, by name."""
    gold, given = math_text.latex(gold), math_text.latex(given)
    if config.math_equality == "math_verify" and (r"\pm" in gold) != (r"\pm" in given):
        gold, given = math_text.both_signs(gold), math_text.both_signs(given)  # the library sees no sign inside others
    request = {"rule": config.math_equality, "gold": gold, "answer": given}
    opinions = _ALGEBRA.ask(request, config.math_s) or {}
    if opinions.get("math_verify"):
        opinions["case"] = False if math_text.cases_differ(gold, given) else None
        opinions["brackets"] = False if math_text.brackets_differ(gold, given) else None
        opinions["places"] = False if math_text.places_differ(gold, given) else None
    return opinions


def _said(gold: str, given: str, correct: bool) -> str:
    given = given if len(given) <= 80 else f"{given[:77]}…"
    gold = gold if len(gold) <= 80 else f"{gold[:77]}…"
    return f"{given!r} {'is' if correct else 'is not'} {gold!r}"


def _verdict(correct: bool, detail: str, version: str, kind: VerdictKind | None = None) -> Verdict:
    kind = kind or (VerdictKind.PASS if correct else VerdictKind.WRONG)
    return Verdict(correct, detail, kind=kind, scorer=version)
