"""The part of a state that describes a rank's lanes, and how lanes are redistributed when the number of ranks changes.

Splits that no lane has started are redistributed if every lane records what it has started. Started lanes are assigned
to ranks as a whole. If their number is not a multiple of the number of ranks, several ranks share each remaining lane:
all of them read it, and its units are delivered by these ranks in turn. So every unit is delivered by exactly one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cedar.core.errors import ResumeError
from cedar.core.stream import Position
from cedar.engine.streams.lanes import DONE, Lane, Past

END = "done"  # replaces the position once this rank has finished the lane


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

    def finished(self, position: Position | None, pauses: bool = False) -> list[Any]:
        """Return the lane, as saved in a state, after its end; ``position`` is the one after its last unit."""
        if self.ended:
            return list(self)
        if pauses and not self.cut:
            return list(self._replace(position=position, keeps=END))
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
