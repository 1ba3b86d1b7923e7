"""Makes the quickstart's tokenizer, rw/data/files/quickstart_tokenizer.json: `python -m rw.simulation.make_tokenizer`.

A byte-level BPE with Qwen3's control tokens, trained on what is read and written in the simulated world: queries,
short prompts, Worker messages, replies and actions. Its pieces are cut so that a router's decisions are single tokens
(a Worker id, a node id, a number, a mode) and the punctuation of tags never joins with letters, as in Qwen3's own: a
tag stays `<`, `mode`, `>`. The same sources give the same bytes; a change of the short prompts or of the world's
words changes them.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import rw.data
from rw.protocol.prompts import Prompts
from rw.simulation import skills, trials
from rw.simulation.plans import Plan
from rw.simulation.policies import HabitPolicy, opinions
from rw.simulation.queries import batch
from rw.simulation.workers import CANNOT_TELL, FILLERS, SimulatedWorld
from rw.simulation.world import NUMBERS, SLOTS
from rw.types import Mode, Query, Role

TARGET = Path(rw.data.__file__).parent / "files" / "quickstart_tokenizer.json"
VOCABULARY = 2048  # at most, with the control tokens; the corpus has fewer pieces to join
QUERIES = 120  # in the corpus, in each mode

# Qwen3's added tokens in its order; the first fourteen are special there.
SPECIAL_TOKENS = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|>
<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
""".split()
OTHER_TOKENS = """
<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think>
""".split()

# A word with its number (worker_3, n2), a number below 100, tag punctuation in its few fixed shapes, other punctuation.
PIECES = r' ?\p{L}+(?:_?\p{N}{1,2})?| ?\p{N}{1,2}|="|">|</|[<>/="]| ?[^\s\p{L}\p{N}<>/="]+|[\r\n]+|\s+(?!\S)|\s+'

# Ordinary words, so that texts of one's own do not fall apart into letters.
COMMON_WORDS = """
about above after again against all also always an and another any are as ask at away back be because been before
begin below best better between big both but by call can check choose city come could country day did different do
does down each early end enough even every example fact few final find first follow form from full general get give
go good great group had half hand hard has have he help her here high him his home house how however if important in
into its just keep kind large last late learn least less letter life light like line list little long look made main
make man many may mean might more most move much must my name near need never new next night no not now off often
old on only open or order other our out over own page part people place point possible problem question quick read
real right said same say second see seem sentence set several she should show side since small some something soon
start state still stop such sure system tell than that their them these they thing think third this those three
through time together too true try two under until up use very wait want was water way we were where while who whole
why will without woman word work world would write wrong year yes yet you young your
""".split()


def conversation(world: SimulatedWorld, query: Query, plan: Plan, prompts: Prompts) -> Iterator[str]:
    """Everything that is written when a router follows a plan."""
    yield plan.action(0, ())
    replies: list[str] = []
    for turn, routes in enumerate(plan.turns, start=1):
        yield plan.action(turn, ())
        for route, content in zip(
            routes, trials.worker_messages(query, plan, turn, tuple(replies), prompts), strict=True
        ):
            replies.append(world.reply(route.worker_id, content))
            attributes = "" if route.role is None else f' id="n{len(replies)}" role="{route.role}"'
            yield content
            yield f"<observation{attributes}>{replies[-1]}</observation>"
    yield plan.action(len(plan.turns) + 1, replies)


def vocabulary_words() -> Iterator[str]:
    """The world's words, one a line: at the start of a text and behind a blank."""
    words = [word for words in SLOTS.values() for word in words]
    words += [word for filler in FILLERS for word in filler.split()]
    words += [*NUMBERS, *skills.WORKER_IDS, *(f"n{number}" for number in range(1, 9))]
    words += [mode.word for mode in Mode] + list(Role) + "mode route answer observation model role refs id".split()
    words += "user assistant system step one two solve pick none PASS FAIL".split()
    for word in words:
        yield f"{word}\n {word}"


def corpus() -> Iterator[str]:
    """The training text."""
    world = SimulatedWorld(0)
    prompts = Prompts.load(trials.TEMPLATES)
    policies = (HabitPolicy(0), opinions(0, skills.WORKER_IDS))
    for number, query in enumerate(batch(0, 0, QUERIES)):
        yield query.prompt
        for mode, policy in itertools.product(Mode, policies):
            yield from conversation(world, query, policy.plan(query, number, mode), prompts)
    for text in prompts.spoken():
        yield from [text, f" {text}"] * 10  # some stand at the start of a text, some behind a blank
    for word in COMMON_WORDS:
        yield from [f" {word}"] * 2
    for card in skills.cards():
        yield from [f"{card.id}: {card.description}"] * 20
    for text in (*vocabulary_words(), CANNOT_TELL):
        yield from [text] * 40


def make() -> Tokenizer:
    """Trains the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS) - len(OTHER_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in OTHER_TOKENS])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=TARGET, help="file to write")
    target = parser.parse_args().target
    target.parent.mkdir(parents=True, exist_ok=True)
    text = make().to_str(pretty=True)
    target.write_text(text + "\n")
    print(f"{target}: {len(text)} characters")


if __name__ == "__main__":
    main()
