"""Every word that router and Workers read beside the query, from one `prompts.toml` that a config can replace.

Only the headings of a Worker's message are fixed here, since simulated Workers parse them.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rw.errors import ConfigError
from rw.protocol.modes import ModeState
from rw.types import Mode, Role, VerdictKind, WorkerCard

TEMPLATES = Path(__file__).parent / "templates"
FILE = "prompts.toml"
# Every text of a template set, with the placeholders that it cannot do without.
TEXTS: Mapping[str, tuple[str, ...]] = {
    "selector": ("query",),
    "catalogue": ("workers",),
    "worker": ("id", "description"),
    **{f"rules.{name}": () for name in ("single", "multi", "agentic", "agentic_released")},
    "state.text": ("layer", "nodes", "references", "calls_left", "turns_left", "summarizer"),
    "state.node": ("id",),
    **{f"state.{name}": () for name in ("separator", "none", "summarizer_done", "summarizer_open")},
    "observation.marker": (),
    **{f"briefs.{role}": () for role in Role},
    **{f"reply_format.{name}": () for name in ("answer", "planner", "verifier")},
    "feedback.passed": ("tests",),
    "feedback.failed": ("passed", "tests", "kind", "problem"),
    "feedback.output": ("kind", "output"),
}
_OPTIONAL = {"state.node": ("role",)}
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def _fill(template: str, **values: object) -> str:
    """Puts values in place of `{name}` in one pass: braces inside a value stay as they are."""
    return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), template)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat.update(_flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value})
    return flat


class Prompts:
    """A checked template set and the texts built from it."""

    def __init__(self, texts: Mapping[str, str], name: str = "prompts"):
        """Raises ConfigError for a text that is missing, unknown, or has wrong placeholders."""
        for key in sorted(set(texts) ^ set(TEXTS)):
            raise ConfigError(f"{name}: text {key!r} is {'unknown' if key in texts else 'missing'}")
        for key, needed in TEXTS.items():
            if not isinstance(texts[key], str):
                raise ConfigError(f"{name}: {key} = {texts[key]!r} is not a text")
            found = _PLACEHOLDER.findall(texts[key])
            for placeholder in found:
                if placeholder not in (*needed, *_OPTIONAL.get(key, ())) or found.count(placeholder) > 1:
                    raise ConfigError(f"{name}: {key} has {{{placeholder}}}; it takes each of {needed or 'none'} once")
            for placeholder in needed:
                if placeholder not in found:
                    raise ConfigError(f"{name}: {key} lacks {{{placeholder}}}")
        self._texts = dict(texts)

    @classmethod
    def load(cls, name_or_path: str | Path) -> Prompts:
        """Reads a packaged set by its name, or `prompts.toml` of a directory."""
        packaged = TEMPLATES / str(name_or_path)
        directory = packaged if (packaged / FILE).is_file() else Path(name_or_path)
        if not (directory / FILE).is_file():
            names = ", ".join(sorted(path.parent.name for path in TEMPLATES.glob(f"*/{FILE}")))
            raise ConfigError(f"templates {str(name_or_path)!r}: neither one of {names} nor a directory with {FILE}")
        try:
            return cls(_flatten(tomllib.loads((directory / FILE).read_text(encoding="utf-8"))), str(directory / FILE))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{directory / FILE}: {error}") from error

    def spoken(self) -> tuple[str, ...]:
        """Every text, as it stands in the file, but for those on programs that were run."""
        return tuple(text for name, text in self._texts.items() if not name.startswith("feedback."))

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of all texts."""
        return hashlib.sha256(json.dumps(self._texts, sort_keys=True).encode()).hexdigest()

    @property
    def marker(self) -> str:
        """What stands where the middle of a long observation was cut out."""
        return self._texts["observation.marker"]

    def selector_parts(self) -> tuple[str, str]:
        """The selector's text before and after the query."""
        before, _, after = self._texts["selector"].partition("{query}")
        return before, after

    def catalogue(self, cards: Sequence[WorkerCard]) -> str:
        """The Worker list: anonymous ids and capability descriptions."""
        lines = [_fill(self._texts["worker"], id=card.id, description=card.description) for card in cards]
        return _fill(self._texts["catalogue"], workers="\n".join(lines))

    def rules(self, mode: Mode, agentic_rules: str) -> str:
        """The rules of a mode, without the catalogue."""
        released = mode is Mode.AGENTIC and agentic_rules == "released"
        return self._texts["rules.agentic_released" if released else f"rules.{mode.word}"]

    def routing_state(self, state: ModeState) -> str:
        """The line before an agentic turn. Every completed node is a legal reference."""
        text = self._texts
        nodes = [_fill(text["state.node"], id=node.id, role=node.role) for node in state.nodes]
        return _fill(
            text["state.text"],
            layer=state.turns_taken + 1,
            nodes=text["state.separator"].join(nodes) or text["state.none"],
            references=",".join(state.completed) or text["state.none"],
            calls_left=state.calls_left,
            turns_left=state.turns_left,
            summarizer=text["state.summarizer_done" if state.summarizer_done else "state.summarizer_open"],
        )

    def program_tests(self, kind: str, passed: int, tests: int, problem: str = "") -> str:
        """What the router reads behind a reply whose program was run on tests, until the first failed.

        `problem`: what is said of the test that failed.
        """
        if kind == VerdictKind.PASS:
            return _fill(self._texts["feedback.passed"], tests=tests)
        said = f"\n{problem}" if problem else ""
        return _fill(self._texts["feedback.failed"], kind=kind, passed=passed, tests=tests, problem=said)

    def program_output(self, kind: str, output: str) -> str:
        """What the router reads behind a reply whose program was run without tests."""
        return _fill(self._texts["feedback.output"], kind=kind, output=output)

    def worker_message(
        self,
        question: str,
        subquery: str,
        role: Role | None = None,
        references: Sequence[tuple[str, Role | None, str]] = (),
        previous: str | None = None,
    ) -> str:
        """The one user message that a Worker reads; replies stand in it whole.

        Args:
            question: the query with its answer-format line.
            subquery: the router's task for this call.
            role: agentic calls only.
            references: (node id, role, reply) of each referenced call.
            previous: the previous reply of a multi trajectory.
        """
        sections = [] if role is None else [f"Role: {role}\n{self._texts[f'briefs.{role}']}"]
        sections += [f"Question:\n{question}", f"Task:\n{subquery}"]
        if previous is not None:
            sections.append(f"Previous reply:\n{previous}")
        sections += [f"Reply of {node} ({by}):\n{reply}" for node, by, reply in references]
        own_format = role in (Role.PLANNER, Role.VERIFIER)
        sections.append(self._texts[f"reply_format.{role}" if own_format else "reply_format.answer"])
        return "\n\n".join(sections)
