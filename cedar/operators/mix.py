"""mix: interleaves rows of several inputs; the position in the mixed stream determines which input is next."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.columns import Index
from cedar.core.cursor import Hashes, hash_array
from cedar.core.errors import PipelineError, ResumeError, Site, invalid_call, raised
from cedar.core.stream import (
    PENDING,
    At,
    Count,
    Flow,
    GeneratorFlow,
    Piece,
    Pieces,
    Position,
    Rows,
    Stream,
    concat_rows,
    is_count,
    is_list,
)
from cedar.operators.base import Effects, RowUse, Schema, StreamContext, StreamOperator
from cedar.operators.buffers import Buffer
from cedar.operators.concat import joined_samples, merged_schema, row_preparer, same_units
from cedar.operators.take import clip_unit, whole_seed

Stop: TypeAlias = Literal["first", "all"]
Weight: TypeAlias = "float | Callable[[int], float]"  # a schedule returns the weight at a step of the loader

ROUND = 1024  # output rows per round, in which each input gets its share; changing it changes the order of rows
_BITS, _ONE = 53, 1 << 53
_END = 1 << 62
_MAX_SCHEDULED = 1 << 22  # rounds after which schedules that let no input end are assumed to never end one


@dataclass(frozen=True)
class Mix(StreamOperator):
    """Mixes rows (or batches) of several inputs; the seed and the position decide which input comes next.

    Args:
        weights: one number above zero per input; they need not add up to one. A weight may be a function of the
            loader's step, counted from 0 over all epochs. It is called before each round, and may return zero.
        seed: combined with the seed of the run.
        stop: "first" ends the mixture when an exhausted input is next; "all" continues with the other inputs.
        local: True mixes each rank's share of the inputs separately.
        names: the names of the inputs.

    Raises:
        PipelineError: the weights are not one number above zero per input; the seed is not an integer; the inputs'
            columns differ; or some inputs deliver batches and others rows.

    Examples:
        >>> from cedar.operators.mix import Mix
        >>> Mix((0.7, 0.3)).label()
        'mix(0.7, 0.3)'
    """

    weights: tuple[Weight, ...]
    seed: int = 0
    stop: Stop = "first"
    local: bool = False
    names: tuple[str, ...] = ()
    name: ClassVar[str] = "mix"
    inputs: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", _weights(self.weights))
        object.__setattr__(self, "seed", whole_seed(self.seed, "mix"))
        if self.stop not in ("first", "all"):
            raise invalid_call(
                f"mix(stop={self.stop!r}) is not known",
                fix='"first" stops when the first input ends, "all" when the last one ends',
            )

    @property
    def row_use(self) -> RowUse:
        unsteady = "leaves out other rows in each epoch" if self.stop == "first" else None
        return RowUse("mixed", "counts rows: how many came before decides which input is next", unsteady, lanes=True)

    def label(self) -> str:
        weights = ["a schedule" if callable(weight) else f"{weight:g}" for weight in self.weights]
        if self.names:
            weights = [f"{name}={weight}" for name, weight in zip(self.names, weights, strict=True)]
        return f"mix({', '.join(weights)})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(), rows="stream")

    def parameters(self) -> dict[str, Any]:
        """Return the parameters without the weights, which may change in the middle of an epoch."""
        return {"inputs": len(self.weights), "seed": self.seed, "stop": self.stop, "local": self.local}

    def code(self) -> tuple[Any, ...]:
        return tuple(weight for weight in self.weights if callable(weight))

    def written(self) -> list[float | None]:
        """Return the weights for a checkpoint, with None for a schedule."""
        return [None if callable(weight) else weight for weight in self.weights]

    @property
    def inputs_named(self) -> tuple[str, ...]:
        """The names of the inputs, or their indices if they have no names."""
        return self.names or tuple(map(str, range(len(self.weights))))

    def changed(self, weights: Any, before: Sequence[Weight]) -> tuple[Weight, ...]:
        """Return new weights from a dict by input name or from a sequence; weight zero leaves an input out.

        Args:
            before: the current weights, which inputs that are not in the dict keep.

        Raises:
            PipelineError: the weights are invalid.
        """
        names = self.inputs_named
        if isinstance(weights, Mapping):
            if unknown := [name for name in weights if str(name) not in names]:
                raise invalid_call(f"mix has no input {unknown[0]!r}", fix=f"its inputs are {', '.join(names)}")
            weights = [weights.get(name, weight) for name, weight in zip(names, before, strict=True)]
        changed = _weights(weights, least=0.0)
        if len(changed) != len(names):
            problem = f"update_mix(): {len(changed)} weight(s) for {len(names)} inputs ({', '.join(names)})"
            raise invalid_call(problem, fix="give one for each, or a dict by name")
        if not any(callable(weight) or weight > 0 for weight in changed):
            raise invalid_call("all weights of mix are zero", fix="give at least one input a weight above zero")
        return changed

    def schema(self, *inputs: Schema) -> Schema:
        self._fits(len(inputs))
        return merged_schema("mix", inputs)

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
            problem = f"mix has {len(self.weights)} weight(s) for {inputs} input(s)"
            raise PipelineError(problem, fix="give one weight per input")


def _weights(weights: Any, least: float = math.ulp(0.0)) -> tuple[Weight, ...]:
    fix = "cedar.mix takes pairs of a pipeline and a weight above zero: mix([(a, 0.7), (b, 0.3)])"
    if not least:
        fix = "update_mix takes a weight of at least zero for each input"
    try:
        numbers = tuple(w if callable(w) else float(w) for w in weights)
    except (TypeError, ValueError) as error:
        raise invalid_call(f"the weights of mix are {weights!r}", fix=fix) from error
    if not numbers:
        raise invalid_call("mix takes at least one input", fix=fix)
    for index, weight in enumerate(numbers):
        if not callable(weight) and not least <= weight < math.inf:
            raise invalid_call(f"weight {index} of mix is {weight}", fix=fix)
    return numbers


@dataclass(frozen=True)
class Draw:
    """Determines the input of each output position from the seed, the position and the exhausted inputs only.

    Inputs are drawn for one round of positions at a time. In a round, each input gets its exact share in random order,
    with remainders carried over from earlier rounds. So the positions per input can be counted without drawing.
    """

    key: int
    weights: tuple[Weight, ...]
    step: Callable[[int], int] = lambda position: position  # maps a position to the loader's step
    site: Site | None = None
    sums: dict[Any, list[tuple[list[int], list[float]]]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def unused(self) -> tuple[bool, ...]:
        """Which inputs are never drawn because their weight is zero."""
        return tuple(not callable(weight) and weight == 0 for weight in self.weights)

    def taken(self, start: int, rounds: int, gone: Sequence[bool]) -> list[int]:
        """Return how many positions each input gets in the first ``rounds`` rounds after position ``start``.

        Each input gets its part of the positions that earlier inputs leave, so counts never decrease between rounds.
        """
        if any(map(callable, self.weights)):
            return self._scheduled(start, rounds, gone)
        weights = self._weights_at(start, gone)
        left, total = rounds * ROUND, sum(weights)
        taken = []
        for weight in weights:
            part = min(round(weight / total * _ONE), _ONE) if total > weight else _ONE if weight else 0
            taken.append(left * part >> _BITS)
            left -= taken[-1]
            total -= weight
        last = max(i for i, weight in enumerate(weights) if weight)  # the last input gets the rounding remainder
        taken[last] += left
        return taken

    def _scheduled(self, start: int, rounds: int, gone: Sequence[bool]) -> list[int]:
        """Compute ``taken`` round by round for schedules; fractions of a unit are carried over to the next round."""
        nothing = [0] * len(self.weights), [0.0] * len(self.weights)
        sums = self.sums.setdefault((start, *gone), [nothing])
        while len(sums) <= rounds:
            taken, due = sums[-1]
            weights = self._weights_at(start + (len(sums) - 1) * ROUND, gone)
            due = [d + ROUND * weight / sum(weights) for d, weight in zip(due, weights, strict=True)]
            given = [math.floor(d) if weight else 0 for d, weight in zip(due, weights, strict=True)]
            over = sorted((i for i, w in enumerate(weights) if w), key=lambda i: given[i] - due[i])
            for i in range(abs(ROUND - sum(given))):
                given[over[i % len(over)]] += 1 if sum(given) < ROUND else -1
            sums.append(
                ([t + g for t, g in zip(taken, given, strict=True)], [d - g for d, g in zip(due, given, strict=True)])
            )
        return list(sums[rounds][0])

    def _weights_at(self, position: int, gone: Sequence[bool]) -> list[float]:
        """Return the weights at a position, with zero for exhausted inputs."""
        step, fix = self.step(position), "a schedule must return a number, zero or above"
        weights: list[float] = []
        for number, weight in enumerate(self.weights):
            try:
                weights.append(float(weight(step)) if callable(weight) else weight)
            except raised() as error:
                what = f"mix: the schedule of input {number} failed at step {step}: {type(error).__name__}: {error}"
                raise PipelineError(what, site=self.site, fix=fix) from error
        if not all(0 <= weight < math.inf for weight in weights):
            raise PipelineError(f"the weights of mix are {weights} at step {step}", site=self.site, fix=fix)
        left = [0.0 if over else weight for weight, over in zip(weights, gone, strict=True)]
        return left if any(left) else [0.0 if over else 1.0 for over in gone]

    def picks(self, start: int, number: int, gone: Sequence[bool]) -> Index:
        """Return the input at each position of round ``number`` after position ``start``, int64[ROUND]."""
        counts = np.diff([self.taken(start, each, gone) for each in (number, number + 1)], axis=0)[0]
        first = start + number * ROUND
        hashes: Hashes = np.asarray(hash_array(self.key, np.arange(first, first + ROUND, dtype=np.int64)))
        inputs: Index = np.repeat(np.arange(len(counts)), counts)
        inputs[np.argsort(hashes, kind="stable")] = inputs.copy()
        return inputs


def short_inputs(picks: Index, have: npt.NDArray[np.float64]) -> Index:
    """Return the inputs that have too few units for these picks."""
    return np.flatnonzero(np.bincount(picks, minlength=len(have)) > have)


def first_short(picks: Index, have: npt.NDArray[np.float64]) -> tuple[int, int]:
    """Return how many picks can be served from ``have`` units per input, and the input that then lacks a unit or -1."""
    if not len(short_inputs(picks, have)):
        return len(picks), -1
    narrow = picks.astype(np.min_scalar_type(len(have)))  # NumPy radix-sorts small types
    order = np.argsort(narrow, kind="stable")
    ordered = narrow[order]
    turn = np.arange(len(picks)) - np.searchsorted(ordered, ordered)  # number of earlier picks of the same input
    served = int(order[turn >= have[ordered]].min())
    return served, int(picks[served])


class Rounds(NamedTuple):
    """A range of positions during which the same inputs are exhausted.

    Args:
        start: the first position of the range.
        taken: the number of units that come from each input before ``start``.
        gone: for each input, whether it is exhausted.
    """

    start: int
    taken: tuple[int, ...]
    gone: tuple[bool, ...]


class Schedule:
    """Computes how many of the first positions go to each input, if the inputs' counts are known."""

    def __init__(self, draw: Draw, counts: Sequence[int | float], stop: Stop) -> None:
        self._draw = draw
        self._counts = counts
        self._stop = stop
        first = Rounds(0, (0,) * len(counts), draw.unused)
        self._known = [first]  # one entry from the start, and one from each input's end; the last is the end of all
        self._ended = False

    def at(self, unit: int) -> tuple[int, Rounds, tuple[int, ...]]:
        """Return the position (``unit`` or the earlier end), its ``Rounds``, and the unit counts of inputs before."""
        while self._known[-1].start <= unit and not self._ended:
            self._find_next_end()
        rounds = self._known[bisect_right(self._known, unit, key=lambda each: each.start) - 1]
        if rounds is self._known[-1]:
            return rounds.start, rounds, rounds.taken
        return unit, rounds, self._taken_after(rounds, unit - rounds.start)

    def total(self) -> int | float:
        """Return the length of the mixed stream."""
        used = [count for count, over in zip(self._counts, self._draw.unused, strict=True) if not over]
        if self._stop == "all":
            return sum(used)
        if all(count == math.inf for count in used):
            return math.inf
        while not self._ended:
            self._find_next_end()
        return self._known[-1].start

    def _taken_after(self, rounds: Rounds, units: int) -> tuple[int, ...]:
        """Return the number of units from each input before position ``units`` of ``rounds``."""
        number, rest = divmod(units, ROUND)
        taken = self._draw.taken(rounds.start, number, rounds.gone)
        if rest:
            picks = self._draw.picks(rounds.start, number, rounds.gone)[:rest]
            taken = np.add(taken, np.bincount(picks, minlength=len(taken))).tolist()
        return tuple(a + b for a, b in zip(rounds.taken, taken, strict=True))

    def _find_next_end(self) -> None:
        """Find the position at which the next input ends, and append an entry for the positions after it."""
        rounds = self._known[-1]
        left = [count - taken for count, taken in zip(self._counts, rounds.taken, strict=True)]
        if all(each == math.inf for each, over in zip(left, rounds.gone, strict=True) if not over):
            self._ended = True
            self._known.append(rounds._replace(start=_END))
            return

        def can_serve(number: int) -> bool:
            taken = self._draw.taken(rounds.start, number, rounds.gone)
            return all(a <= b for a, b in zip(taken, left, strict=True))

        most = _MAX_SCHEDULED if any(map(callable, self._draw.weights)) else _END // ROUND
        low, high = 0, 1  # a number of rounds that the inputs can fill, and one that they cannot
        while can_serve(high):
            low, high = high, 2 * high
            if high > most:
                self._ended = True  # with these weights, no input ends
                self._known.append(rounds._replace(start=_END))
                return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if can_serve(middle) else (low, middle)
        rest = np.array(left, dtype=np.float64) - self._draw.taken(rounds.start, low, rounds.gone)
        served, short = first_short(self._draw.picks(rounds.start, low, rounds.gone), rest)
        units = low * ROUND + served
        gone = tuple(g or i == short for i, g in enumerate(rounds.gone))
        self._ended = self._stop == "first" or all(gone)
        if self._stop == "first":
            gone = rounds.gone
        self._known.append(Rounds(rounds.start + units, self._taken_after(rounds, units), gone))


class MixStream(Stream):
    """A position ``at`` is [output position, start of its ``Rounds``, [input position, ...], [1 if ended, ...]]."""

    def __init__(self, inputs: tuple[Stream, ...], operator: Mix, context: StreamContext) -> None:
        self.inputs = inputs
        self.operator = operator
        self.context = context
        key, weights = context.hash_seed(operator.seed), context.weights or operator.weights
        drawn = context.drawn or [(0, weights)]
        # (first position, draw)
        self.draws = [(int(first), Draw(key, tuple(each), context.step, context.site)) for first, each, *_ in drawn]
        self.draw = self.draws[-1][1]
        self._origin = next(iter(drawn[0][2:]), None)  # positions in the inputs; None for an exhausted input
        self._schedule: Schedule | None = None
        self.rest: list[Position | None] | None = None  # if a flow ended before all inputs: what remains, like _origin

    @property
    def count(self) -> Count:  # type: ignore[override]
        schedule = self._scheduled()
        return None if schedule is None else schedule.total()

    def _scheduled(self) -> Schedule | None:
        if self._schedule is None:
            counts = [c for c in (stream.count for stream in self.inputs) if c is not None]
            if len(counts) == len(self.inputs) and self._origin is None:
                self._schedule = Schedule(self.draw, counts, self.operator.stop)
        return self._schedule

    def start(self) -> At:
        starts: list[Any] = [[stream.start(), 0] for stream in self.inputs]
        if self._origin is None:
            return [0, 0, starts, [0] * len(starts)]
        origin = [*self._origin, *starts[len(self._origin) :]]  # inputs that were added begin at their start
        places = [place or start for place, start in itertools.zip_longest(origin, starts)]
        at = [0, 0, places, [int(not place) for place in origin]]
        if not self.fits(at):
            raise ResumeError("the position in the state does not exist in this pipeline", done="nothing was read")
        return at

    def seek(self, unit: int, lap: int = 0) -> Position:
        schedule = self._scheduled()
        if schedule is None:
            return [self.start(), unit]
        done, rounds, taken = schedule.at(unit)
        positions = [s.seek(clip_unit(t, s.count), lap) for s, t in zip(self.inputs, taken, strict=True)]
        return [[done, rounds.start, positions, [int(g) for g in rounds.gone]], 0]

    def taken(self, unit: int) -> tuple[int, ...]:
        """Return how many of the first ``unit`` units come from each input; the inputs' counts must be known."""
        schedule = self._scheduled()
        assert schedule is not None
        return schedule.at(unit)[2]

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
        if min(len(at[2]), len(self.draws[0][1].weights)) < len(self.inputs):
            raise PipelineError(
                "update_mix(): a rank had ended its part of this epoch before an input was added",
                fix="add the input at the beginning of an epoch",
            )
        buffers = [
            Buffer(source.open(position, lap), position, row_preparer("mix", index, self.context))
            for index, (source, position) in enumerate(zip(self.inputs, at[2], strict=True))
        ]
        return GeneratorFlow(self._mixed(at, buffers), *buffers)

    def _mixed(self, at: At, buffers: list[Buffer]) -> Pieces:
        done, start, gone = at[0], at[1], [bool(over) for over in at[3]]
        available = np.zeros(len(buffers))  # number of units in each buffer
        size = 64  # positions drawn at a time; few at first, to open few inputs; it does not affect results
        ended = False

        def fill(index: int, wait: bool) -> bool:
            filled = buffers[index].fill(wait)
            available[index] = buffers[index].units
            return filled

        wait = yield PENDING
        while not ended:
            picks, start = self._picks(done, start, gone, size)
            size, ended = min(2 * size, ROUND), not len(picks)
            for index in map(int, short_inputs(picks, available)):
                if not buffers[index].ended:  # filling all inputs at once is faster than one each time
                    fill(index, wait=False)
            while len(picks):
                served, short = first_short(picks, available)
                batch = served > 0 and buffers[picks[0]].batch
                if short >= 0 and not batch:
                    if not buffers[short].ended:
                        if fill(short, wait and not served):
                            continue
                        if not served:
                            wait = yield PENDING
                            continue
                    elif not served:
                        gone[short], start, ended = True, done, self.operator.stop == "first"
                        break
                units = 1 if batch else served
                place = [done, start, [b.position for b in buffers], [int(over) for over in gone]]
                counts = np.bincount(picks[:units], minlength=len(buffers))
                available -= counts
                wait = yield Piece(_take_picked(picks[:units], counts, buffers), place, batch=batch)
                picks, done = picks[units:], done + units
        if self.operator.stop == "all" or not any(gone):
            self.rest = [None if over else buffer.position for buffer, over in zip(buffers, gone, strict=True)]

    def _picks(self, position: int, start: int, gone: list[bool], size: int) -> tuple[Index, int]:
        """Return the inputs at the next positions, none if all inputs ended, and the start of their ``Rounds``."""
        number = max(number for number, (first, _) in enumerate(self.draws) if first <= position)
        first, draw = self.draws[number]
        until = self.draws[number + 1][0] if number + 1 < len(self.draws) else _END
        start = max(first, start)
        not_drawn = [over or unused for over, unused in zip(gone, draw.unused, strict=True)]
        if all(not_drawn):
            return np.empty(0, dtype=np.int64), start
        rounds, offset = divmod(position - start, ROUND)
        return draw.picks(start, rounds, not_drawn)[offset : offset + min(size, until - position)], start


def _take_picked(picks: Index, counts: Index, buffers: list[Buffer]) -> Rows:
    """Remove ``counts`` units from the buffers, and return them in the order of the picks."""
    rows = concat_rows([run for i in np.flatnonzero(counts) for run in buffers[i].take(int(counts[i]))])
    if np.count_nonzero(counts) == 1:
        return rows
    order = np.empty(len(picks), dtype=np.int64)
    order[np.argsort(picks, kind="stable")] = np.arange(len(picks))
    return rows.take(order)
