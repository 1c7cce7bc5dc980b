"""mix: rows of several inputs, drawn by position in the mixed stream."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.columns import Index
from cedar.core.cursor import Hashes, hash_array
from cedar.core.errors import PipelineError, user_site
from cedar.core.stream import PENDING, At, Count, Flow, Piece, Position, Pulled, Stream, concat_rows, is_count, is_list
from cedar.operators.base import Effects, Schema, StreamContext, StreamOperator
from cedar.operators.buffers import Buffer
from cedar.operators.concat import agreed, branch_rows, joined_samples, same_units
from cedar.operators.take import within

Stop: TypeAlias = Literal["first", "all"]

ROUND = 1024  # positions in which each input gets its share: part of the result
_BITS = 53
_ONE = 1 << _BITS
_END = 1 << 62


@dataclass(frozen=True)
class Mix(StreamOperator):
    """Rows (or batches) of several inputs; the seed and the position say which input comes next.

    Args:
        weights: one per input, above zero; they need not add up to one.
        seed: mixed into the seed of the run.
        stop: "first" ends when it is an input's turn and it has nothing left; "all" continues with the others.
        local: True mixes each rank's share by itself.

    Raises:
        PipelineError: weights that are not numbers above zero, one per input; inputs whose columns differ, or of which
            some give batches and others rows.

    Examples:
        >>> from cedar.operators.mix import Mix
        >>> Mix((0.7, 0.3)).label()
        'mix(0.7, 0.3)'
    """

    weights: tuple[float, ...]
    seed: int = 0
    stop: Stop = "first"
    local: bool = False
    name: ClassVar[str] = "mix"
    shuffles = True
    shares = True
    inputs: ClassVar[int | None] = None
    alike = True
    counts_rows = "counts rows: how many came before decides which input is next"

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _weights(self.weights))
        if self.stop not in ("first", "all"):
            raise PipelineError(
                f"mix(stop={self.stop!r}) is not known",
                site=user_site(),
                fix='"first" ends with the first input that has nothing left, "all" with the last',
            )

    @property
    def unsteady(self) -> str | None:
        return "leaves out other rows in each epoch" if self.stop == "first" else None

    def label(self) -> str:
        return f"mix({', '.join(f'{w:g}' for w in self.weights)})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(), rows="stream")

    def parameters(self) -> dict[str, Any]:
        return {"weights": list(self.weights), "seed": self.seed, "stop": self.stop, "local": self.local}

    def schema(self, *inputs: Schema) -> Schema:
        self._fits(len(inputs))
        return agreed("mix", inputs)

    def endless(self, *inputs: bool) -> bool:
        return any(inputs) if self.stop == "all" else all(inputs)

    def batched(self, *inputs: bool) -> bool:
        return same_units("mix", inputs)

    def sample(self, *inputs: Block) -> Block:
        return joined_samples("mix", inputs)

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        self._fits(len(inputs))
        return MixStream(inputs, self, context)

    def _fits(self, inputs: int) -> None:
        if inputs != len(self.weights):
            raise PipelineError(
                f"mix has {len(self.weights)} weight(s) for {inputs} input(s)", fix="give one weight per input"
            )


def _weights(weights: Any) -> tuple[float, ...]:
    fix = "cedar.mix takes pairs of a pipeline and a weight above zero: mix([(a, 0.7), (b, 0.3)])"
    try:
        numbers = tuple(float(w) for w in weights)
    except (TypeError, ValueError) as error:
        raise PipelineError(f"the weights of mix are {weights!r}", site=user_site(), fix=fix) from error
    if not numbers:
        raise PipelineError("mix takes at least one input", site=user_site(), fix=fix)
    for index, weight in enumerate(numbers):
        if not 0 < weight < math.inf:
            raise PipelineError(f"weight {index} of mix is {weight}", site=user_site(), fix=fix)
    return numbers


@dataclass(frozen=True)
class Draw:
    """Which input each position takes: a pure function of the seed, the position and the inputs that are gone.

    Positions are drawn in rounds. Of each, an input gets its exact share, remainders carried over from those before, in
    a random order. So how many an input has of the first rounds is arithmetic.
    """

    key: int
    weights: tuple[float, ...]

    def taken(self, rounds: int, gone: Sequence[bool]) -> list[int]:
        """How many of the positions of the first ``rounds`` rounds each input takes.

        An input takes its part of what those before it leave, so the numbers never fall from one round to the next.
        """
        left, total = rounds * ROUND, sum(w for w, g in zip(self.weights, gone, strict=True) if not g)
        taken = []
        for weight, over in zip(self.weights, gone, strict=True):
            part = 0 if over else min(round(weight / total * _ONE), _ONE) if total > weight else _ONE
            taken.append(left * part >> _BITS)
            left -= taken[-1]
            total -= 0.0 if over else weight
        last = max(i for i, g in enumerate(gone) if not g)  # where weights do not add up to the last bit
        taken[last] += left
        return taken

    def picks(self, start: int, number: int, gone: Sequence[bool]) -> Index:
        """The input of each position of round ``number`` of those that begin at position ``start``, int64[ROUND]."""
        counts = np.diff([self.taken(each, gone) for each in (number, number + 1)], axis=0)[0]
        first = start + number * ROUND
        hashes: Hashes = np.asarray(hash_array(self.key, np.arange(first, first + ROUND, dtype=np.int64)))
        inputs: Index = np.repeat(np.arange(len(counts)), counts)
        inputs[np.argsort(hashes, kind="stable")] = inputs.copy()
        return inputs


def lacking(picks: Index, have: npt.NDArray[np.float64]) -> Index:
    """The inputs of which there are not enough units for these picks."""
    return np.flatnonzero(np.bincount(picks, minlength=len(have)) > have)


def first_short(picks: Index, have: npt.NDArray[np.float64]) -> tuple[int, int]:
    """How many picks ``have`` units of each input serve, and the input that lacks the next one (-1: none does)."""
    if not len(lacking(picks, have)):
        return len(picks), -1
    narrow = picks.astype(np.min_scalar_type(len(have)))  # sorted by their digits
    order = np.argsort(narrow, kind="stable")
    ordered = narrow[order]
    turn = np.arange(len(picks)) - np.searchsorted(ordered, ordered)  # how often the input was picked before
    served = int(order[turn >= have[ordered]].min())
    return served, int(picks[served])


class Rounds(NamedTuple):
    """Positions up to the end of an input.

    Args:
        start: the first of them.
        taken: units of each input before it.
        gone: the inputs that have ended.
    """

    start: int
    taken: tuple[int, ...]
    gone: tuple[bool, ...]


class Schedule:
    """What the first positions take of each input, where the inputs' counts are known."""

    def __init__(self, draw: Draw, counts: Sequence[int | float], stop: Stop) -> None:
        self._draw = draw
        self._counts = counts
        self._stop = stop
        nothing = (0,) * len(counts), (False,) * len(counts)
        self._known = [Rounds(0, *nothing)]  # an entry more at the end of each input, the last one at the end of all
        self._ended = False

    def at(self, unit: int) -> tuple[int, Rounds, tuple[int, ...]]:
        """The position (``unit``, or the end if that comes first), its rounds, and units of each input before it."""
        while self._known[-1].start <= unit and not self._ended:
            self._on()
        rounds = self._known[bisect_right(self._known, unit, key=lambda each: each.start) - 1]
        if rounds is self._known[-1]:
            return rounds.start, rounds, rounds.taken
        return unit, rounds, self._after(rounds, unit - rounds.start)

    def total(self) -> int | float:
        """The length of the mixed stream."""
        if self._stop == "all":
            return sum(self._counts)
        if all(count == math.inf for count in self._counts):
            return math.inf
        while not self._ended:
            self._on()
        return self._known[-1].start

    def _after(self, rounds: Rounds, units: int) -> tuple[int, ...]:
        """Units of each input once so many of these rounds are done."""
        number, rest = divmod(units, ROUND)
        taken = self._draw.taken(number, rounds.gone)
        if rest:
            picks = self._draw.picks(rounds.start, number, rounds.gone)[:rest]
            taken = np.add(taken, np.bincount(picks, minlength=len(taken))).tolist()
        return tuple(a + b for a, b in zip(rounds.taken, taken, strict=True))

    def _on(self) -> None:
        """Adds what comes behind the last known end of an input."""
        rounds = self._known[-1]
        left = [count - taken for count, taken in zip(self._counts, rounds.taken, strict=True)]
        if all(each == math.inf for each, over in zip(left, rounds.gone, strict=True) if not over):
            self._ended = True
            self._known.append(rounds._replace(start=_END))
            return
        low, high = 0, 1  # rounds that can be served, and cannot
        while self._served(high, rounds, left):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._served(middle, rounds, left) else (low, middle)
        rest = np.array(left, dtype=np.float64) - self._draw.taken(low, rounds.gone)
        served, short = first_short(self._draw.picks(rounds.start, low, rounds.gone), rest)
        units = low * ROUND + served
        gone = tuple(g or i == short for i, g in enumerate(rounds.gone))
        self._ended = self._stop == "first" or all(gone)
        if self._stop == "first":
            gone = rounds.gone
        self._known.append(Rounds(rounds.start + units, self._after(rounds, units), gone))

    def _served(self, number: int, rounds: Rounds, left: Sequence[float]) -> bool:
        return all(a <= b for a, b in zip(self._draw.taken(number, rounds.gone), left, strict=True))


class MixStream(Stream):
    """``at`` is [positions done, where its rounds began, [input position, ...], [1 where an input is gone, ...]]."""

    def __init__(self, inputs: tuple[Stream, ...], operator: Mix, context: StreamContext) -> None:
        self.inputs = inputs
        self.operator = operator
        self.context = context
        self.draw = Draw(context.hash_seed(operator.seed), operator.weights)
        self._schedule: Schedule | None = None

    @property
    def count(self) -> Count:  # type: ignore[override]
        schedule = self._scheduled()
        return None if schedule is None else schedule.total()

    def _scheduled(self) -> Schedule | None:
        if self._schedule is None:
            counts = [c for c in (stream.count for stream in self.inputs) if c is not None]
            if len(counts) == len(self.inputs):
                self._schedule = Schedule(self.draw, counts, self.operator.stop)
        return self._schedule

    def start(self) -> At:
        return [0, 0, [[stream.start(), 0] for stream in self.inputs], [0] * len(self.inputs)]

    def seek(self, unit: int, lap: int = 0) -> Position:
        schedule = self._scheduled()
        if schedule is None:
            return [self.start(), unit]
        done, rounds, taken = schedule.at(unit)
        positions = [s.seek(within(t, s.count), lap) for s, t in zip(self.inputs, taken, strict=True)]
        return [[done, rounds.start, positions, [int(g) for g in rounds.gone]], 0]

    def fits(self, at: At) -> bool:
        return (
            is_list(at, 4)
            and is_count(at[0])
            and is_count(at[1])
            and at[1] <= at[0]
            and is_list(at[2], len(self.inputs))
            and all(s.fits_position(p) for s, p in zip(self.inputs, at[2], strict=True))
            and is_list(at[3], len(self.inputs))
            and all(gone in (0, 1) for gone in at[3])
        )

    def open_at(self, at: At, lap: int) -> Flow:
        return MixFlow(self, at, lap)


class MixFlow(Flow):
    def __init__(self, stream: MixStream, at: At, lap: int) -> None:
        self._draw = stream.draw
        self._stop = stream.operator.stop
        self._done, self._start, positions, gone = at
        self._gone = [bool(g) for g in gone]
        self._buffers = [
            Buffer(source.open(position, lap), position, branch_rows("mix", index, stream.context))
            for index, (source, position) in enumerate(zip(stream.inputs, positions, strict=True))
        ]
        self._have = np.zeros(len(self._buffers))  # units in each buffer
        self._picks = np.empty(0, dtype=np.int64)  # of the positions that come next
        self._size = 64  # of those that are looked at: the first ones ask few inputs; not part of any result
        self._batch = False
        self._ended = all(self._gone)

    def pull(self, wait: bool) -> Pulled:
        while not self._ended:
            if not len(self._picks):
                number, offset = divmod(self._done - self._start, ROUND)
                self._picks = self._draw.picks(self._start, number, self._gone)[offset : offset + self._size]
                self._size = min(2 * self._size, ROUND)
                self._fill_ready()
            served, short = first_short(self._picks, self._have)
            if served and (short < 0 or self._batch):
                return self._emit(served)
            if self._buffers[short].ended:
                if served:
                    return self._emit(served)
                self._lose(short)
            elif not self._fill(short, wait and not served):
                return self._emit(served) if served else PENDING
        return None

    def _fill_ready(self) -> None:
        """Take what is there already of every input that the picks lack: one by one, each is a look at all picks."""
        for index in map(int, lacking(self._picks, self._have)):
            if not self._buffers[index].ended:
                self._fill(index, wait=False)

    def _fill(self, index: int, wait: bool) -> bool:
        buffer = self._buffers[index]
        filled = buffer.fill(wait)
        self._have[index] = buffer.units
        self._batch = self._batch or buffer.batch
        return filled

    def _lose(self, index: int) -> None:
        """It is the turn of an input that has nothing left."""
        self._gone[index], self._start = True, self._done
        self._ended = self._stop == "first" or all(self._gone)
        self._picks = self._picks[:0]

    def _emit(self, units: int) -> Piece:
        at = [self._done, self._start, [b.position for b in self._buffers], [int(g) for g in self._gone]]
        batch = self._batch
        if batch:
            units = 1
        picks, self._picks = self._picks[:units], self._picks[units:]
        self._done += units
        counts = np.bincount(picks, minlength=len(self._buffers))
        self._have -= counts
        rows = concat_rows([run for i in np.flatnonzero(counts) for run in self._buffers[i].take(int(counts[i]))])
        if not batch and np.count_nonzero(counts) > 1:
            order = np.empty(units, dtype=np.int64)
            order[np.argsort(picks, kind="stable")] = np.arange(units)
            rows = rows.take(order)
        return Piece(rows, at, batch=batch)

    def close(self) -> None:
        self._ended = True
        for buffer in self._buffers:
            buffer.close()
