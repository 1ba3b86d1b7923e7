"""Simulated Workers: they read a message as a real Worker would, solve what is asked, and then err.

A reply is a pure function of the world's seed, the Worker, the message and the call header. On lookups and chains one
coin belongs to each (question, Worker, task): asking the same Worker again gains nothing. On searches every call has a
coin of its own, told apart by the call header, so a team gains. What makes a Worker succeed is in skills.py.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import re

from rw.simulation import skills
from rw.simulation.messages import WorkerMessage, answer_body, read_message
from rw.simulation.skills import PROFILES, WorkerProfile
from rw.simulation.world import MODULUS, STEP_SKILLS, Kind, Question, World, chance, digest, read_question
from rw.types import Role
from rw.workers.loopback import Completion, CompletionCall, CompletionError, Faults, Latency, LoopbackServer, serve

FILLERS = ("so", "well", "okay", "here", "clearly", "thus", "we find", "it is", "I get", "my result")
CANNOT_TELL = "I cannot tell what is asked."
_PIECES = re.compile(r"\w+|[^\w\s]")


class Task(enum.StrEnum):
    """What a sub-query asks a Worker to do with the question it is shown."""

    SOLVE = "solve"
    STEP_ONE = "step one"
    STEP_TWO = "step two"
    PICK = "pick"


_TASK_WORDS = {
    Task.STEP_ONE: re.compile(r"\b(step (one|1)|first step)\b"),
    Task.STEP_TWO: re.compile(r"\b(step (two|2)|second step)\b"),
    Task.PICK: re.compile(r"\b(pick|choose|combine|summarize)\b"),
    Task.SOLVE: re.compile(r"\b(solve|answer)\b"),
}


def read_task(subquery: str) -> Task | None:
    """The task that a sub-query names, or None. Naming two different ones names none."""
    named = [task for task, words in _TASK_WORDS.items() if words.search(subquery.lower())]
    return named[0] if len(named) == 1 else None


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One Worker at one question: everything its coins depend on."""

    world: World
    profile: WorkerProfile
    question: Question
    call_header: str

    def _key(self, task: str) -> tuple[object, ...]:
        key = (self.world.seed, self.question.text, self.profile.id, task)
        return (*key, self.call_header) if self.question.kind is Kind.REASON_SEARCH else key

    def coin(self, task: str) -> float:
        return chance("coin", *self._key(task))

    def err(self, value: int, task: str) -> int:
        """A wrong number in place of `value`."""
        return (value + 1 + digest("error", *self._key(task)) % (MODULUS - 1)) % MODULUS

    def outcome(self, value: int, task: str, probability: float) -> int:
        return value if self.coin(task) < probability else self.err(value, task)

    def skill(self, step: int) -> float:
        return self.profile.step_skill(STEP_SKILLS[self.question.kind][step], self.question.difficulty)


def shown_numbers(message: WorkerMessage) -> list[int]:
    """The numbers that the shown replies give as their answers, in order."""
    bodies = [answer_body(reply.text) or "" for reply in message.replies]
    return [int(body) for body in bodies if re.fullmatch(r"[0-9]{1,2}", body) and int(body) < MODULUS]


def search(attempt: Attempt, shown: list[int], has_role: bool) -> int:
    """Looks for x, unless a shown candidate is simply repeated."""
    if shown and attempt.coin("anchor") < skills.ANCHORING:
        return shown[-1]
    probability = attempt.skill(0) * (1.0 if has_role else skills.SEARCH_WITHOUT_ROLE)
    return attempt.outcome(attempt.world.answer(attempt.question), "solve", probability)


def lookup(attempt: Attempt, shown: list[int], has_role: bool) -> int:
    """A question of one step: whatever the task is called, there is only one thing to do."""
    probability = attempt.skill(0) * (skills.ROLE_ON_STEPS if has_role else 1.0) * (skills.DOUBT if shown else 1.0)
    return attempt.outcome(attempt.world.answer(attempt.question), "solve", probability)


def chain(attempt: Attempt, task: Task, shown: list[int], has_role: bool) -> int:
    """A question of two steps: one of them, the second on the number last shown, or both in one call."""
    question, world = attempt.question, attempt.world
    factor = skills.ROLE_ON_STEPS if has_role else 1.0
    if task is Task.STEP_ONE:
        return attempt.outcome(world.step(question, 0), task, attempt.skill(0) * factor)
    if task is Task.STEP_TWO and shown:
        return attempt.outcome(world.step(question, 1, shown[-1]), task, attempt.skill(1) * factor)
    probability = attempt.skill(0) * attempt.skill(1) * skills.CHAIN_IN_ONE_CALL * factor
    return attempt.outcome(world.answer(question), "solve", probability)


def summarize(attempt: Attempt, candidates: list[int]) -> int:
    """Recognises a right candidate of a search, else takes the most frequent one; the first where several are."""
    if attempt.question.kind is Kind.REASON_SEARCH:
        right = attempt.world.answer(attempt.question)
        wrong = [candidate for candidate in candidates if candidate != right]
        if right in candidates:
            recognised = attempt.coin("recognise") < attempt.profile.recognition
            return right if recognised or not wrong else wrong[0]
    return collections.Counter(candidates).most_common(1)[0][0]


def verify(attempt: Attempt, message: WorkerMessage) -> str:
    """PASS, or FAIL with place, reason and remedy; its judgement of the last candidate errs like a summarizer's."""
    candidates = shown_numbers(message)
    if not candidates:
        return "FAIL everywhere: no number is shown, so ask for one."
    is_right = candidates[-1] == attempt.world.answer(attempt.question)
    if attempt.coin("verify") >= attempt.profile.recognition:
        is_right = not is_right
    return "PASS" if is_right else f"FAIL at {candidates[-1]}: the result is off, so solve it again."


def plan(question: Question) -> str:
    """The planner's split of a question."""
    if question.steps == 1:
        return "One step is enough: solve."
    first, second = STEP_SKILLS[question.kind]
    return f"Step one is {first}, step two is {second}."


def write_reply(attempt: Attempt, message: WorkerMessage, task: Task | None) -> str:
    """The whole reply of a Worker that has understood question and task; planners and verifiers need no task."""
    if message.role is Role.PLANNER:
        return plan(attempt.question)
    if message.role is Role.VERIFIER:
        return verify(attempt, message)
    shown = shown_numbers(message)
    if message.role is Role.SUMMARIZER and shown:
        number = summarize(attempt, shown)
    elif attempt.question.kind is Kind.REASON_SEARCH:
        number = search(attempt, shown, message.role is not None)
    elif attempt.question.steps == 1:
        number = lookup(attempt, shown, message.role is not None)
    else:
        number = chain(attempt, task, shown, message.role is not None)
    filler = FILLERS[digest("filler", *attempt._key(task)) % len(FILLERS)]
    return f"{filler} <answer>{number}</answer>"


def count_tokens(text: str) -> int:
    """Words and punctuation marks: the usage that a simulated Worker reports."""
    return len(_PIECES.findall(text))


def cut(text: str, max_tokens: int | None) -> tuple[str, str]:
    """The text's first `max_tokens` tokens, and the finish reason that an API would give."""
    if max_tokens is None or count_tokens(text) <= max_tokens:
        return text, "stop"
    ends = [match.end() for match in _PIECES.finditer(text)]
    return text[: ends[max_tokens - 1]] if max_tokens > 0 else "", "length"


@dataclasses.dataclass(frozen=True)
class SimulatedWorld:
    """All simulated Workers of the world of one seed; `handler` answers chat completions for a loopback server."""

    seed: int

    @functools.cached_property
    def world(self) -> World:
        return World(self.seed)

    def reply(self, worker_id: str, content: str, call_header: str = "") -> str:
        """What a Worker says to a message: a pure function of seed, Worker, message and header."""
        message = read_message(content)
        question = read_question(message.question) if message else None
        if question is None:
            return CANNOT_TELL
        task = read_task(message.task)
        if task is None and message.role not in (Role.PLANNER, Role.VERIFIER):  # their role is their task
            return CANNOT_TELL
        return write_reply(Attempt(self.world, PROFILES[worker_id], question, call_header), message, task)

    def handler(self, call: CompletionCall) -> Completion:
        """Answers one chat completion; the model name is the Worker's id."""
        if call.model not in PROFILES:
            raise CompletionError(404, f"no model {call.model!r}; this world has {', '.join(PROFILES)}")
        words = self.reply(call.model, call.content, call.call_header or "")
        text, finish_reason = cut(words, call.max_tokens)
        return Completion(text, count_tokens(call.content), count_tokens(text), finish_reason)

    async def serve(
        self, host: str = "127.0.0.1", port: int = 0, latency: Latency | None = None, faults: Faults | None = None
    ) -> LoopbackServer:
        """Starts an OpenAI-compatible server of all Workers of this world."""
        return await serve(self.handler, host, port, latency, faults, skills.WORKER_IDS)
