"""When an idle device is lent to other work: a rule over times alone. Knows no device and no turns."""

from __future__ import annotations

from collections.abc import Callable

DELAY_SHARE = 0.25  # of the time in which nothing was runnable, that turns may have waited for other work to end


class Lending:
    """Work that is lent the device while nothing is runnable, and what it has cost so far.

    A piece that runs cannot be interrupted, so a turn that comes meanwhile waits for its end. Where idle moments are
    shorter than a piece that costs more than it gives: there the work pauses until idleness alone has made up for it.
    """

    def __init__(self, work: Callable[[], bool]):
        self.work = work
        self.free_s = 0.0  # nothing was runnable, whether the work went on or not
        self.delay_s = 0.0

    def pause_s(self) -> float:
        """Idle seconds that must pass before the next piece; 0 where it may begin."""
        return max(0.0, self.delay_s / DELAY_SHARE - self.free_s)

    def idled(self, idle_s: float) -> None:
        """Nothing was runnable and nothing was done."""
        self.free_s += idle_s

    def worked(self, work_s: float, delay_s: float) -> None:
        """A piece took so long, and the first turn that came meanwhile waited so long for its end."""
        self.free_s += work_s - delay_s
        self.delay_s += delay_s
