"""Drills: questions and replies of random words, on which a warm start teaches a router its trade and no knowledge.

A drill reply says a random answer, mostly in an answer tag, somewhere in other words. A router that keeps to the
protocol and copies that answer does all that can be done, and what it learns is true of any question and any Worker.
Drills take the place of a run's Workers on loopback, so they cost nothing and give no recorded or live answer away.
Every text is a function of the seed and of what asks for it.
"""

from __future__ import annotations

import random

from rw.errors import ConfigError
from rw.protocol.chat import TokenCodec
from rw.simulation.messages import read_message
from rw.types import Query
from rw.workers.loopback import Completion, CompletionCall, CompletionError

FORMAT = "Put the short answer by itself on the last line."
_FEWEST_WORDS = 100
_QUESTION_WORDS, _ANSWER_WORDS, _OTHER_WORDS = (3, 12), (1, 8), (1, 15)
_BARE_SHARE = 0.1  # of replies without an answer tag: their first line is the answer
_ECHO_SHARE = 0.3  # of tagged replies that name the answer before the tag too


class Drills:
    """The drills of one seed in the words of a tokenizer: those of its pieces that are a whole word."""

    def __init__(self, codec: TokenCodec, seed: int):
        """Raises ConfigError where the vocabulary has too few words."""
        self._words = _words(codec)
        self._seed = seed
        if len(self._words) < _FEWEST_WORDS:
            raise ConfigError(f"the tokenizer has {len(self._words)} whole words; drills need {_FEWEST_WORDS}")

    def queries(self, index: int, size: int) -> list[Query]:
        """Batch `index` of drill questions. They have no reference: what is right is what the Worker said."""
        queries = []
        for number in range(size):
            rng = random.Random(f"drill question {self._seed} {index} {number}")
            question = f"{self._text(rng, *_QUESTION_WORDS)}?"
            queries.append(
                Query(
                    id=f"drill-{index:05d}-{number:03d}",
                    dataset="trivia_qa",  # judged by its rule and always wrong, which no demonstration minds
                    domain="drill",
                    prompt=f"{question}\n{FORMAT}",
                    reference=(),
                    metadata={"question": question},
                )
            )
        return queries

    def handler(self, call: CompletionCall) -> Completion:
        """Answers a Worker call on loopback; the same message to the same Worker gets the same reply."""
        if read_message(call.content) is None:
            raise CompletionError(400, "no question and task in the message")
        reply = self.reply(call.model, call.content)
        return Completion(reply, 0, len(reply.split()))

    def reply(self, worker: str, content: str) -> str:
        """What a drill Worker says to a message."""
        rng = random.Random(f"drill reply {self._seed} {worker} {content}")
        answer = self._answer(rng)
        if rng.random() < _BARE_SHARE:
            return answer + rng.choice(("", ".", f"\n\n{self._text(rng, *_OTHER_WORDS)}."))
        other = self._text(rng, *_OTHER_WORDS)
        if rng.random() < _ECHO_SHARE:
            other += f" {answer}" + rng.choice((".", ",", f" {self._word(rng)}"))
        tagged = f"<answer>{answer}</answer>"
        return rng.choice((tagged, f"{other}. \n\n\n{tagged}", f"{other} {tagged}", f"{tagged}\n\n{other}."))

    def _answer(self, rng: random.Random) -> str:
        words = self._text(rng, *_ANSWER_WORDS).rstrip(",").split()
        return " ".join(word.capitalize() if rng.random() < 0.5 else word for word in words)

    def _text(self, rng: random.Random, fewest: int, most: int) -> str:
        return " ".join(self._word(rng) for _ in range(rng.randint(fewest, most)))

    def _word(self, rng: random.Random) -> str:
        """Half of the words by rank, so that the common ones are common, half evenly, so that none is rare."""
        count = len(self._words)
        place = int(count ** rng.random()) - 1 if rng.random() < 0.5 else rng.randrange(count)
        word, kind = self._words[place], rng.random()
        if kind < 0.07:
            return str(rng.randint(1, 2100))
        return f"{word}," if kind < 0.11 else word


def _words(codec: TokenCodec) -> tuple[str, ...]:
    pieces = (piece.decode("ascii", "replace") for piece in codec.token_bytes)
    return tuple(dict.fromkeys(piece[1:] for piece in pieces if piece[:1] == " " and piece[1:].isalpha()))
