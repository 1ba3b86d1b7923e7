"""The event simulation against cases worked by hand, and against bounds that no schedule escapes."""

import itertools

import pytest
import rollout_simulation as simulation
from rollout_simulation import Lengths, Turn

NO_LENGTH = Lengths(0, 0)


def one_second(k: int, context: float) -> float:
    return 1.0


def seconds_of_slots(k: int, context: float) -> float:
    return float(k)


def test_a_trajectory_alone_is_the_sum_of_its_parts():
    alone = [(Turn(4, 10.0), Turn(6, None))]
    for simulated in (
        simulation.asynchronous(alone, one_second, 1, NO_LENGTH)[-1],
        simulation.turn_barrier(alone, one_second, 1, NO_LENGTH),
        simulation.lower_bound(alone, one_second, 1, NO_LENGTH),
    ):
        assert simulated == pytest.approx(4 + 10 + 6)


def test_a_slot_is_free_while_its_trajectory_waits_for_a_worker():
    two = [(Turn(2, 5.0), Turn(1, None)), (Turn(4, 1.0), Turn(3, None))]
    # First: samples 0-2, Worker until 7, then 1 token. Second: samples 2-6, Worker until 7, and queues behind it.
    assert simulation.asynchronous(two, one_second, 1, NO_LENGTH) == pytest.approx([8, 11])
    # Both sample until 6, wait for the slower Worker until 11, and sample until 15.
    assert simulation.turn_barrier(two, one_second, 1, NO_LENGTH) == pytest.approx(15)


def test_slots_at_work_share_the_engine():
    two = [(Turn(2, None),), (Turn(5, None),)]
    # Two tokens of both take 2 s each, the other three of the second 1 s each.
    assert simulation.asynchronous(two, seconds_of_slots, 2, NO_LENGTH) == pytest.approx([4, 7])
    assert simulation.lower_bound(two, seconds_of_slots, 2, NO_LENGTH) == pytest.approx(7)


def test_a_trajectory_that_arrives_slows_those_at_work():
    two = [(Turn(1, 3.0), Turn(1, None)), (Turn(4, None),)]
    # Both at 2 s a token until 2; the second alone, at 1 s, until 5, which are its other three tokens; then the first.
    assert simulation.asynchronous(two, seconds_of_slots, 2, NO_LENGTH) == pytest.approx([5, 6])
    # With two tokens more, the second shares the time from 5 on: both need one token until 7, and it another until 8.
    longer = [two[0], (Turn(6, None),)]
    assert simulation.asynchronous(longer, seconds_of_slots, 2, NO_LENGTH) == pytest.approx([7, 8])


def test_time_a_token_follows_slots_and_context():
    step = simulation.table_time([(1, 100, 1.0), (1, 200, 2.0), (3, 100, 3.0), (3, 200, 6.0)])
    assert step(1, 100) == 1 and step(3, 200) == 6
    assert step(2, 100) == 2 and step(1, 150) == 1.5 and step(2, 150) == 3
    assert step(5, 100) == 5 and step(1, 50) == 1 and step(3, 1000) == 6
    long = [(Turn(10, 0.0), Turn(10, None))]
    # The second turn begins at 100 + 10 + 90 tokens.
    assert simulation.asynchronous(long, step, 1, Lengths(100, 90))[-1] == pytest.approx(10 * 1 + 10 * 2)


@pytest.mark.parametrize("slots", (1, 4, 64))
def test_no_schedule_is_shorter_than_the_bound(slots):
    for seed, tokens in itertools.product(range(3), (5, 50)):
        some = simulation.drawn(20, tokens, 1.0, seed)
        bound = simulation.lower_bound(some, one_second, slots, NO_LENGTH)
        ends = simulation.asynchronous(some, one_second, slots, NO_LENGTH)
        barrier = simulation.turn_barrier(some, one_second, slots, NO_LENGTH)
        assert len(ends) == 20 and ends == sorted(ends)
        assert bound <= ends[-1] + 1e-6 <= barrier + 1e-5


def test_drawn_trajectories_are_as_told():
    many = simulation.drawn(4000, 64, 0.5, seed=1)
    assert {len(trajectory) for trajectory in many} == set(range(1, 9))
    assert all(trajectory[-1].worker_s is None for trajectory in many)
    calls = sorted(turn.worker_s for trajectory in many for turn in trajectory[:-1])
    assert calls[len(calls) // 2] == pytest.approx(1.5, rel=0.05)
    assert calls[int(0.95 * len(calls))] == pytest.approx(6.0, rel=0.15)
    assert sum(seconds == 30.0 for seconds in calls) / len(calls) == pytest.approx(0.01, abs=0.004)
    assert simulation.drawn(3, 64, 0.5, seed=1) == many[:3]
