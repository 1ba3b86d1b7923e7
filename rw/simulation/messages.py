"""Reading a Worker's message: the headed sections that a router's environment writes for every Worker.

A simulated Worker learns nothing in any other way: it gets the text that a real one would read. Headings stand alone on
their line, in the order Role, Question, Task, then the replies shown.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

from rw.types import Role

_ROLE = re.compile(r"Role: (planner|executor|verifier|summarizer)")
_REPLY = re.compile(r"Previous reply:|Reply of (n\d+) \((planner|executor|verifier|summarizer)\):")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ShownReply:
    """An earlier reply that the message shows; `node_id` and `role` are None for the previous reply of a multi call."""

    node_id: str | None
    role: Role | None
    text: str


@dataclasses.dataclass(frozen=True)
class WorkerMessage:
    """What a message says."""

    role: Role | None
    question: str
    task: str
    replies: tuple[ShownReply, ...]


def read_message(content: str) -> WorkerMessage | None:
    """The sections of a message, or None where question or task is missing.

    The last paragraph is the reply-format line and belongs to no section. The first `Question:` and the first `Task:`
    after it count, so no reply can pass for them.
    """
    body, _, _ = content.rstrip().rpartition("\n\n")
    lines = body.split("\n")
    role_match = _ROLE.fullmatch(lines[0])
    try:
        question_at = lines.index("Question:")
        task_at = lines.index("Task:", question_at)
    except ValueError:
        return None
    starts = [at for at in range(task_at + 1, len(lines)) if _REPLY.fullmatch(lines[at]) and lines[at - 1] == ""]
    if starts and lines[starts[0]] == "Previous reply:":
        starts = starts[:1]  # it stands alone: what looks like a heading behind it is its own text
    task_end = starts[0] if starts else len(lines)
    replies = []
    for start, end in itertools.pairwise([*starts, len(lines)]):
        match = _REPLY.fullmatch(lines[start])
        role = Role(match[2]) if match[2] else None
        replies.append(ShownReply(match[1], role, "\n".join(lines[start + 1 : end]).strip()))
    return WorkerMessage(
        role=Role(role_match[1]) if role_match else None,
        question="\n".join(lines[question_at + 1 : task_at]).strip(),
        task="\n".join(lines[task_at + 1 : task_end]).strip(),
        replies=tuple(replies),
    )


def answer_body(text: str) -> str | None:
    """The body of the last `<answer>…</answer>` of a text, stripped, or None."""
    bodies = _ANSWER.findall(text)
    return bodies[-1].strip() if bodies else None
