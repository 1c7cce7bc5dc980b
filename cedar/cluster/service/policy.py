"""Policy: decides from the loaders' signals how many workers the trainers need.

As in Meta's Data PreProcessing Service, the goal is the smallest number of workers with which every trainer has
buffered results. If a trainer waits for its next result, the service adds workers immediately. It removes workers only
after several consecutive checks found that fewer suffice, so that the number does not oscillate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cedar.cluster.dask.signals import Signal

_MIN_BUSY_SHARE = 0.25  # if a smaller share of the workers is busy, more workers do not help
_GROWTH_FACTOR = 1.5
_HEADROOM = 1.25  # workers to keep for each busy worker


@dataclass
class Policy:
    """The policy of one service.

    Args:
        least, most: min and max number of workers.
        patience: consecutive checks that must agree before workers are removed.
    """

    least: int = 1
    most: int = 1
    patience: int = 5
    _lower_targets: list[int] = field(default_factory=list)

    def wanted(self, signals: Sequence[Signal], have: int) -> int:
        """Return how many workers there should be.

        Args:
            signals: the latest signal of each running loader.
            have: the current number of workers.

        Examples:
            >>> waits = Signal("r", "train", 0, buffered=0, ahead=4, waiting=0.6, rows_per_second=900, busy=2.0)
            >>> Policy(1, 8).wanted([waits], have=2)
            3
        """
        busy = sum(signal.busy for signal in signals)
        if any(signal.stalls for signal in signals) and busy >= _MIN_BUSY_SHARE * have:
            self._lower_targets.clear()
            return self._bounded(max(have + 1, math.floor(have * _GROWTH_FACTOR)))
        needed = self._bounded(math.ceil(busy * _HEADROOM))
        if needed >= have or any(signal.stalls for signal in signals):
            self._lower_targets.clear()
            return self._bounded(have)
        self._lower_targets = [*self._lower_targets, needed][-self.patience :]
        return max(self._lower_targets) if len(self._lower_targets) >= self.patience else self._bounded(have)

    def _bounded(self, workers: int) -> int:
        return min(max(workers, self.least), self.most)
