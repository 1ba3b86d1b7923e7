"""Arms on recorded answers: literal verdicts and costs, the choice of each arm, and the same by real episodes."""

import asyncio
import collections
import dataclasses

import pytest

from rw.data.cut_tokenizer import TARGET as TOKENIZER
from rw.data.replay import NQ6_MODELS, RecordedAnswer, load_nq6, split
from rw.errors import DataError
from rw.evaluation.outcomes import outcome
from rw.evaluation.recorded import Neighbours, recorded_arms
from rw.evaluation.recorded_matrices import nq6_matrix
from rw.protocol.chat import TokenCodec
from rw.protocol.config import ProtocolConfig
from rw.protocol.dialogue import RouterProtocol
from rw.protocol.framing import cut_middle
from rw.protocol.prompts import Prompts
from rw.rollout.episode import run_episode
from rw.sampler.scripted import ScriptedSampler
from rw.scoring import SCORERS
from rw.simulation.policies import FixedWorker, script
from rw.types import Group, Mode, Query, ScoredTrajectory
from rw.workers.http import HttpWorkerClient
from rw.workers.pricing import PriceTable
from rw.workers.replay_pool import recorded_endpoints, serve_recorded

ALL = ("trained", "scripted", "random", "knn", "oracle")
WORKERS = [model.id for model in NQ6_MODELS]


def ask(number: int, question: str) -> Query:
    return Query(f"q{number}", "nq", "recall", question, (f"right {number}",), {"question": question})


def said(*, right: str, number: int, **costs: float) -> dict[str, RecordedAnswer]:
    """Answers to question `number`: those of the Workers in `right` are right; costs in millionths of a USD."""
    return {
        model.model: RecordedAnswer(
            model.model,
            f"So: <answer>{'right' if model.id[-1] in right else 'wrong'} {number}.</answer>",
            10,
            costs.get(f"w{model.id[-1]}", 5.0) / 1e6,
            0.0,
            "stop",
        )
        for model in NQ6_MODELS
    }


TRAIN = [ask(1, "who sang the blue song"), ask(2, "who sang a red song"), ask(3, "what year was the war")]
TEST = [ask(4, "who sang the green song"), ask(5, "what year began the war"), ask(6, "zebra")]
ANSWERS = {
    query.metadata["question"]: said(number=number, **fields)
    for number, (query, fields) in enumerate(
        zip(
            (*TRAIN, *TEST),
            (
                {"right": "2"},
                {"right": "24"},
                {"right": "56", "w5": 4.0},
                {"right": "136", "w3": 2.0, "w6": 3.0, "w1": 9.0},
                {"right": "2", "w2": 8.0},
                {"right": "", "w4": 1.0},
            ),
            strict=True,
        ),
        start=1,
    )
}


@pytest.fixture(scope="module")
def arms():
    return recorded_arms(TRAIN, TEST, ANSWERS, 7, ALL, neighbours=1)


def workers(outcomes):
    return ["/".join(one.workers) for one in outcomes]


def test_every_arm_answers_every_test_question_in_order(arms):
    assert sorted(arms) == ["knn", "oracle", "random", *(f"scripted_{name}" for name in WORKERS)]
    for outcomes in arms.values():
        assert [one.query_id for one in outcomes] == ["q4", "q5", "q6"]
        assert {(one.kind, one.mode, one.status) for one in outcomes} == {("recall", "single", "answered")}
    assert recorded_arms(TRAIN, TEST, ANSWERS, 7, ("trained", "forced")) == {}


def test_fixed_workers_get_their_own_verdicts_and_costs(arms):
    right = {name: [one.correct for one in arms[f"scripted_{name}"]] for name in WORKERS}
    assert right == {
        "worker_1": [True, False, False],
        "worker_2": [False, True, False],
        "worker_3": [True, False, False],
        "worker_4": [False] * 3,
        "worker_5": [False] * 3,
        "worker_6": [True, False, False],
    }
    assert [one.cost_usd for one in arms["scripted_worker_1"]] == [9e-6, 5e-6, 5e-6]
    assert [one.cost_usd for one in arms["scripted_worker_4"]] == [5e-6, 5e-6, 1e-6]


def test_oracle_takes_the_cheapest_right_worker_and_else_the_cheapest(arms):
    assert workers(arms["oracle"]) == ["worker_3", "worker_2", "worker_4"]
    assert [one.correct for one in arms["oracle"]] == [True, True, False]
    assert [one.cost_usd for one in arms["oracle"]] == [2e-6, 8e-6, 1e-6]


def test_nearest_neighbours_ask_whom_they_were_answered_by(arms):
    # q4 is most like q1, which worker_2 alone got right; q5 like q3: workers 5 and 6, of which 5 was cheaper; q6 shares
    # no word, so the first training question stands for all.
    assert workers(arms["knn"]) == ["worker_2", "worker_5", "worker_2"]
    assert [one.correct for one in arms["knn"]] == [False, False, False]


def test_more_neighbours_outvote_the_nearest():
    chosen = Neighbours(nq6_matrix(TRAIN, ANSWERS), neighbours=3).choose(TEST[1].metadata["question"])
    assert WORKERS[chosen] == "worker_2"  # right on two of three


def test_likeness_is_the_cosine_of_tf_idf_vectors():
    neighbours = Neighbours(nq6_matrix(TRAIN, ANSWERS))
    # who, sang, the, song stand in two of three questions: idf ln(4/3) + 1; blue and others in one: ln(4/2) + 1
    common, rare = 1.287682, 1.693147
    vector = neighbours._vector(collections.Counter(["who", "sang", "the", "blue", "song", "unseen"]))
    length = (4 * common**2 + rare**2) ** 0.5
    assert vector == pytest.approx(
        {**dict.fromkeys(("who", "sang", "the", "song"), common / length), "blue": rare / length}
    )


def test_random_workers_are_drawn_by_seed_and_question_alone(arms):
    queries, _, answers = load_nq6()
    draws = recorded_arms((), queries, answers, 0, ("random",))["random"]
    counts = collections.Counter(workers(draws))
    assert set(counts) == set(WORKERS) and min(counts.values()) >= 35  # 53 each is the mean
    backwards = recorded_arms((), queries[::-1], answers, 0, ("random",))["random"]
    assert backwards[::-1] == draws != recorded_arms((), queries, answers, 1, ("random",))["random"]


def test_neighbours_need_training_questions():
    with pytest.raises(DataError, match="knn needs training questions"):
        recorded_arms((), TEST, ANSWERS, 0, ("knn",))


def test_the_recorded_accuracies():
    queries, _, answers = load_nq6()
    arms = recorded_arms((), queries, answers, 0, ("scripted", "oracle"))
    assert {arm: sum(one.correct for one in outcomes) for arm, outcomes in arms.items()} == {
        "scripted_worker_1": 105,
        "scripted_worker_2": 47,
        "scripted_worker_3": 59,
        "scripted_worker_4": 18,
        "scripted_worker_5": 50,
        "scripted_worker_6": 24,
        "oracle": 133,
    }


def test_questions_of_the_split_never_meet():
    queries, _, answers = load_nq6()
    for seed in range(20):
        train, validation, test = split(queries, seed, 120, 40)
        assert len({query.id for query in (*train, *validation, *test)}) == 320
        assert (len(train), len(validation), len(test)) == (160, 40, 120)


def test_cutting_long_replies_hides_no_right_answer():
    """At an observation limit of 160 tokens, wrapper included: 364 replies are cut and no verdict changes."""
    queries, _, answers = load_nq6()
    codec = TokenCodec.from_file(TOKENIZER)
    marker, room = codec.encode_text("\ncut\n"), 160 - len(codec.encode_text("<observation></observation>"))
    whole, cut = nq6_matrix(queries, answers), 0
    for query, row in zip(queries, whole.cells, strict=True):
        replies = answers[query.metadata["question"]]
        shown = {}
        for model, answer in replies.items():
            body = codec.encode_text(answer.text)
            cut += len(body) > room
            text = codec.decode(cut_middle(body, marker, room, codec)) if len(body) > room else answer.text
            shown[model] = RecordedAnswer(model, text, 1, 0.0, 0.0, "stop")
        limited = nq6_matrix([query], {query.metadata["question"]: shown}).cells[0]
        assert [cell.correct for cell in row] == [cell.correct for cell in limited]
    assert cut > 300


async def episodes(queries, cards, answers, worker_id):
    """Real episodes over HTTP that ask one Worker and copy its reply's answer."""
    limits = ProtocolConfig(templates="short", prompt_limit=256, response_budget=1024, observation_limit=160)
    protocol = RouterProtocol(TokenCodec.from_file(TOKENIZER), Prompts.load("short"), cards, limits)
    by_id = {query.id: query for query in queries}
    server = await serve_recorded(answers)
    endpoints = recorded_endpoints(server.base_url, NQ6_MODELS)
    client = HttpWorkerClient(endpoints, PriceTable.from_endpoints(endpoints), None)
    sampler = ScriptedSampler(protocol.codec, script(FixedWorker(Mode.SINGLE, worker_id), by_id.__getitem__))
    shared = {"step": 0, "protocol": protocol, "sampler": sampler, "workers": client, "policy_version": 0}
    try:
        return await asyncio.gather(*(run_episode(query, n, 0, None, **shared) for n, query in enumerate(queries)))
    finally:
        await client.close()
        await server.close()


OF_A_ROLLOUT = (
    "verdict", "latency_s", "worker_input_tokens", "worker_output_tokens", "router_input_tokens", "router_output_tokens"
)  # fmt: skip


@pytest.mark.parametrize("worker_id", ["worker_1", "worker_3"])
async def test_an_arm_is_what_episodes_measure(worker_id):
    queries, cards, answers = load_nq6()
    chosen = queries[::8]
    arm = recorded_arms((), chosen, answers, 0, ("scripted",))[f"scripted_{worker_id}"]
    assert 4 <= sum(one.correct for one in arm) < 40
    for query, expected, trajectory in zip(chosen, arm, await episodes(chosen, cards, answers, worker_id), strict=True):
        scored = ScoredTrajectory(trajectory, SCORERS[query.dataset](trajectory.answer, query))
        measured = outcome(Group(0, query, None, (scored,)), scored)
        unrecorded = {name: getattr(measured, name) for name in ("cost_usd", *OF_A_ROLLOUT)}
        assert measured == dataclasses.replace(expected, **unrecorded)
        assert measured.cost_usd == pytest.approx(expected.cost_usd, rel=1e-12)
