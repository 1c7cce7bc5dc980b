"""Lanes: if row counts are unknown, an epoch is cut into as many parallel streams as there are ranks.

Each lane has its own splits, which are balanced by bytes after the epoch's permutation. If a source has fewer splits
than there are lanes, every lane reads all of them and keeps the rows that a hash of the row key assigns to it. Both
assignments depend only on the metadata of the sources as written, so plans do not change them.
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
from cedar.operators.base import BlockKernel, Env

Past: TypeAlias = Sequence[Any]  # earlier assignments of splits, oldest first: [lanes, splits that each has started]
DONE = -1  # replaces the number of started splits of a finished lane, so that none of its splits is redistributed
_SEED = 0x1A9E5  # seed of the hashes that assign rows to lanes by key
NO_COMMON_END = (
    "with last={last} all ranks take equally many steps, but they cannot communicate when one of them runs out. "
    'Use one of: last="keep" on batch(), or local=True on bucket_by_length(); loader(steps=); loader(agree=), a folder '
    "that all ranks see or the address of a service; torch.distributed, initialized before the loader is created"
)


def lanes_of(sizes: npt.NDArray[np.float64], of: int) -> npt.NDArray[np.int64]:
    """Return the lane of each split. Splits are assigned from large to small, each to the lane with the fewest bytes.

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
    """Return the splits of each lane in order, without splits that lanes of earlier assignments have started.

    Args:
        sizes: bytes of the splits, in order.
        of: number of lanes.
        past: earlier assignments.
        lap: number of the pass of a ``repeat`` above; lanes swap their splits in each pass.
        by_key: see ``assigned_by_key``; in an assignment by key, every lane has all splits.
    """
    left = np.arange(len(sizes))
    for place, (before, kept) in enumerate(past):
        if place < len(by_key) and by_key[place]:
            continue
        lanes = zip(_rotated(_cut_lanes(sizes, left, before), lap), kept, strict=True)
        left = np.sort(np.concatenate([lane[len(lane) if k == DONE else k :] for lane, k in lanes]))
    return [left] * of if by_key and by_key[-1] else _rotated(_cut_lanes(sizes, left, of), lap)


def assigned_by_key(sizes: npt.NDArray[np.float64], of: int, past: Past = ()) -> tuple[bool, ...]:
    """Return, for each earlier assignment and for the current one, whether it assigns rows by key instead of splits,
    because there are fewer splits than lanes.

    Examples:
        >>> import numpy as np
        >>> assigned_by_key(np.ones(3), 4), assigned_by_key(np.ones(4), 4)
        ((True,), (False,))
    """
    reported: tuple[bool, ...] = ()
    for place, number in enumerate([*(before for before, _ in past), of]):
        reported += (0 < len(assigned(sizes, 1, past[:place], 0, reported)[0]) < number,)
    return reported


def _rotated(lanes: list[npt.NDArray[np.int64]], lap: int) -> list[npt.NDArray[np.int64]]:
    turn = lap % len(lanes)
    return lanes[turn:] + lanes[:turn]


def _cut_lanes(sizes: npt.NDArray[np.float64], left: npt.NDArray[np.int64], of: int) -> list[npt.NDArray[np.int64]]:
    lane = lanes_of(sizes[left], of)
    return np.split(left[np.argsort(lane, kind="stable")], np.cumsum(np.bincount(lane, minlength=of))[:-1])


class Lane(NamedTuple):
    """One of the parallel streams of an epoch.

    Args:
        number, of: the lane's number, and the number of lanes.
        past: earlier assignments of the epoch's splits.
        stop: number of splits after which the lane ends, since the others were redistributed; None for all of them.
        turn, turns: if several ranks deliver the lane's units in turn: this rank's turn, and the number of these ranks.
        history: units that ranks received before the lane was assigned to other ranks; see ``deal``.
        drawn: by mixture number, lists of a unit number and the weights that apply from that unit on. The first of
            them may also have the positions in the inputs at which the mixture begins; see ``MixStream``.
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
        """Return the lane's splits, as positions in the order of a pass."""
        return assigned(sizes, self.of, self.past, lap, by_key)[self.number][: self.stop]

    def rows(self, by_key: Sequence[bool]) -> RowsByKey | None:
        """Return the kernel that selects the lane's rows from its splits; None if all of their rows belong to it."""
        now = (self.of, (self.number,))
        levels = [*((of, tuple(i for i, k in enumerate(kept) if k != DONE)) for of, kept in self.past), now]
        chosen = [(place, *level) for place, (level, keyed) in enumerate(zip(levels, by_key, strict=True)) if keyed]
        return RowsByKey(tuple(chosen)) if chosen else None


@dataclass(frozen=True)
class RowsByKey(BlockKernel):
    """Kernel that selects the rows of a lane by a hash of their row keys.

    All items of a row have the same hash. It ignores the number of the concat input, so that plans may move the kernel
    across a concat.

    Args:
        levels: for each assignment by key: its number, the number of lanes, and the lanes whose rows are kept.
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
        lanes: row counts are unknown, so each rank has its own lanes.
        together: ranks communicate to end an epoch at the same step.
        why: why every rank computes the whole epoch; "" if ranks share the work.
        asked: the user requested that every rank computes the whole epoch.
    """

    lanes: bool = False
    together: bool = False
    why: str = ""
    asked: bool = False

    def warning(self, world: int) -> str:
        """Describe the cost of computing the whole epoch on every rank, and the reason for it."""
        return (
            f"each of the {world} ranks reads and computes the whole epoch and keeps its share, {world} times the work "
            f"of one: {self.why}"
        )
