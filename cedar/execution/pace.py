"""Pace: how fast a run goes under one plan, and what it takes around its operators."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from cedar.execution import clocks
from cedar.execution.metrics import Metrics
from cedar.execution.runner import Runner

_EVERY = 0.05  # seconds between two readings
_CROWDED = 0.3  # of the time that threads want a core
_HERE = 0.8  # of the work: as much must have been done by threads of this process
_FADES = 4.0  # seconds after which what was seen weighs half


class Counters(NamedTuple):
    """Of a run at one moment, or of a while of it.

    Args:
        rows: read from the sources, or given by a cache.
        elapsed, waited: wall seconds, and those in which somebody waited for a delivery.
        own: CPU seconds of the loader's thread.
        work: CPU seconds of operators and of reading.
        pool, crowded: seconds of the threads that run tasks: with a core, and waiting for one that others had.
    """

    rows: float = 0.0
    elapsed: float = 0.0
    waited: float = 0.0
    own: float = 0.0
    work: float = 0.0
    pool: float = 0.0
    crowded: float = 0.0

    def minus(self, other: Counters) -> Counters:
        return Counters(*(a - b for a, b in zip(self, other, strict=True)))

    def plus(self, other: Counters, weight: float = 1.0) -> Counters:
        return Counters(*(a + weight * b for a, b in zip(self, other, strict=True)))


class Pace:
    """Reads the counters of a run now and then, from its own thread.

    Between two readings there are about as many tasks on their way, so what they do not yet tell cancels out.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._runner: Runner | None = None
        self._last: Counters | None = None
        self._seen = Counters()

    def start(self, runner: Runner) -> None:
        """An iteration begins; the plan is the one before."""
        self._runner, self._last = runner, None

    def renew(self) -> None:
        """Another plan takes over, or another number of threads."""
        self._last, self._seen = None, Counters()

    def look(self) -> bool:
        """Take a reading where it is time for one, and say so; cheap."""
        elapsed = self._metrics.elapsed
        if self._last is not None and elapsed - self._last.elapsed < _EVERY:
            return False
        now = self._now()
        if self._last is not None:
            weight = 0.5 if self._seen.elapsed > _FADES else 1.0
            self._seen = now.minus(self._last).plus(self._seen, weight)
        self._last = now
        return True

    def _now(self) -> Counters:
        m = self._metrics
        return Counters(m.rows_entered, m.elapsed, m.waited, m.own, m.work, *self._pool())

    def _pool(self) -> tuple[float, float]:
        runner = self._runner
        pool = None if runner is None or not (runner.owned or not runner.local) else runner._here
        return clocks.spent_by(list(pool._threads)) if isinstance(pool, ThreadPoolExecutor) else (0.0, 0.0)

    # ---- what was seen -----------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """That what was seen is of."""
        return self._seen.elapsed

    @property
    def speed(self) -> float:
        """Rows read per second of late; the time in which other programs had our cores does not count.

        Threads beside processes that do the work wait for those, and say nothing of other programs.
        """
        seen = self._seen
        return self.rate * (1 + seen.crowded / seen.pool) if seen.pool > 0 and self.here else self.rate

    @property
    def here(self) -> bool:
        """The work was done by threads of this process, or the system does not tell."""
        return self._seen.pool == 0 or self._seen.pool >= _HERE * self._seen.work

    @property
    def rate(self) -> float:
        """Rows read per second of late, whoever has the cores: several threads also take them from each other."""
        return self._seen.rows / self._seen.elapsed if self._seen.elapsed else 0.0

    @property
    def waiting(self) -> float:
        """The share of the time in which somebody waited for a delivery."""
        return self._seen.waited / self._seen.elapsed if self._seen.elapsed else 1.0

    @property
    def own(self) -> float:
        """CPU seconds per row read of the loader's thread; work that it does itself, inline, does not count."""
        seen = self._seen
        inline = self._runner is not None and self._runner.inline
        return max(0.0, seen.own - (seen.work if inline else 0.0)) / seen.rows if seen.rows > 0 else 0.0

    @property
    def around(self) -> float:
        """CPU seconds per row read of the threads that run tasks, beside operators."""
        seen = self._seen
        return max(0.0, seen.pool - seen.work) / seen.rows if seen.rows > 0 and seen.pool else 0.0

    @property
    def cores(self) -> float:
        """How many cores the run keeps busy in this process; 0 until that can be told, and while others have them."""
        return 0.0 if self.crowded else self.busy

    @property
    def crowded(self) -> bool:
        """Other programs have the cores for much of the time: who waits for whom can hardly be told."""
        seen = self._seen
        return seen.crowded > _CROWDED * (seen.pool + seen.crowded)

    @property
    def busy(self) -> float:
        """How many cores the run would keep busy in this process, those that others have included; 0 until it is known.

        Who waits for the GIL sleeps, but for a moment now and then: so this is not too low, whoever else is there.
        """
        seen = self._seen
        return (seen.own + seen.pool + seen.crowded) / seen.elapsed if seen.elapsed >= 2 * _EVERY else 0.0
