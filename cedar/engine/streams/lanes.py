"""Lanes: where row counts are unknown, an epoch is cut into as many parallel streams as there are ranks.

Each lane has splits of its own, assigned by bytes after the epoch's permutation, so that a rank reads nothing that
others
keep. A source with fewer splits than there are lanes is read by all of them, and each keeps the rows whose keys are its
own. Both follow from the metadata of the sources of the pipeline as written: no plan changes them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.cursor import Keys, hash_ints
from cedar.operators.base import Env

Past: TypeAlias = Sequence[Any]  # how an epoch was assigned before, oldest first: [lanes, what each of them keeps]
DONE = -1  # a lane that was through: it keeps nothing, and left nothing
_SEED = 0x1A9E5  # of the hashes that share rows by their keys
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


def assigned(
    sizes: npt.NDArray[np.float64], of: int, past: Past = (), lap: int = 0, by_key: Sequence[bool] = ()
) -> list[npt.NDArray[np.int64]]:
    """The splits of each lane, in order; where the epoch was assigned before, of those that no lane had begun.

    Args:
        sizes: of the splits, in order.
        of: how many lanes there are.
        past: how they were assigned before.
        lap: the pass of a ``repeat`` above: in each, a lane has the splits of another one.
        by_key: as of ``dealt_by_key``; all splits stay there.
    """
    left = np.arange(len(sizes))
    for place, (before, kept) in enumerate(past):
        if place < len(by_key) and by_key[place]:
            continue
        lanes = zip(_turned(_parted(sizes, left, before), lap), kept, strict=True)
        left = np.sort(np.concatenate([lane[len(lane) if k == DONE else k :] for lane, k in lanes]))
    return [left] * of if by_key and by_key[-1] else _turned(_parted(sizes, left, of), lap)


def dealt_by_key(sizes: npt.NDArray[np.float64], of: int, past: Past = ()) -> tuple[bool, ...]:
    """Whether rows are shared by their keys, as there were fewer splits than lanes: of each time that an epoch was
    assigned, and now.

    Examples:
        >>> import numpy as np
        >>> dealt_by_key(np.ones(3), 4), dealt_by_key(np.ones(4), 4)
        ((True,), (False,))
    """
    reported: tuple[bool, ...] = ()
    for place, number in enumerate([*(before for before, _ in past), of]):
        reported += (0 < len(assigned(sizes, 1, past[:place], 0, reported)[0]) < number,)
    return reported


def _turned(lanes: list[npt.NDArray[np.int64]], lap: int) -> list[npt.NDArray[np.int64]]:
    turn = lap % len(lanes)
    return lanes[turn:] + lanes[:turn]


def _parted(sizes: npt.NDArray[np.float64], left: npt.NDArray[np.int64], of: int) -> list[npt.NDArray[np.int64]]:
    lane = lanes_of(sizes[left], of)
    return np.split(left[np.argsort(lane, kind="stable")], np.cumsum(np.bincount(lane, minlength=of))[:-1])


class Lane(NamedTuple):
    """One of the parallel streams of an epoch.

    Args:
        number, of: which one, of how many.
        past: how the epoch was assigned before.
        stop: it ends after so many splits, as the others were redistributed; None if it keeps all of them.
        turn, turns: several ranks read it, and take turns at its units: which of them this is, of how many.
        history: what was taken of it when its units were assigned to other ranks, as of ``deal``.
        drawn: of mixtures by their numbers, from which of their units on by which weights.
    """

    number: int
    of: int
    past: Past = ()
    stop: int | None = None
    turn: int = 0
    turns: int = 1
    history: Sequence[Any] = ()
    drawn: dict[str, Any] = {}  # noqa: RUF012 - never written to

    def splits(self, sizes: npt.NDArray[np.float64], lap: int, by_key: Sequence[bool]) -> npt.NDArray[np.int64]:
        """The places of its splits in the order of a pass."""
        return assigned(sizes, self.of, self.past, lap, by_key)[self.number][: self.stop]

    def rows(self, by_key: Sequence[bool]) -> RowsByKey | None:
        """Which rows of its splits are its own; None if all are."""
        now = (self.of, (self.number,))
        levels = [*((of, tuple(i for i, k in enumerate(kept) if k != DONE)) for of, kept in self.past), now]
        chosen = [(place, *level) for place, (level, keyed) in enumerate(zip(levels, by_key, strict=True)) if keyed]
        return RowsByKey(tuple(chosen)) if chosen else None


@dataclass(frozen=True)
class RowsByKey:
    """The kernel that leaves the rows of a lane, by a hash of where they come from.

    Items of a row stay together, and a ``concat`` above says nothing: it does the same wherever a plan puts it.

    Args:
        levels: (which time that the epoch was assigned, lanes then, those whose rows stay).
    """

    levels: tuple[tuple[int, int, tuple[int, ...]], ...]

    def __call__(self, block: Block, env: Env) -> Block:
        keys = Keys(block.keys.row, block.keys.file, repeat=block.keys.repeat)
        mine = np.ones(block.slots, dtype=bool)
        for place, of, lanes in self.levels:
            hashes = keys.hash(hash_ints(env.seed, env.epoch, place, _SEED))
            mine &= np.isin(hashes % np.uint64(of), lanes)
        return block.take(np.flatnonzero(mine))


@dataclass(frozen=True)
class Sharing:
    """How the ranks of a run share an epoch.

    Args:
        lanes: counts are unknown, and each rank has lanes of its own.
        together: they end an epoch at a step that they agree on.
        why: every rank computes all of it, because of this; "" if they share.
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
