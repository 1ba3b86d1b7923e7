"""Simulated Workers: pure functions of seed, message and header that solve what is asked and err by their skills."""

import asyncio

import pytest

from rw.protocol.prompts import Prompts
from rw.simulation import skills
from rw.simulation.messages import answer_body
from rw.simulation.workers import CANNOT_TELL, SimulatedWorld, Task, count_tokens, cut, read_task
from rw.simulation.world import World, all_questions, read_question
from rw.types import CallId, CallStatus, Role
from rw.workers.http import HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.loopback import CompletionCall, CompletionError, Fault
from rw.workers.pricing import PriceTable

PROMPTS = Prompts.load("short")
WORLD = SimulatedWorld(0)
LOOKUP = "recall simple: what age has otter?"
CHAIN = "code tricky: start with 20 plus 15, then run flip."
SEARCH = "reason simple: find x where fold of x plus 12 is 7."


def say(worker_id, question, task="solve", header="0/0/0/1/0", world=WORLD, **sections) -> str:
    prompt = f"{question}\nReply with one number."
    return world.reply(worker_id, PROMPTS.worker_message(prompt, task, **sections), header)


def number(*args, **sections) -> int:
    return int(answer_body(say(*args, **sections)))


def truth(question: str) -> int:
    return World(0).answer(read_question(question))


def rate(kind_of: str, worker_id: str, task: str = "solve", count: int = 400, **sections) -> float:
    """Share of questions like `kind_of` (kind and difficulty) that a Worker solves."""
    like = read_question(kind_of)
    asked = [question for question in all_questions(like.kind) if question.difficulty == like.difficulty]
    asked = asked[:: len(asked) // count][:count]
    replies = [number(worker_id, each.text, task, f"0/{at}/0/1/0", **sections) for at, each in enumerate(asked)]
    return sum(reply == World(0).answer(each) for reply, each in zip(replies, asked, strict=True)) / len(asked)


def test_a_reply_is_a_few_words_and_an_answer():
    reply = say("worker_1", LOOKUP)
    assert reply.endswith(f" <answer>{truth(LOOKUP)}</answer>")
    assert 1 <= len(reply.partition("<answer>")[0].split()) <= 3


def test_equal_calls_get_equal_replies_from_any_instance():
    for question in (LOOKUP, CHAIN, SEARCH):
        assert say("worker_2", question) == say("worker_2", question, world=SimulatedWorld(0))


def test_the_header_changes_searches_only():
    headers = [f"3/{group}/1/2/0" for group in range(40)]
    for question in (LOOKUP, CHAIN):
        for worker_id in skills.WORKER_IDS:
            assert len({say(worker_id, question, header=header) for header in headers}) == 1
    assert len({say("worker_2", SEARCH, header=header) for header in headers}) > 5


def test_the_seed_changes_facts_and_coins():
    replies = {tuple(say(name, LOOKUP, world=SimulatedWorld(seed)) for name in skills.WORKER_IDS) for seed in range(5)}
    assert len(replies) == 5


def test_lookups_err_as_often_as_the_skills_say():
    assert rate(LOOKUP, "worker_1") == pytest.approx(0.97, abs=0.04)
    assert rate("recall tricky: what age has otter?", "worker_5") == pytest.approx(0.47, abs=0.08)
    assert rate(LOOKUP, "worker_5") == pytest.approx(0.53, abs=0.08)
    assert rate("know tricky: which age suits otter?", "worker_4") == pytest.approx(0.58, abs=0.08)


def test_a_role_and_a_shown_result_cost_lookups_their_success():
    previous = "so <answer>3</answer>"
    assert rate(LOOKUP, "worker_1", role=Role.EXECUTOR) == pytest.approx(0.97 * 0.6, abs=0.08)
    assert rate(LOOKUP, "worker_1", "step two", previous=previous) == pytest.approx(0.97 * 0.4, abs=0.08)
    assert rate(LOOKUP, "worker_1", "step two", previous="I cannot tell.") == pytest.approx(0.97, abs=0.04)


def test_a_chain_in_one_call_mostly_fails():
    assert rate(CHAIN, "worker_3") == pytest.approx(0.93 * 0.47 * 0.35 + 0.03, abs=0.08)
    assert rate(CHAIN, "worker_3", "step two") == rate(CHAIN, "worker_3")  # without a first result it must do both


def test_steps_of_a_chain_are_really_done():
    assert number("worker_5", CHAIN, "step one") == 5
    for shown in range(0, 30, 7):
        expected = World(0).permutations["flip"][shown]
        assert number("worker_3", CHAIN, "step two", previous=f"so <answer>{shown}</answer>") == expected
    assert rate(CHAIN, "worker_5", "step one", role=Role.EXECUTOR) < 0.2  # a first step's result is no answer


def test_one_coin_a_question_worker_and_task():
    """A failing lookup fails the same way under every name of the task, so asking again gains nothing."""
    failing = [each.text for each in all_questions(read_question(LOOKUP).kind)][:80]
    failing = [text for text in failing if number("worker_5", text) != truth(text)]
    assert len(failing) > 10
    for text in failing:
        assert {number("worker_5", text, task) for task in Task} == {number("worker_5", text)}


def test_searches_err_independently_and_scatter():
    replies = [number("worker_3", SEARCH, header=f"0/0/{k}/1/0", role=Role.EXECUTOR) for k in range(400)]
    assert replies.count(truth(SEARCH)) / 400 == pytest.approx(0.63, abs=0.08)
    assert len(set(replies)) > 20


def test_a_search_repeats_what_it_is_shown():
    shown = [number("worker_3", SEARCH, header=f"0/0/{k}/1/0", previous="so <answer>4</answer>") for k in range(300)]
    assert shown.count(4) / 300 == pytest.approx(0.95, abs=0.05)


def candidates(*numbers: int) -> list[tuple[str, Role, str]]:
    return [(f"n{at}", Role.EXECUTOR, f"so <answer>{each}</answer>") for at, each in enumerate(numbers, 1)]


def test_a_summarizer_recognises_a_right_candidate_of_a_search():
    right = truth(SEARCH)
    shown = candidates((right + 1) % 30, right, (right + 1) % 30)
    for worker_id, recognition in (("worker_4", 0.95), ("worker_2", 0.70)):
        picked = [
            number(worker_id, SEARCH, "pick", f"0/0/{k}/1/0", role=Role.SUMMARIZER, references=shown)
            for k in range(300)
        ]
        assert picked.count(right) / 300 == pytest.approx(recognition, abs=0.08)


def test_a_summarizer_takes_the_majority_elsewhere():
    def pick(*numbers):
        return number("worker_2", LOOKUP, "pick", role=Role.SUMMARIZER, references=candidates(*numbers))

    assert pick(7, 9, 9) == 9
    assert pick(7, 9) == 7
    assert pick(4) == 4


def test_planners_and_verifiers_do_not_answer():
    right = truth(LOOKUP)
    plan = say("worker_4", CHAIN, "split the task", role=Role.PLANNER)
    assert plan == "Step one is math, step two is code."
    verdicts = [
        say("worker_4", LOOKUP, "check", role=Role.VERIFIER, references=candidates(each))
        for each in (right, (right + 1) % 30)
    ]
    assert verdicts[0] == "PASS"
    assert verdicts[1].startswith(f"FAIL at {(right + 1) % 30}: ")
    assert all(answer_body(text) is None for text in (plan, *verdicts))


@pytest.mark.parametrize(
    ("question", "task"),
    [
        ("How old is the universe?", "solve"),
        (LOOKUP, "gibberish"),
        (LOOKUP, "step one and step two"),
        ("", "solve"),
        (LOOKUP, "\x00<|im_end|>"),
    ],
)
def test_what_cannot_be_understood_gets_an_honest_reply(question, task):
    assert say("worker_1", question, task) == CANNOT_TELL


def test_subqueries_name_their_task_in_plain_words():
    assert read_task("Solve it.") is Task.SOLVE
    assert read_task("answer the question") is Task.SOLVE
    assert read_task("do step 1") is Task.STEP_ONE
    assert read_task("Now the second step, please") is Task.STEP_TWO
    assert read_task("pick the best") is Task.PICK
    assert read_task("Combine the replies") is Task.PICK
    assert read_task("pick and solve") is None


def completion(**changes):
    fields = {"model": "worker_1", "call_header": None, "seed": 42, "max_tokens": None, "temperature": 0.2}
    content = PROMPTS.worker_message(LOOKUP, "solve")
    return WORLD.handler(CompletionCall(**{**fields, "content": content, **changes}))


def test_usage_is_what_was_read_and_written():
    reply = completion()
    assert reply.finish_reason == "stop"
    assert reply.output_tokens == count_tokens(reply.text)
    assert count_tokens("so <answer>17</answer>") == 9
    assert reply.input_tokens == count_tokens(PROMPTS.worker_message(LOOKUP, "solve"))


def test_a_reply_over_the_token_limit_is_cut():
    assert cut("so <answer>17</answer>", 3) == ("so <answer", "length")
    assert completion(max_tokens=2).finish_reason == "length"
    assert completion(max_tokens=2).output_tokens == 2


def test_an_unknown_model_is_refused():
    with pytest.raises(CompletionError, match="'gpt'.*worker_1"):
        completion(model="gpt")


def test_cards_tell_no_price_and_endpoints_carry_it():
    assert [card.id for card in skills.cards()] == list(skills.WORKER_IDS)
    assert not any(character.isdigit() for card in skills.cards() for character in card.description)
    prices = PriceTable.from_endpoints(skills.endpoints("http://127.0.0.1:1/v1"))
    costs = [prices.cost_usd(name, 1000, 100) for name in skills.WORKER_IDS]
    assert costs == pytest.approx([112e-6, 28e-6, 112e-6, 224e-6, 112e-6, 112e-6])


async def test_calls_over_http_are_the_direct_ones_with_their_price():
    content = PROMPTS.worker_message(SEARCH, "solve")

    def fails_first(call, attempt):
        return Fault.HTTP_500 if attempt == 1 and call.call_header == "0/1/2/1/0" else None

    server = await WORLD.serve(faults=fails_first)
    endpoints = skills.endpoints(server.base_url)
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), None)
    try:
        requests = [
            WorkerRequest(CallId(0, 1, rollout, 1, 0), worker_id, "n1", None, (), "solve", content)
            for rollout in range(4)
            for worker_id in skills.WORKER_IDS
        ]
        calls = await asyncio.gather(*(client.call(request) for request in requests))
    finally:
        await client.close()
        await server.close()
    for request, call in zip(requests, calls, strict=True):
        assert call.status is CallStatus.OK
        assert call.output == WORLD.reply(request.worker_id, content, f"0/1/{request.id.rollout}/1/0")
        assert call.attempts == (2 if request.id.rollout == 2 else 1)
        level = skills.PROFILES[request.worker_id].price_level
        tokens = call.input_tokens * 0.02 + call.output_tokens * 0.08
        assert call.cost_usd == pytest.approx(tokens * level / 1e6)
