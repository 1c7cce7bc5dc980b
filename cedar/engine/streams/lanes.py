"""Lanes: where row counts are unknown, an epoch is cut into as many parallel streams as there are ranks.

Each lane has splits of its own, dealt by bytes after the epoch's permutation, so that a rank reads nothing that others
keep. They follow from the metadata of the sources of the pipeline as written: no plan changes them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Lane: TypeAlias = tuple[int, int]  # which one, of how many
UNTOLD = (
    'with last="{last}" all ranks take as many steps, and these cannot tell each other when one of them is through. '
    'Ways out: last="keep" on batch(); loader(steps=); loader(agree=), a folder that all ranks see; or '
    "torch.distributed, initialised before the loader is made"
)


def first_lane(rank: int, world: int, epoch: int) -> Lane:
    """The lane of a rank as an epoch begins: another one in each epoch, as some have more rows than others."""
    return (rank + epoch) % world, world


def lanes_of(sizes: npt.NDArray[np.float64], of: int) -> npt.NDArray[np.int64]:
    """The lane of each split: the largest first, each to the lane that has least so far.

    Example:
        >>> import numpy as np
        >>> lanes_of(np.array([1.0, 4.0, 2.0, 2.0]), 2).tolist()
        [0, 0, 1, 1]
    """
    lanes = np.empty(len(sizes), dtype=np.int64)
    held = [(0.0, lane) for lane in range(of)]
    for split in np.argsort(-sizes, kind="stable").tolist():
        load, lane = held[0]
        lanes[split] = lane
        heapq.heapreplace(held, (load + max(float(sizes[split]), 1.0), lane))
    return lanes


@dataclass(frozen=True)
class Sharing:
    """How the ranks of a run share an epoch.

    Args:
        lanes: counts are unknown, and each rank has lanes of its own.
        together: they end an epoch at a step that they agree on.
        why: counts are unknown, and every rank computes all of it, because of this; "" where they share.
    """

    lanes: bool = False
    together: bool = False
    why: str = ""

    def warning(self, world: int) -> str:
        """What it costs that ranks do not share, and the ways out."""
        return (
            f"each of the {world} ranks reads and computes the whole epoch and keeps its share, {world} times the work "
            f"of one: {self.why}"
        )
