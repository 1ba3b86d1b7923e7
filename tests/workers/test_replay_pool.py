"""Recorded Workers over HTTP: what was said, at what was recorded as its cost, whatever the sub-query asks."""

import asyncio

import pytest

from rw.data.replay import NQ6_MODELS, load_nq6
from rw.protocol.prompts import Prompts
from rw.types import CallId, CallStatus, Role
from rw.workers.http import ClientConfig, HttpWorkerClient
from rw.workers.interface import WorkerRequest
from rw.workers.loopback import Fault
from rw.workers.pricing import PriceTable
from rw.workers.replay_pool import find_question, recorded_endpoints, serve_recorded
from rw.workers.retry import RetryPolicy

MULTI = (
    "Question:\n{prompt}\n\nTask:\nQuestion:\nwho was the first king?\n\nPrevious reply:\nI do not know.\n\n"
    "Reason freely and end with <answer>.</answer>"
)
AGENTIC = (
    "Role: verifier\nCheck the replies.\n\nQuestion:\n{prompt}\n\nTask:\nverify\n\nReply of n1 (executor):\n"
    "Question:\nsomething else\n\nEnd with PASS or FAIL."
)


async def test_all_recorded_calls_come_back_with_their_text_and_cost():
    queries, _, answers = load_nq6()
    server = await serve_recorded(answers)
    endpoints = recorded_endpoints(server.base_url, NQ6_MODELS)
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), None)
    messages = (MULTI, AGENTIC)
    requests = [
        WorkerRequest(
            CallId(0, group, 0, 1, worker),
            endpoint.id,
            "n1",
            Role.EXECUTOR,
            (),
            "sub",
            messages[group % 2].format(prompt=query.prompt),
        )
        for group, query in enumerate(queries)
        for worker, endpoint in enumerate(endpoints)
    ]
    calls = await asyncio.gather(*map(client.call, requests))
    await client.close()
    await server.close()
    assert len(calls) == 320 * 6 and {call.status for call in calls} == {CallStatus.OK}
    recorded = [answers[query.metadata["question"]][endpoint.model] for query in queries for endpoint in endpoints]
    assert [call.output for call in calls] == [answer.text for answer in recorded]
    assert max(abs(call.cost_usd - answer.cost_usd) for call, answer in zip(calls, recorded, strict=True)) < 1e-12
    assert {call.input_tokens for call in calls} == {0}


async def test_equal_requests_of_two_rollouts_have_faults_of_their_own():
    """Both fail once and are answered, whichever comes first: attempts are counted by call, not by request."""
    queries, _, answers = load_nq6()
    server = await serve_recorded(answers, faults=lambda call, attempt: Fault.HTTP_500 if attempt == 1 else None)
    endpoints = recorded_endpoints(server.base_url, NQ6_MODELS)
    config = ClientConfig(retry=RetryPolicy(backoff_s=0.001))
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), None, config)
    content = f"Question:\n{queries[0].prompt}\n\nTask:\nanswer"
    requests = [
        WorkerRequest(CallId(1, 0, rollout, 1, 0), "worker_1", "n1", None, (), "answer", content) for rollout in (0, 1)
    ]
    calls = await asyncio.gather(*map(client.call, requests))
    await client.close()
    await server.close()
    assert [(call.status, call.attempts) for call in calls] == [(CallStatus.OK, 2)] * 2


async def test_unknown_question_is_a_client_error_in_clear_words():
    _, _, answers = load_nq6()
    server = await serve_recorded(answers)
    endpoints = recorded_endpoints(server.base_url, NQ6_MODELS)
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), None)
    request = WorkerRequest(
        CallId(0, 0, 0, 1, 0), "worker_1", "n1", None, (), "s", "Question:\nwhat is this?\n\nTask:\ns"
    )
    call = await client.call(request)
    await client.close()
    await server.close()
    assert (call.status, call.failure, call.attempts) == (CallStatus.FAILED, "client_error", 1)


KNOWN = {"who won": 0, "who won\nthe cup": 0, "who": 0}


@pytest.mark.parametrize(
    ("content", "question"),
    [
        ("Question:\nwho won\nformat", "who won"),
        ("Question:\nwho won\nthe cup\nformat", "who won\nthe cup"),
        ("Role: executor\nbrief\n\nQuestion:\nwho\n\nTask:\nQuestion:\nwho won", "who"),
        ("Question:\nwho wonders\nformat", None),
        ("Question: who won", None),
        ("The Question:\nwho won", None),
        ("Task:\nwho won", None),
        ("Question:\n", None),
        ("", None),
    ],
)
def test_question_is_the_longest_known_one_that_the_first_section_starts_with(content, question):
    assert find_question(content, KNOWN) == question


@pytest.mark.parametrize("templates", ["default", "short"])
@pytest.mark.parametrize("question", ["when is the next episode of flash airing?"])
def test_question_is_found_in_the_message_of_every_mode_and_role(templates, question):
    queries, _, answers = load_nq6()
    query = next(query for query in queries if query.metadata["question"] == question)
    prompts = Prompts.load(templates)
    decoy = "Question:\n" + queries[1].prompt
    messages = [
        prompts.worker_message(query.prompt, decoy),
        prompts.worker_message(query.prompt, decoy, previous=decoy),
        *(prompts.worker_message(query.prompt, decoy, role, [("n1", Role.EXECUTOR, decoy)]) for role in Role),
    ]
    assert {find_question(message, answers) for message in messages} == {question}
