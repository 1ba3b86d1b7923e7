"""Caps on spending: a call is sent only where its worst case fits beside all that was spent and all that is in flight.

    spent (what Workers reported, and the worst case of what they may have billed unseen) + reserved <= cap

holds at every moment for every cap, as long as no Worker bills more than the worst case of a request. Amounts are whole
picodollars inside, so that sums are exact. Knows nothing of requests, tokens or prices.
"""

from __future__ import annotations

import asyncio
import collections
import copy
import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence

from rw.errors import BudgetExhaustedError, ConfigError
from rw.workers.spending import Spent

_LOG = logging.getLogger(__name__)
PICO = 10**12  # picodollars in a dollar


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """Caps in USD, which a continued run may change; None is no cap, 0 lets only Workers without a price answer."""

    run_usd: float | None = None  # all that the workdir's ledger holds: warm start, training, evaluations, killed runs
    step_usd: float | None = None  # one step of training, with what it had spent before an interruption
    worker_usd: float | None = None  # each Worker, over the whole run
    workers_usd: Mapping[str, float] = dataclasses.field(default_factory=dict)  # by Worker id, before worker_usd

    def __post_init__(self):
        named = {f"workers_usd.{worker_id}": usd for worker_id, usd in self.workers_usd.items()}
        named |= {name: getattr(self, name) for name in ("run_usd", "step_usd", "worker_usd")}
        for name, usd in named.items():
            is_number = isinstance(usd, (int, float)) and not isinstance(usd, bool)
            if usd is not None and not (is_number and math.isfinite(usd) and usd >= 0):
                raise ConfigError(f"budget.{name}={usd!r} must be a number of USD >= 0, or None for no cap")

    def of_worker(self, worker_id: str) -> tuple[str, float | None]:
        """(config key, cap in USD) of a Worker."""
        if worker_id in self.workers_usd:
            return f"budget.workers_usd.{worker_id}", self.workers_usd[worker_id]
        return "budget.worker_usd", self.worker_usd


@dataclasses.dataclass(frozen=True)
class HostSpending:
    """What one host has spent or holds in reserve, in picodollars."""

    run: int
    step: int
    by_worker: Mapping[str, int]


@dataclasses.dataclass(eq=False)
class _Account:
    """What counts against one cap, in picodollars; `limit` is this host's share of the cap."""

    key: str
    cap_usd: float | None
    limit: int | None
    spent: int = 0
    unknown: int = 0
    reserved: int = 0

    def fits(self, amount: int) -> bool:
        return self.limit is None or self.spent + self.reserved + amount <= self.limit

    def can_ever_fit(self, amount: int) -> bool:
        return self.limit is None or self.spent + amount <= self.limit


@dataclasses.dataclass(eq=False)
class _Waiter:
    worker_id: str
    amount: int
    granted: asyncio.Future[None]


class Budget:
    """Lets calls through in the order in which they come, as far as the caps go. Belongs to one event loop.

    A call that waits holds up those behind it that draw on the cap it waits for, and no others. Once a call could not
    be let through even with nothing in flight, none is let through any more: the calls in flight are waited for, since
    they are paid, and then every waiting call raises.
    """

    def __init__(self, config: BudgetConfig, before: Spent | None = None, hosts: int = 1):
        """Counts from `before`, what the ledger says was spent before this process began.

        Args:
            hosts: among how many the caps are split, equally until `rebalance` is called.
        """
        before = copy.deepcopy(before or Spent())
        self._config, self._before, self._hosts = config, before, hosts
        self._run = self._account("budget.run_usd", config.run_usd, before.total_usd)
        self._run.unknown = _pico(before.unknown_usd)
        self._step = self._account("budget.step_usd", None)
        self._workers: dict[str, _Account] = {}
        self._waiting: collections.deque[_Waiter] = collections.deque()
        self._in_flight = 0
        self._exhausted: str | None = None  # the message, from the first call on that cannot be let through
        self._overrun: set[str] = set()
        for worker_id in before.by_worker_usd:
            self._of_worker(worker_id)

    @property
    def spent_usd(self) -> float:
        """Spent in the run, unknown spending included."""
        return self._run.spent / PICO

    @property
    def unknown_usd(self) -> float:
        """The part of `spent_usd` that no Worker reported: worst cases of attempts that may have been billed."""
        return self._run.unknown / PICO

    @property
    def reserved_usd(self) -> float:
        """Worst case of the calls in flight."""
        return self._run.reserved / PICO

    def metrics(self) -> dict[str, float | str]:
        """`cost/cap`: the cap of the run or of a Worker that is used most, `cost/cap_share`: the spent part of it."""
        caps = [account for account in (self._run, *self._workers.values()) if account.limit]
        if not caps:
            return {}
        nearest = max(caps, key=lambda account: account.spent / account.limit)
        return {"cost/cap": nearest.key, "cost/cap_share": nearest.spent / nearest.limit}

    async def reserve(self, worker_id: str, worst_case_usd: float) -> None:
        """Waits until an attempt of this worst case may be sent; `settle` must follow, once, whatever becomes of it.

        Raises:
            BudgetExhaustedError: the attempt would break a cap even with nothing in flight.
        """
        waiter = _Waiter(worker_id, _pico(worst_case_usd), asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._let_through()
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)  # it may have stood in the way of others
            elif waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
                self._give_back(waiter.worker_id, waiter.amount)  # granted, and cancelled before it could run
            self._let_through()
            raise

    def settle(self, worker_id: str, worst_case_usd: float, spent_usd: float, unknown_usd: float = 0.0) -> None:
        """Gives a reservation back and adds what the attempt cost.

        Args:
            spent_usd: what was, or may have been, billed.
            unknown_usd: the part of it that the Worker did not report.
        """
        reserved, spent, unknown = _pico(worst_case_usd), _pico(spent_usd), _pico(unknown_usd)
        self._give_back(worker_id, reserved)
        for account in self._accounts(worker_id):
            account.spent += spent
            account.unknown += unknown
        if spent > reserved and worker_id not in self._overrun:
            self._overrun.add(worker_id)
            _LOG.warning(
                "%s billed %.6g USD for a request whose worst case was %.6g USD; its caps can be exceeded by as much",
                worker_id,
                spent_usd,
                worst_case_usd,
            )
        self._let_through()

    def begin_step(self, step: int) -> None:
        """A step of training begins: its cap counts from what it had spent before an interruption."""
        self._set_step(self._config.step_usd, self._before.by_step_usd.get(step, 0.0))

    def end_step(self) -> None:
        """Until the next step begins, no call counts as one of a step."""
        self._set_step(None, 0.0)

    def report(self) -> HostSpending:
        """What this host has spent or holds in reserve."""
        by_worker = {worker_id: account.spent + account.reserved for worker_id, account in self._workers.items()}
        return HostSpending(self._run.spent + self._run.reserved, self._step.spent + self._step.reserved, by_worker)

    def rebalance(self, spent_by_host: Sequence[HostSpending], host: int) -> None:
        """Splits the caps anew; every host calls it with the same reports, between which nobody spends.

        Args:
            spent_by_host: the `report` of every host.
            host: the index of this one.
        """
        self._hosts = len(spent_by_host)
        for other in spent_by_host:
            for worker_id in other.by_worker:
                self._of_worker(worker_id)
        self._share(self._run, [spending.run for spending in spent_by_host], host)
        self._share(self._step, [spending.step for spending in spent_by_host], host)
        for worker_id, account in self._workers.items():
            self._share(account, [spending.by_worker.get(worker_id, 0) for spending in spent_by_host], host)
        self._let_through()

    def _share(self, account: _Account, spent: Sequence[int], host: int) -> None:
        if account.cap_usd is not None:
            account.limit = host_shares(_pico_cap(account.cap_usd), spent)[host]

    def _account(self, key: str, cap_usd: float | None, spent_usd: float = 0.0) -> _Account:
        limit = None if cap_usd is None else _pico_cap(cap_usd) // self._hosts
        return _Account(key, cap_usd, limit, _pico(spent_usd))

    def _of_worker(self, worker_id: str) -> _Account:
        if worker_id not in self._workers:
            spent_usd = self._before.by_worker_usd.get(worker_id, 0.0)
            self._workers[worker_id] = self._account(*self._config.of_worker(worker_id), spent_usd)
        return self._workers[worker_id]

    def _accounts(self, worker_id: str) -> tuple[_Account, ...]:
        return self._run, self._step, self._of_worker(worker_id)

    def _set_step(self, cap_usd: float | None, spent_usd: float) -> None:
        # The same account lives on, so that what is in flight across the border is never forgotten.
        fresh = self._account("budget.step_usd", cap_usd, spent_usd)
        fresh.reserved = self._step.reserved
        self._step = fresh
        self._let_through()

    def _give_back(self, worker_id: str, amount: int) -> None:
        for account in self._accounts(worker_id):
            account.reserved -= amount
        self._in_flight -= 1

    def _let_through(self) -> None:
        """Grants whatever may be granted now, in order."""
        held_up: list[_Account] = []  # accounts that an earlier waiter waits for
        for waiter in tuple(self._waiting):
            if self._exhausted is not None or self._run in held_up:
                break
            if waiter.granted.done():  # cancelled, and about to leave
                continue
            accounts = self._accounts(waiter.worker_id)
            hopeless = next((account for account in accounts if not account.can_ever_fit(waiter.amount)), None)
            if hopeless is not None:
                self._exhausted = self._message(hopeless, waiter)
                if self._in_flight:
                    _LOG.warning("%s is used up; requests in flight are waited for: %d", hopeless.key, self._in_flight)
            elif full := [account for account in accounts if not account.fits(waiter.amount)]:
                held_up += full
            elif not any(account in held_up for account in accounts):
                self._waiting.remove(waiter)
                self._in_flight += 1
                for account in accounts:
                    account.reserved += waiter.amount
                waiter.granted.set_result(None)
        if self._exhausted is not None and not self._in_flight:
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.granted.done():
                    waiter.granted.set_exception(BudgetExhaustedError(self._exhausted))

    def _message(self, account: _Account, waiter: _Waiter) -> str:
        share = "" if self._hosts == 1 else f" (this host's share: {account.limit / PICO:.6g})"
        unknown = f", {account.unknown / PICO:.6g} of them unreported" if account.unknown else ""
        return (
            f"{account.key}={account.cap_usd:g} USD{share} leaves no room: {account.spent / PICO:.6g} USD are spent"
            f"{unknown}, and a call to {waiter.worker_id} may cost up to {waiter.amount / PICO:.6g} USD; raise "
            f"{account.key}, and the same command continues the run"
        )


def host_shares(cap: int, spent: Sequence[int]) -> tuple[int, ...]:
    """How much each host may have spent in all: what it has spent, and an equal part of what is left.

    Args:
        cap: of all hosts together, in picodollars.
        spent: by host, what it has spent or holds in reserve, in picodollars.

    Returns:
        Limits whose sum is exactly `cap`; below what they have spent where the cap is exceeded.
    """
    part, extra = divmod(cap - sum(spent), len(spent))
    return tuple(own + part + (host < extra) for host, own in enumerate(spent))


def _pico(usd: float) -> int:
    """Rounded up: money is never spent that was not counted."""
    if not (math.isfinite(usd) and usd >= 0):
        raise ValueError(f"{usd} is no amount of USD")
    return math.ceil(usd * PICO)


def _pico_cap(usd: float) -> int:
    return math.floor(usd * PICO)
