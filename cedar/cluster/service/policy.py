"""Policy: how many workers the trainers need, from what their loaders signal.

As in Meta's Data PreProcessing Service: keep a non-zero number of results buffered at every trainer with the fewest
workers. A trainer that waits for its next result asks for more at once; workers go only after several looks in a row
found that fewer would do, so that the number does not swing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cedar.cluster.dask.signals import Signal

WAITS = 0.05  # share of its time; a trainer that waits less does not wait
_SATURATED = 0.25  # of the workers; where fewer are at work, something else is short, and more would not help
_GROWTH = 1.5
_HEADROOM = 1.25  # workers for each one that was kept busy


@dataclass
class Policy:
    """Follows one service.

    Args:
        least, most: bounds on the number of workers.
        patience: looks in a row that must agree before workers go.
    """

    least: int = 1
    most: int = 1
    patience: int = 5
    _lower: list[int] = field(default_factory=list)

    def wanted(self, signals: Sequence[Signal], have: int) -> int:
        """How many workers there should be.

        Args:
            signals: the last of each loader that runs.
            have: how many there are.

        Examples:
            >>> waits = Signal("r", "train", 0, buffered=0, ahead=4, waiting=0.6, rows_per_second=900, busy=2.0)
            >>> Policy(1, 8).wanted([waits], have=2)
            3
        """
        busy = sum(signal.busy for signal in signals)
        if any(starves(signal) for signal in signals) and busy >= _SATURATED * have:
            self._lower.clear()
            return self._bounded(max(have + 1, math.floor(have * _GROWTH)))
        needed = self._bounded(math.ceil(busy * _HEADROOM))
        if needed >= have or any(starves(signal) for signal in signals):
            self._lower.clear()
            return self._bounded(have)
        self._lower = [*self._lower, needed][-self.patience :]
        return max(self._lower) if len(self._lower) >= self.patience else self._bounded(have)

    def _bounded(self, workers: int) -> int:
        return min(max(workers, self.least), self.most)


def starves(signal: Signal) -> bool:
    """Whether a trainer waits for the result that comes next; others, of another stage, may be there."""
    return signal.waiting > WAITS
