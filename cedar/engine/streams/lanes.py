"""Lanes: if row counts are unknown, an epoch is cut into as many parallel streams as there are ranks.

Each lane has its own splits, which are balanced by bytes after the epoch's permutation. If a source has fewer splits
than there are lanes, every lane reads all of them and keeps the rows that a hash of the row key assigns to it. Both
assignments depend only on the metadata of the sources as written, so plans do not change them.

If the number of ranks changes, splits that no lane has started are redistributed if every lane records what it has
started. Started lanes are assigned to ranks as a whole. If their number is not a multiple of the number of ranks,
several ranks share each remaining lane: all of them read it, and its units are delivered by these ranks in turn. So
every unit is delivered by exactly one rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.cursor import Keys, hash_ints
from cedar.core.errors import ResumeError
from cedar.core.stream import Position
from cedar.operators.base import BlockKernel, Env
from cedar.operators.take import TURNS

Past: TypeAlias = Sequence[Any]  # earlier assignments of splits, oldest first: [lanes, splits that each has started]
DONE = -1  # replaces the number of started splits of a finished lane, so that none of its splits is redistributed
END = "done"  # replaces the position once this rank has finished the lane
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
    turn = lap % TURNS % len(lanes)
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
        keys = Keys(block.keys.row, block.keys.file)
        # The turn makes a lane receive every row in some pass.
        turn = np.asarray(block.keys.repeat, dtype=np.uint64) % np.uint64(TURNS)
        mine = np.ones(block.slots, dtype=bool)
        for place, of, lanes in self.levels:
            hashes = keys.hash(hash_ints(env.seed, env.epoch, place, _SEED))
            mine &= np.isin((hashes % np.uint64(of) + turn) % np.uint64(of), lanes)
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


# ---- lanes in a state, and how they are redistributed ----------------------------------------------------------------


class LaneState(NamedTuple):
    """A lane as saved in a state, where it is a JSON list.

    Args:
        number, of, stop, turn, turns, history, drawn: see ``Lane``.
        depth: how many times the epoch's splits had been assigned before the lane was created.
        position: position after the last delivered unit; None at the lane's beginning, ``END`` after its end.
        keeps: number of started splits, rounded up to the end of a window; None if unknown. For a finished lane that
            several ranks share, the number of units that this rank delivered. ``END`` for a paused lane.
    """

    number: int
    of: int
    depth: int = 0
    stop: int | None = None
    turn: int = 0
    turns: int = 1
    history: Sequence[Any] = ()
    position: Any = None
    keeps: int | str | None = 0
    drawn: dict[str, Any] = {}  # noqa: RUF012 - never written to

    @staticmethod
    def first(rank: int, world: int, epoch: int) -> LaneState:
        """Return a rank's first lane. It changes with the epoch, since some lanes have more rows than others."""
        return LaneState((rank + epoch) % world, world)

    @property
    def ended(self) -> bool:
        return bool(self.position == END) or self.paused

    @property
    def paused(self) -> bool:
        """Whether the lane has ended without the rows of removed inputs, which may still come back."""
        return self.keeps == END

    @property
    def cut(self) -> bool:
        """Whether another lane has the rows that remain at this lane's end."""
        return any(not any(turns[-1][1]) for turns in self.drawn.values())

    @property
    def origin(self) -> str:
        """The positions in the inputs of a mixture at which the lane begins; empty at the beginning of its splits."""
        return repr([turns[0][2:] for turns in self.drawn.values() if turns[0][2:]])

    @property
    def taken(self) -> int:
        """How many units of the lane this rank has delivered; 0 if they are unknown because it has finished."""
        return 0 if self.position == END else _taken(self.position)

    @property
    def shared(self) -> bool:
        """Whether the lane's units are or were assigned to several ranks."""
        return self.turns > 1 or bool(self.history)

    def lane(self, past: Past) -> Lane:
        """Return the lane to read; ``past`` lists the earlier assignments of the epoch's splits."""
        before = past[: self.depth]
        return Lane(self.number, self.of, before, self.stop, self.turn, self.turns, self.history, self.drawn)

    def after(self, position: Position, keeps: int | None) -> list[Any]:
        """Return the lane, as saved in a state, after a delivered unit."""
        return list(self._replace(position=position, keeps=keeps))

    def finished(self, position: Position | None, drawn: Mapping[str, Any] = {}) -> list[Any]:
        """Return the lane, as saved in a state, after its end.

        Args:
            position: the one after its last unit.
            drawn: as in ``Lane``, for mixtures with removed inputs; if there are any, the lane is paused.
        """
        if self.ended:
            return list(self)
        if drawn and not self.cut:
            return list(self._replace(position=position, keeps=END, drawn={**drawn, **self.drawn}))
        return list(self._replace(position=END, keeps=_taken(position)))


def _taken(position: Position | None) -> int:
    """Return how many units were delivered before a position."""
    return 0 if position is None else int(position[0][0] + position[1])


def past_of(entries: Iterable[dict[str, Any] | None]) -> list[Any]:
    """Return the earlier assignments of an epoch's splits, from the state entries of all ranks.

    Raises:
        ResumeError: the entries contradict each other.
    """
    pasts = sorted((list(entry.get("past") or []) for entry in entries if entry), key=len)
    if any(past != pasts[-1][: len(past)] for past in pasts):
        raise ResumeError("the states have different assignments of the epoch", fix="give states saved together")
    return pasts[-1] if pasts else []


def merged(lanes: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Return each lane of all ranks once. The parts of a shared lane are merged into one lane.

    If a rank has no record of a shared lane any more, it has finished the lane, but how many units it delivered is
    unknown. In that case the parts are not merged.
    """
    groups: dict[tuple[Any, ...], list[LaneState]] = {}
    for lane in (LaneState(*each) for each in lanes):
        groups.setdefault((*lane[:4], lane.origin) if lane.turns > 1 else (len(groups),), []).append(lane)
    joined: list[LaneState] = []
    for group in groups.values():
        complete = group[0].turns > 1 and sorted(each.turn for each in group) == [*range(group[0].turns)]
        joined += [_joined(group)] if complete else group
    return [list(lane) for lane in joined]


def _joined(group: list[LaneState]) -> LaneState:
    """Return what remains of a lane that several ranks shared, as one lane."""
    by_turn = sorted(group, key=lambda each: each.turn)
    if ended := [each for each in group if each.position == END and all(each.ended for each in group)]:
        return ended[0]._replace(turn=0, turns=1, history=())
    rest = [each for each in group if not each.ended] or group
    taken = [int(each.keeps or 0) if each.position == END else each.taken for each in by_turn]
    begun = [None if each.position is None else each.position[0] for each in rest]
    place = None if None in begun else min(begun, key=lambda at: int(at[2]))  # type: ignore[index]
    first = rest[0]._replace(turn=0, turns=1)
    return _reassigned(first, [len(group), 1, taken], place)


def _reassigned(lane: LaneState, turn: list[Any], place: Sequence[Any] | None) -> LaneState:
    """Return a lane with redistributed units; reading restarts at ``place``, which is [_, position, unit number]."""
    history = [*lane.history, turn] if any(turn[2]) else lane.history
    position = None if place is None else [[0, place[1], place[2]], 0]
    return lane._replace(history=history, position=position)


def _take_turns(lane: LaneState, turn: int, turns: int) -> LaneState:
    """Return a rank's part of a lane that ``turns`` ranks share from now on."""
    if turns == 1:
        return lane
    place = None if lane.position is None else lane.position[0]
    return _reassigned(lane, [1, 1, [_taken(lane.position)]], place)._replace(turn=turn, turns=turns)


def reassign_lanes(
    lanes: Sequence[Sequence[Any]], past: Sequence[Any], rank: int, world: int
) -> tuple[list[list[Any]], list[Any]]:
    """Return a rank's part of the merged lanes of all earlier ranks, and the past assignments of the epoch's splits."""
    known = [LaneState(*lane) for lane in lanes]
    unfinished = [lane for lane in known if not lane.ended]
    mains = sorted((lane for lane in known if lane.stop is None), key=lambda lane: lane.number)
    kept = [_kept(lane) for lane in mains]
    alike = bool(mains) and all((lane.of, lane.depth) == (mains[0].of, mains[0].depth) for lane in mains)
    whole = alike and [lane.number for lane in mains] == [*range(mains[0].of)]
    if not whole or None in kept or any(lane.shared for lane in mains):
        paused = [list(lane) for lane in known if lane.paused]
        return [*_assign_evenly(unfinished, rank, world), *paused[rank::world]], list(past)
    _, of, depth, *_ = mains[0]
    before = [*past[:depth], *([[of, kept]] if any(kept) else [])]
    parts = [lane for lane in unfinished if lane.stop is not None]
    parts += [lane._replace(stop=k) for lane, k in zip(mains, kept, strict=True) if k and k > 0]
    return [*_assign_evenly(parts, rank, world), list(LaneState(rank, world, len(before)))], before


def _kept(lane: LaneState) -> int | None:
    """Return how many splits a lane of all its splits has started; None if its rest must stay one lane."""
    if lane.paused or lane.drawn:
        return None
    return DONE if lane.ended else 0 if lane.position is None else lane.keeps  # type: ignore[return-value]


def _assign_evenly(lanes: list[LaneState], rank: int, world: int) -> list[list[Any]]:
    """Return the lanes of a rank: lanes are assigned evenly, and several ranks share each of the remaining lanes. A
    rank reads its shared lane first, so that at each step all ranks that share it have received equally many units.
    """
    even = len(lanes) // world * world
    mine, rest = lanes[rank:even:world], lanes[even:]
    if rest:
        number = rank * len(rest) // world
        group = [each for each in range(world) if each * len(rest) // world == number]
        if rest[number].turns == 1:
            mine.insert(0, _take_turns(rest[number], group.index(rank), len(group)))
        elif rank == group[0]:
            mine.append(rest[number])
    return [list(lane) for lane in mine]
