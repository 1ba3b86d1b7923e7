"""The frozen price table: what a call costs.

RouteWeaver, Appendix C.1: fixed reference prices measure cost; they are not what was paid. Cached input counts in full.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from rw.errors import ConfigError
from rw.workers.config import WorkerEndpoint


@dataclasses.dataclass(frozen=True)
class Price:
    """USD per million tokens."""

    input: float
    output: float


class PriceTable:
    """Prices by Worker id; frozen once made."""

    def __init__(self, prices: Mapping[str, Price]):
        for worker_id, price in prices.items():
            if not all(math.isfinite(value) and value >= 0 for value in (price.input, price.output)):
                raise ConfigError(
                    f"Worker {worker_id}: prices {price.input} and {price.output} must be finite and >= 0"
                )
        self._prices = dict(prices)

    @classmethod
    def from_endpoints(cls, endpoints: Iterable[WorkerEndpoint]) -> PriceTable:
        """The table that the endpoints themselves state; ConfigError where one states no price."""
        endpoints = tuple(endpoints)
        table = cls(
            {
                endpoint.id: Price(endpoint.input_price, endpoint.output_price)
                for endpoint in endpoints
                if endpoint.input_price is not None and endpoint.output_price is not None
            }
        )
        table.require(endpoint.id for endpoint in endpoints)
        return table

    def __getitem__(self, worker_id: str) -> Price:
        self.require([worker_id])
        return self._prices[worker_id]

    def require(self, worker_ids: Iterable[str]) -> None:
        """Raises ConfigError naming the first unpriced Worker and the priced ones."""
        for worker_id in worker_ids:
            if worker_id not in self._prices:
                priced = ", ".join(sorted(self._prices)) or "none"
                raise ConfigError(
                    f"Worker {worker_id} has no price; set its input_price and output_price in USD per million tokens "
                    f"(priced: {priced})"
                )

    def cost_usd(self, worker_id: str, input_tokens: int | None, output_tokens: int | None) -> float | None:
        """Cost of a call in USD; None, never 0, where a token count is missing."""
        price = self[worker_id]
        if input_tokens is None or output_tokens is None:
            return None
        return (input_tokens * price.input + output_tokens * price.output) / 1e6
