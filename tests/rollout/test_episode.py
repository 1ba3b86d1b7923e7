"""Whole episodes, token by token, in all three modes and through every way in which they can fail."""

import asyncio
import dataclasses

import numpy as np
import pytest

from rw.errors import FailureCause, InfrastructureFailure, WorkerRefusedError
from rw.rollout.episode import check_trajectory, run_episode
from rw.rollout.record import segment_runs
from rw.sampler.interface import EpisodeId, SampledTurn
from rw.types import POLICY_SEGMENTS, CallId, CallStatus, Mode, Role, Segment, Status, Violation

P, J, O, M, I = Segment.PROMPT, Segment.INJECTED, Segment.OBSERVATION, Segment.MODE, Segment.INNER

SINGLE = [
    "<mode>single</mode>",
    '<route model="worker_4">Solve 3x+2=14.</route>',
    "<answer>4</answer>",
]
MULTI = [
    "<mode>multi</mode>",
    '<route model="worker_1">Solve 3x+2=14.</route>',
    '<route model="worker_3">Test that root.</route>',
    '<route model="worker_1">Test it again.</route>',
    '<route model="worker_2">And once more.</route>',
    "<answer>4</answer>",
]


def route(worker, role, subquery, references=""):
    return f'<route model="worker_{worker}" role="{role}" refs="{references}">{subquery}</route>'


AGENTIC = [
    "<mode>agentic</mode>",
    route(1, "planner", "Plan.") + "<|im_end|>",
    route(2, "executor", "Isolate x.", "n1") + route(3, "executor", "Try 4.", "n1") + "<|im_end|>",
    route(4, "verifier", "Check.", "n2,n3") + "<|im_end|>",
    route(5, "executor", "Again.") + route(6, "executor", "Again.") + route(1, "executor", "More.") + "<|im_end|>",
    route(5, "summarizer", "Sum up.", "n2,n5,n6,n7") + "<|im_end|>",
    "<answer>4</answer>",
]


@pytest.fixture
def play(protocol, codec, world, query):
    """Plays one episode of scripted turns; returns its trajectory with the sampler that was asked and the Workers."""

    async def play(written, workers=None, forced_mode=None, protocol=protocol, trouble=None):
        sampler = world.RecordingSampler(codec, world.turns(*written), trouble)
        workers = workers or world.workers_saying()
        trajectory = await run_episode(
            query,
            5,
            2,
            forced_mode,
            step=7,
            protocol=protocol,
            sampler=sampler,
            workers=workers,
            policy_version=6,
        )
        assert sampler.released == [EpisodeId(step=7, query_id="q0", rollout=2)]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return trajectory, sampler, workers

    return play


def runs(trajectory, codec, *kinds):
    """(segment, text) of the runs of some kinds."""
    return [
        (Segment(code), codec.decode(trajectory.tokens[start:end]))
        for code, start, end in segment_runs(trajectory.segments)
        if code in kinds
    ]


def policy_text(trajectory, codec):
    return runs(trajectory, codec, *POLICY_SEGMENTS)


async def test_single_free(play, codec, world):
    trajectory, sampler, workers = await play(SINGLE, world.workers_saying(n1="x=4"))
    assert runs(trajectory, codec, M, I, O) == [
        (M, "<mode>single</mode>"),
        (I, '<route model="worker_4">Solve 3x+2=14.</route>'),
        (O, "<observation>x=4</observation>"),
        (I, "<answer>4</answer>"),
    ]
    frame = [text for _, text in runs(trajectory, codec, J)]
    assert frame[-2:] == ["<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"]
    assert frame[0].startswith("<|im_end|>\n<|im_start|>user\n")
    assert frame[0].endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert (trajectory.status, trajectory.answer, trajectory.mode) == (Status.ANSWERED, "4", Mode.SINGLE)
    assert (trajectory.forced, trajectory.turns, trajectory.policy_version) == (False, 3, 6)
    assert trajectory.cost_usd == 0.0005
    (request,) = workers.requests
    assert request.id == CallId(step=7, group=5, rollout=2, turn=1, call=0)
    assert (request.worker_id, request.node_id, request.role, request.references) == ("worker_4", "n1", None, ())
    assert "Question 0: solve 3x+2=14." in request.content and "Solve 3x+2=14." in request.content
    (call,) = trajectory.calls
    assert (call.node_id, call.output, call.status) == ("n1", "x=4", CallStatus.OK)


async def test_forced_mode_is_injected_and_its_turn_is_not_sampled(play, codec):
    trajectory, sampler, workers = await play([None, *MULTI[1:3], MULTI[-1]], forced_mode=Mode.MULTI)
    assert policy_text(trajectory, codec) == [
        (I, '<route model="worker_1">Solve 3x+2=14.</route>'),
        (I, '<route model="worker_3">Test that root.</route>'),
        (I, "<answer>4</answer>"),
    ]
    assert runs(trajectory, codec, J)[0][1].startswith("<mode>multi</mode><|im_end|>")
    assert [request.turn for request in sampler.requests] == [1, 2, 3]
    assert (trajectory.forced, trajectory.mode, trajectory.turns) == (True, Mode.MULTI, 3)
    assert [request.id.turn for request in workers.requests] == [1, 2]


async def test_multi_of_four_calls(play, codec, world):
    trajectory, sampler, workers = await play(MULTI, world.workers_saying(n1="x=4, which is whole"))
    assert policy_text(trajectory, codec) == [(M, MULTI[0]), *[(I, text) for text in MULTI[1:]]]
    assert [text for _, text in runs(trajectory, codec, O)] == [
        "<observation>x=4, which is whole</observation>",
        "<observation>TEST THAT ROOT.</observation>",
        "<observation>TEST IT AGAIN.</observation>",
        "<observation>AND ONCE MORE.</observation>",
    ]
    assert [request.id for request in workers.requests] == [CallId(7, 5, 2, turn, 0) for turn in (1, 2, 3, 4)]
    assert [call.node_id for call in trajectory.calls] == ["n1", "n2", "n3", "n4"]
    assert [call.turn for call in trajectory.calls] == [1, 2, 3, 4]
    assert "x=4, which is whole" in workers.requests[1].content
    assert "x=4, which is whole" not in workers.requests[2].content
    assert "TEST THAT ROOT." in workers.requests[2].content
    assert trajectory.cost_usd == pytest.approx(0.002)
    assert trajectory.status is Status.ANSWERED


async def test_agentic_of_eight_calls_in_five_layers(play, codec, world):
    trajectory, sampler, workers = await play(AGENTIC, world.workers_saying(n1="1. isolate", n8="It is 4."))
    assert policy_text(trajectory, codec) == [(M, AGENTIC[0]), *[(I, text) for text in AGENTIC[1:]]]
    assert [text for _, text in runs(trajectory, codec, O)] == [
        '<observation id="n1" role="planner">1. isolate</observation>',
        '<observation id="n2" role="executor">ISOLATE X.</observation>',
        '<observation id="n3" role="executor">TRY 4.</observation>',
        '<observation id="n4" role="verifier">CHECK.</observation>',
        '<observation id="n5" role="executor">AGAIN.</observation>',
        '<observation id="n6" role="executor">AGAIN.</observation>',
        '<observation id="n7" role="executor">MORE.</observation>',
        '<observation id="n8" role="summarizer">It is 4.</observation>',
    ]
    assert [(call.node_id, call.role, call.references) for call in trajectory.calls] == [
        ("n1", Role.PLANNER, ()),
        ("n2", Role.EXECUTOR, ("n1",)),
        ("n3", Role.EXECUTOR, ("n1",)),
        ("n4", Role.VERIFIER, ("n2", "n3")),
        ("n5", Role.EXECUTOR, ()),
        ("n6", Role.EXECUTOR, ()),
        ("n7", Role.EXECUTOR, ()),
        ("n8", Role.SUMMARIZER, ("n2", "n5", "n6", "n7")),
    ]
    assert [(request.id.turn, request.id.call) for request in workers.requests] == [
        (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1), (4, 2), (5, 0),
    ]  # fmt: skip
    assert trajectory.answer == "4" and trajectory.cost_usd == pytest.approx(0.004)
    # A sampled end token is the router's own; exactly one closes each of its turns.
    assert codec.decode(trajectory.tokens).count("<|im_end|>\n<|im_end|>") == 0


@pytest.mark.parametrize("written", [SINGLE, MULTI, AGENTIC], ids=["single", "multi", "agentic"])
async def test_each_turn_sees_the_former_context_and_turn_unchanged(play, codec, written):
    trajectory, sampler, _ = await play(written)
    sampled = [codec.encode_text(text.removesuffix("<|im_end|>")) for text in written]
    sampled = [
        np.append(ids, codec.im_end) if text.endswith("<|im_end|>") else ids
        for ids, text in zip(sampled, written, strict=True)
    ]
    grown = [*[request.tokens for request in sampler.requests[1:]], trajectory.tokens]
    is_policy = np.isin(trajectory.segments, POLICY_SEGMENTS)
    places = []
    for request, ids, after in zip(sampler.requests, sampled, grown, strict=True):
        before = len(request.tokens)
        np.testing.assert_array_equal(after[:before], request.tokens)
        np.testing.assert_array_equal(after[before : before + len(ids)], ids)
        places += range(before, before + len(ids))
    np.testing.assert_array_equal(np.flatnonzero(is_policy), places)
    assert {request.prompt_length for request in sampler.requests} == {trajectory.prompt_length}
    assert trajectory.prompt_length == len(sampler.requests[0].tokens)
    assert (trajectory.segments[: trajectory.prompt_length] == P).all()


async def test_a_layer_is_called_in_parallel_and_observed_in_the_order_written(play, codec, world):
    at_work, most = set(), []

    async def answer(request):
        at_work.add(request.node_id)
        most.append(len(at_work))
        await asyncio.sleep({"n1": 0.03, "n2": 0.01, "n3": 0.02}.get(request.node_id, 0))
        at_work.remove(request.node_id)
        return f"reply of {request.node_id}"

    layer = "".join(route(k, "executor", f"Part {k}.") for k in (3, 1, 2)) + "<|im_end|>"
    written = ["<mode>agentic</mode>", layer, route(4, "summarizer", "Sum.", "n1") + "<|im_end|>", "<answer></answer>"]
    trajectory, _, _ = await play(written, world.InProcessWorkers(answer))
    assert max(most) == 3
    assert [call.worker_id for call in trajectory.calls] == ["worker_3", "worker_1", "worker_2", "worker_4"]
    observed = [text for _, text in runs(trajectory, codec, O)]
    assert [f">reply of {node}<" in text for node, text in zip(("n1", "n2", "n3", "n4"), observed, strict=True)] == (
        [True] * 4
    )
    assert (trajectory.status, trajectory.answer) == (Status.ANSWERED, "")


@pytest.mark.parametrize(
    "written, failing, calls",
    [
        (SINGLE, "n1", ["failed"]),
        (MULTI, "n3", ["ok", "ok", "failed"]),
        (AGENTIC, "n4", ["ok", "ok", "ok", "failed"]),
    ],
    ids=["single", "multi", "agentic"],
)
async def test_failed_call_ends_the_rollout_as_unmeasured(play, codec, world, written, failing, calls):
    async def answer(request):
        return FailureCause.SERVER_ERROR if request.node_id == failing else "fine"

    trajectory, sampler, _ = await play(written, world.InProcessWorkers(answer))
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "server_error")
    assert (trajectory.answer, trajectory.violation) == (None, None)
    assert [call.status.value for call in trajectory.calls] == calls
    assert len(sampler.requests) == trajectory.turns
    assert policy_text(trajectory, codec)[-1][1] == written[trajectory.turns - 1]  # what was sampled is kept


async def test_first_failure_of_a_layer_cancels_its_siblings_only(play, world):
    async def answer(request):
        if request.node_id == "n5":
            await asyncio.sleep(0.01)
            return FailureCause.TIMEOUT
        if request.node_id == "n7":
            await asyncio.sleep(60)
        return "done before"

    workers = world.InProcessWorkers(answer)
    trajectory, _, _ = await play(AGENTIC, workers)
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "timeout")
    assert [(call.node_id, call.status.value, call.cost_usd) for call in trajectory.calls[4:]] == [
        ("n5", "failed", None),
        ("n6", "ok", 0.0005),
        ("n7", "cancelled", None),
    ]
    assert workers.stopped == ["n7"]
    cancelled = trajectory.calls[6]
    assert (cancelled.worker_id, cancelled.role, cancelled.subquery) == ("worker_1", Role.EXECUTOR, "More.")


async def test_call_that_its_client_gave_up_is_never_shown_as_an_empty_reply(play, world):
    async def answer(request):
        return dataclasses.replace(world.InProcessWorkers.accepted(request, ""), status=CallStatus.CANCELLED)

    trajectory, sampler, _ = await play(SINGLE, world.InProcessWorkers(answer))
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "internal")
    assert len(sampler.requests) == 2


async def test_refusing_worker_stops_the_run_and_leaves_no_sibling(play, protocol, codec, world, query):
    async def answer(request):
        if request.node_id == "n3":
            raise WorkerRefusedError("worker_3 refuses: 401")
        if request.node_id == "n2":
            await asyncio.sleep(60)
        return "fine"

    workers = world.InProcessWorkers(answer)
    with pytest.raises(WorkerRefusedError, match="401"):
        await play(AGENTIC, workers)
    assert workers.stopped == ["n2"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_sampler_fault_is_a_failure_with_its_cause(play, codec):
    async def trouble(request):
        if request.turn == 2:
            raise InfrastructureFailure(FailureCause.SAMPLER_FAULT, "device lost")

    trajectory, _, _ = await play(MULTI, trouble=trouble)
    assert (trajectory.status, trajectory.cause) == (Status.INFRASTRUCTURE_FAILURE, "sampler_fault")
    assert [text for _, text in policy_text(trajectory, codec)] == MULTI[:2]
    assert len(trajectory.calls) == 1 and trajectory.turns == 2


@pytest.mark.parametrize(
    "written, violation, calls",
    [
        (["Sure: <mode>multi</mode>"], Violation.MODE_GRAMMAR, 0),
        (["<mode>single" + " very" * 80], Violation.MODE_TRUNCATED, 0),
        ([SINGLE[0], SINGLE[2]], Violation.ANSWER_PREMATURE, 0),
        ([SINGLE[0], SINGLE[1], SINGLE[1]], Violation.TOO_MANY_CALLS, 1),
        ([MULTI[0], MULTI[1], MULTI[-1]], Violation.ANSWER_PREMATURE, 1),
        ([AGENTIC[0], route(1, "executor", "Go.", "n1") + "<|im_end|>"], Violation.BAD_REFERENCE, 0),
        ([AGENTIC[0], route(1, "executor", "Go.") + "<observation"], Violation.FABRICATED_OBSERVATION, 0),
    ],
)
async def test_violation_ends_the_rollout_before_anything_of_its_turn_is_sent(play, codec, written, violation, calls):
    trajectory, sampler, workers = await play(written)
    assert (trajectory.status, trajectory.violation) == (Status.TERMINAL_INVALID, violation)
    assert len(workers.requests) == len(trajectory.calls) == calls
    assert trajectory.answer is None and trajectory.turns == len(written)
    segment = M if len(written) == 1 else I
    last = codec.encode_text(written[-1].removesuffix("<|im_end|>"))[:64]
    tail = trajectory.tokens[trajectory.segments == segment][-len(last) - written[-1].endswith("<|im_end|>") :]
    np.testing.assert_array_equal(tail[: len(last)], last)  # the offending turn is trained on, whole


async def test_observation_past_the_budget_ends_the_rollout_without_another_sampling_call(play, make_protocol, world):
    protocol = make_protocol(response_budget=900)
    rules_only, _, _ = await play(SINGLE, protocol=protocol)
    assert rules_only.status is Status.ANSWERED
    trajectory, sampler, _ = await play(SINGLE, world.workers_saying(n1="word " * 3000), protocol=protocol)
    assert (trajectory.status, trajectory.violation) == (Status.EXHAUSTED, None)
    assert trajectory.cause == "response_budget"
    assert len(sampler.requests) == 2 and len(trajectory.calls) == 1
    assert len(trajectory.tokens) - trajectory.prompt_length <= 900


async def test_log_probs_stand_at_sampled_tokens_only(play, codec, world, protocol, query):
    class Unsure(world.RecordingSampler):
        async def generate(self, request):
            turn = await super().generate(request)
            return SampledTurn(turn.tokens, -np.arange(1, len(turn.tokens) + 1, dtype=np.float32), turn.stop)

    trajectory = await run_episode(
        query,
        0,
        0,
        None,
        step=1,
        protocol=protocol,
        sampler=Unsure(codec, world.turns(*SINGLE)),
        workers=world.workers_saying(),
        policy_version=0,
    )
    is_policy = np.isin(trajectory.segments, POLICY_SEGMENTS)
    lengths = [len(codec.encode_text(text)) for text in SINGLE]
    expected = np.concatenate([-np.arange(1, n + 1) for n in lengths])
    np.testing.assert_array_equal(trajectory.sampled_logprobs[is_policy], expected)
    assert not trajectory.sampled_logprobs[~is_policy].any()
    assert trajectory.sampled_logprobs.dtype == np.float32


async def test_trajectory_that_contradicts_itself_is_an_error(play):
    trajectory, _, _ = await play(SINGLE)
    check_trajectory(trajectory)
    unsampled = np.where(np.isin(trajectory.segments, POLICY_SEGMENTS), J, trajectory.segments)
    with pytest.raises(RuntimeError, match="without a single policy token"):
        check_trajectory(dataclasses.replace(trajectory, segments=unsampled))
    with pytest.raises(RuntimeError, match="tokens"):
        check_trajectory(dataclasses.replace(trajectory, tokens=trajectory.tokens[:-1]))
    for place, value in ((-1, np.nan), (0, -1.0)):
        logprobs = trajectory.sampled_logprobs.copy()
        logprobs[place] = value
        with pytest.raises(RuntimeError, match="log-probs"):
            check_trajectory(dataclasses.replace(trajectory, sampled_logprobs=logprobs))
