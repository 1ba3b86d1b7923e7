"""Rates per minute, asked-for waits and felt-for limits, in virtual time: a loop whose clock jumps when it idles."""

import asyncio
import math
import random
import selectors

import pytest

from rw.errors import ConfigError
from rw.workers.adaptive import AdaptiveLimit, AdaptiveRate, Levels
from rw.workers.admission import AdmissionLimit
from rw.workers.config import WorkerEndpoint
from rw.workers.limits import ConcurrencyLimits, Permits
from rw.workers.pacing import Pace


class JumpingSelector(selectors.SelectSelector):
    """Never waits: the time that it was to wait passes at once."""

    now_s = 1000.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout:
            self.now_s += timeout
        return ready


def in_virtual_time(coroutine):
    """Runs it to its end; one that waits for what never happens would hang."""
    selector = JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


def clock() -> float:
    return asyncio.get_running_loop().time()


def pace_of(**fields) -> Pace:
    return Pace(**fields, clock=clock, sleep=asyncio.sleep)


async def sent_at(pace: Pace, count: int, tokens: int = 1) -> list[float]:
    """When `count` requests that come at once are let through, in the order in which they came."""
    times: list[float] = [0.0] * count

    async def send(index):
        times[index] = (await pace.admit(tokens)).at_s

    await asyncio.gather(*(send(i) for i in range(count)))
    return times


def most_in_a_minute(times: list[float]) -> int:
    return max(sum(begin <= t < begin + 60 for t in times) for begin in times)


def test_requests_are_evenly_spaced_and_in_order():
    times = in_virtual_time(sent_at(pace_of(requests_per_minute=120.0), 300))
    assert times == sorted(times)
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert min(gaps) >= 0.5 - 1e-9 and most_in_a_minute(times) == 120
    assert times[-1] - times[0] < 1.01 * 299 * 0.5


def test_late_timers_do_not_slow_the_rate_and_never_exceed_it():
    draw = random.Random(3)

    async def late(seconds):
        await asyncio.sleep(seconds + draw.random() * 0.04)

    async def run():
        return await sent_at(Pace(600.0, None, clock, late), 1500)

    times = in_virtual_time(run())
    assert most_in_a_minute(times) <= 600 and times[-1] - times[0] < 1.02 * 1499 * 0.1


def test_time_without_requests_gives_no_credit():
    async def run():
        pace = pace_of(requests_per_minute=60.0)
        await sent_at(pace, 2)
        await asyncio.sleep(600)
        return await sent_at(pace, 5)

    times = in_virtual_time(run())
    assert [round(t - times[0]) for t in times] == [0, 1, 2, 3, 4]


def test_tokens_are_counted_over_every_minute_at_their_bound():
    times = in_virtual_time(sent_at(pace_of(tokens_per_minute=1000.0), 35, tokens=100))
    assert [sum(begin <= t < begin + 60 for t in times) for begin in times[:1]] == [10]
    assert most_in_a_minute(times) == 10 and times[-1] - times[0] == pytest.approx(180.0)


def test_short_replies_give_their_tokens_back():
    async def run():
        pace = pace_of(tokens_per_minute=1000.0)
        times = []
        for _ in range(100):
            sending = await pace.admit(500)
            times.append(sending.at_s)
            pace.settle(sending, 10)
        sending = await pace.admit(500)
        pace.settle(sending, None)  # nobody knows: it stays at its bound
        return times, [(await pace.admit(400)).at_s - clock(), (await pace.admit(400)).at_s - sending.at_s]

    times, (_, waited_s) = in_virtual_time(run())
    assert times[49] - times[0] == 0 and times[99] - times[0] == pytest.approx(60.0, abs=0.5)
    assert waited_s >= 59


def test_waiting_request_goes_when_tokens_come_back_early():
    async def run():
        pace = pace_of(tokens_per_minute=1000.0)
        first = await pace.admit(900)
        second = asyncio.create_task(pace.admit(900))
        await asyncio.sleep(5)
        pace.settle(first, 50)
        return (await second).at_s - first.at_s

    assert 5.0 <= in_virtual_time(run()) < 5.5


def test_request_above_the_limit_by_itself_goes_when_nothing_else_counts():
    async def run():
        pace = pace_of(tokens_per_minute=100.0)
        return [(await pace.admit(5000)).at_s for _ in range(3)]

    times = in_virtual_time(run())
    assert [t - times[0] for t in times] == [0.0, pytest.approx(60.0), pytest.approx(120.0)]


def test_cancelled_waiters_take_nothing_and_hold_up_nobody():
    async def run():
        pace = pace_of(requests_per_minute=6.0)
        await pace.admit(1)
        tasks = [asyncio.create_task(pace.admit(1)) for _ in range(5)]
        await asyncio.sleep(5)
        for task in (tasks[0], tasks[2], tasks[3]):  # the one whose turn it is, and two behind it
            task.cancel()
        begun = clock()
        kept = await asyncio.gather(tasks[1], tasks[4])
        return [sending.at_s - begun for sending in kept]

    first_s, second_s = in_virtual_time(run())
    assert first_s == pytest.approx(5.0, abs=0.1) and second_s == pytest.approx(15.0, abs=0.1)


def test_asked_for_wait_holds_back_all_and_then_keeps_the_spacing():
    async def run():
        pace = pace_of(requests_per_minute=60.0)
        await pace.admit(1)
        waiting = asyncio.create_task(sent_at(pace, 3))
        await asyncio.sleep(0.5)
        begun = clock()
        pace.hold_back(20.0)
        pace.hold_back(5.0)  # a shorter one takes nothing back
        return [t - begun for t in await waiting]

    times = in_virtual_time(run())
    assert times == [pytest.approx(20 + i, abs=0.1) for i in range(3)] and times[1] - times[0] >= 1.0


def test_rates_must_be_positive():
    for name in ("requests_per_minute", "tokens_per_minute"):
        for value in (0, -1.0, float("nan")):
            with pytest.raises(ConfigError, match=f"w: {name}"):
                WorkerEndpoint("w", "d", "http://h/v1", "m", **{name: value})


def test_permits_follow_their_limit_and_report_their_peak():
    async def run():
        limit = AdaptiveLimit(most=8, first=2)
        permits = Permits(8, limit)
        takers = [asyncio.create_task(permits.acquire()) for _ in range(5)]
        await asyncio.sleep(0)
        assert (permits.in_flight, permits.waiting, permits.limit) == (2, 3, 2)
        permits.succeeded(0.0)
        assert (permits.in_flight, permits.limit) == (3, 3)
        permits.rejected(0.0, 0.0)
        permits.release()
        assert (permits.in_flight, permits.limit) == (2, 2)
        permits.release()
        permits.release()
        await asyncio.gather(*takers)
        assert (permits.in_flight, permits.take_peak()) == (2, 3)
        permits.release()
        assert (permits.take_peak(), permits.in_flight) == (2, 1)

    asyncio.run(run())


def test_limit_grows_fast_at_first_and_slowly_after_a_rejection():
    limit = AdaptiveLimit(most=100, first=10)
    for _ in range(30):
        limit.succeeded(0.0)
    assert limit.value == 40
    for _ in range(4):
        limit.rejected(0.0, 0.0)
    assert limit.value == 36
    successes = 0
    while limit.value == 36:
        limit.succeeded(0.0)
        successes += 1
    assert 30 < successes < 60
    for _ in range(200):
        limit.rejected(0.0, 0.0)
    assert limit.value == 1  # never less
    for _ in range(30):
        limit.succeeded(0.0)
    assert limit.value >= 18  # fast again, to half of where the rejections began


def test_nothing_grows_while_a_rejection_with_a_long_wait_is_recent():
    limit = AdaptiveLimit(most=100, first=50)
    limit.rejected(0.0, 2.0)
    limit.succeeded(39.0)
    assert limit.value == 49
    limit = AdaptiveLimit(most=100, first=50)
    limit.rejected(0.0, 600.0)
    for _ in range(100):
        limit.succeeded(61.0)
    assert limit.value > 49


def test_a_few_rejections_do_not_make_a_rate():
    rate = AdaptiveRate()
    for index in range(1000):
        now_s = index * 0.1
        rate.sent(now_s)
        (rate.rejected if index % 100 == 0 else rate.succeeded)(now_s, now_s, 0.0)
    assert rate.interval_s == 0.0


def test_rejections_above_all_accepted_levels_are_about_concurrency():
    levels = Levels()
    assert not levels.is_about_concurrency(99)  # nothing is known yet
    for index in range(40):
        levels.accepted(1 + index % 8)
    assert levels.is_about_concurrency(9) and not levels.is_about_concurrency(8)


async def drive(serve, calls: int, most: int, latency, settle_s: float) -> tuple[float, float, float]:
    """(accepted a second, share rejected) after `settle_s`, and the longest time without an accepted call."""
    limits, pace = ConcurrencyLimits({"w": most}, clock, adaptive=True), pace_of(adaptive=True)
    accepted, rejected = [], []

    async def call():
        async with limits.hold("w"):
            for retry in range(1000):
                sending = await pace.admit(1)
                taken = serve()
                if taken:
                    await asyncio.sleep(latency())
                    taken()
                pace.settle(sending, 1)
                if taken:
                    limits.succeeded("w")
                    pace.succeeded(sending)
                    accepted.append(sending.at_s)
                    return
                rejected.append(sending.at_s)
                if not pace.rejected(sending, 0.0):
                    limits.rejected("w", 0.0)
                await asyncio.sleep(min(60, 2**retry) * 0.75)

    begun = clock()
    await asyncio.gather(*(call() for _ in range(calls)))
    accepted.sort()
    end = accepted[-most]  # then the last calls run out
    window = [t for t in accepted if begun + settle_s <= t < end]
    lost = [t for t in rejected if begun + settle_s <= t < end]
    longest_s = max(b - a for a, b in zip(accepted, accepted[1:], strict=False))
    return len(window) / (end - begun - settle_s), len(lost) / (len(lost) + len(window)), longest_s


def lognormal(seed: int):
    draw = random.Random(seed)
    return lambda: math.exp(draw.gauss(math.log(3), 0.8))


@pytest.mark.parametrize("burst", [1, 10])
@pytest.mark.parametrize("rate", [1.0, 4.0, 12.0])
def test_limiting_server_gives_nine_tenths_of_its_rate_and_rejects_few(rate, burst):
    async def run():
        server = AdmissionLimit(60 * rate, burst, clock)
        return await drive(
            lambda: (lambda: None) if server.retry_after_s("m") is None else None,
            calls=int(600 * rate) + 256,
            most=256,
            latency=lognormal(1),
            settle_s=120.0,
        )

    accepted, rejected, longest_s = in_virtual_time(run())
    assert 0.9 * rate <= accepted <= 1.05 * rate and rejected < 0.05 and longest_s < 30


@pytest.mark.parametrize("at_once", [16, 40])
def test_server_that_takes_so_many_at_once_is_kept_busy_and_rejects_few(at_once):
    async def run():
        active = 0

        def serve():
            nonlocal active
            if active >= at_once:
                return None
            active += 1

            def done():
                nonlocal active
                active -= 1

            return done

        return await drive(serve, calls=100 * at_once, most=64, latency=lognormal(2), settle_s=180.0)

    accepted, rejected, longest_s = in_virtual_time(run())
    assert accepted > 0.85 * at_once / (3 * math.exp(0.32)) and rejected < 0.05 and longest_s < 60


def test_server_without_a_limit_is_not_slowed():
    async def run():
        return await drive(lambda: lambda: None, calls=2000, most=64, latency=lognormal(3), settle_s=30.0)

    accepted, rejected, _ = in_virtual_time(run())
    assert accepted > 0.95 * 64 / (3 * math.exp(0.32)) and rejected == 0
