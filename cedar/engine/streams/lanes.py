"""Lanes: where row counts are unknown, an epoch is cut into as many parallel streams as there are ranks.

Each lane has splits of its own, dealt by bytes after the epoch's permutation, so that a rank reads nothing that others
keep. They follow from the metadata of the sources of the pipeline as written: no plan changes them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Past: TypeAlias = Sequence[Any]  # how an epoch was dealt before, oldest first: [lanes, what each of them keeps]
DONE = -1  # a lane that was through: it keeps nothing, and left nothing
UNTOLD = (
    "with last={last} all ranks take as many steps, and these cannot tell each other when one of them is through. "
    'Ways out: last="keep" on batch(), or local=True on bucket_by_length(); loader(steps=); loader(agree=), a folder '
    "that all ranks see or the address of a service; or torch.distributed, initialized before the loader is made"
)


def lanes_of(sizes: npt.NDArray[np.float64], of: int) -> npt.NDArray[np.int64]:
    """The lane of each split: the largest first, each to the lane that has least so far.

    Examples:
        >>> import numpy as np
        >>> lanes_of(np.array([1.0, 4.0, 2.0, 2.0]), 2).tolist()
        [0, 0, 1, 1]
    """
    lanes = np.empty(len(sizes), dtype=np.int64)
    loads = [(0.0, lane) for lane in range(of)]
    order = np.argsort(-sizes, kind="stable")
    taken = []
    for size in np.maximum(sizes[order], 1.0).tolist():
        load, lane = loads[0]
        taken.append(lane)
        heapq.heapreplace(loads, (load + size, lane))
    lanes[order] = taken
    return lanes


def dealt(sizes: npt.NDArray[np.float64], of: int, past: Past = ()) -> list[npt.NDArray[np.int64]]:
    """The splits of each lane, in order; where the epoch was dealt before, of those that no lane had begun."""
    left = np.arange(len(sizes))
    for before, kept in past:
        lanes = zip(_parted(sizes, left, before), kept, strict=True)
        left = np.sort(np.concatenate([lane[len(lane) if k == DONE else k :] for lane, k in lanes]))
    return _parted(sizes, left, of)


def _parted(sizes: npt.NDArray[np.float64], left: npt.NDArray[np.int64], of: int) -> list[npt.NDArray[np.int64]]:
    lane = lanes_of(sizes[left], of)
    return np.split(left[np.argsort(lane, kind="stable")], np.cumsum(np.bincount(lane, minlength=of))[:-1])


class Lane(NamedTuple):
    """One of the parallel streams of an epoch.

    Args:
        number, of: which one, of how many.
        past: how the epoch was dealt before.
        stop: it ends after so many splits, as the others were dealt anew; None where it keeps all of them.
        turn, turns: several ranks read it, and take turns at its units: which of them this is, of how many.
        history: what was taken of it when its units were dealt to other ranks, as of ``deal``.
    """

    number: int
    of: int
    past: Past = ()
    stop: int | None = None
    turn: int = 0
    turns: int = 1
    history: Sequence[Any] = ()

    def splits(self, sizes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The places of its splits in the order of the epoch."""
        return dealt(sizes, self.of, self.past)[self.number][: self.stop]


@dataclass(frozen=True)
class Sharing:
    """How the ranks of a run share an epoch.

    Args:
        lanes: counts are unknown, and each rank has lanes of its own.
        together: they end an epoch at a step that they agree on.
        why: every rank computes all of it, because of this; "" where they share.
        asked: that is what the user asks for.
    """

    lanes: bool = False
    together: bool = False
    why: str = ""
    asked: bool = False

    def warning(self, world: int) -> str:
        """What it costs that ranks do not share, and the ways out."""
        return (
            f"each of the {world} ranks reads and computes the whole epoch and keeps its share, {world} times the work "
            f"of one: {self.why}"
        )
