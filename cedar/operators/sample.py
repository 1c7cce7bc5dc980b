"""sample: draws rows from a stream, weighted or unweighted, with or without replacement.

A first pass sums the weights of each run of 1,024 rows, and then draws the number of rows to take from each run. A
second pass draws these rows. Memory use is one number per run; only weighted draws without replacement need one number
per row. The result of the first pass is stored, so that a resume does not read all rows again. ``Pipeline.sample``
adds shuffles before and after the operator, for a random order.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.columns import Index
from cedar.core.cursor import hash_ints
from cedar.core.errors import PipelineError, invalid_call, require_columns
from cedar.core.stream import (
    PENDING,
    At,
    Count,
    Flow,
    GeneratorFlow,
    Pending,
    Piece,
    Pieces,
    Position,
    Rows,
    Stream,
    converted,
)
from cedar.operators.base import Effects, Mixing, Ordering, Resizable, RowUse, Schema, StreamContext, StreamOperator
from cedar.operators.buffers import OrderedTasks, chunked, keep_columns, task_per_piece
from cedar.operators.take import whole, whole_seed
from cedar.operators.weights import AS_COLUMN, live_weights, require_weights, weight_columns
from cedar.store.entry import Entry
from cedar.store.keep import load, save, user_place
from cedar.store.place import name_of

RUN = 1024  # rows per run; it must never change, because it affects results
_POSITION_INTERVAL = 64  # if the input's row count is unknown, the first pass stores the position of every 64th run
_MAX_GAP = 16  # if more consecutive runs have no drawn rows, the second pass skips them by seeking
_MAX_EXACT_ROWS = 10**9  # the maximum number of rows from which NumPy draws exactly without replacement
_MAX_CACHED_LAPS = 4  # the number of laps whose first pass is cached


@dataclass(frozen=True, eq=False)
class Sample(StreamOperator, Resizable):
    """Draws ``n`` rows at random. They keep the input's order, with copies of a row next to each other.

    A row that an earlier operator skipped can be drawn with the average weight of its run, so that skips stay visible.

    Args:
        weights: a column or an elementwise expression, not negative; None gives all rows equal weights.
        n: the number of rows to draw; None draws as many as the input has.
        seed: combined with the seed of the run.
        local: True draws from each rank's share separately.
        fraction: the share of the input's rows to draw, instead of ``n``.
        replace: whether a row may be drawn more than once.

    Raises:
        PipelineError: ``n``, ``fraction`` or ``seed`` is invalid, or weights are not row-wise or use a selector. While
            running, the input is endless or empty, all weights are zero or their sum is infinite, or there are too few
            rows.
        RowError: while running, a weight is null, NaN, infinite or negative.

    Examples:
        >>> from cedar.operators.sample import Sample
        >>> Sample("clicks", n=100).label()
        "sample('clicks', n=100)"
    """

    weights: Any = None
    n: int | None = None
    seed: int = 0
    local: bool = False
    fraction: float | None = None
    replace: bool = True
    name: ClassVar[str] = "sample"
    row_use = RowUse("drawn")

    def __post_init__(self) -> None:
        if self.n is not None:
            object.__setattr__(self, "n", whole(self.n, "sample(n)"))
        object.__setattr__(self, "seed", whole_seed(self.seed, "sample"))
        most, fraction = math.inf if self.replace else 1, self.fraction
        number = isinstance(fraction, int | float | np.integer | np.floating) and not isinstance(fraction, bool)
        if fraction is not None and not (number and self.n is None and 0 <= fraction <= most and fraction < math.inf):
            raise invalid_call(
                f"sample(n={self.n!r}, fraction={self.fraction!r}, replace={self.replace})",
                fix="give n or fraction, a share of the rows from 0 to 1; above 1 only with replace=True",
            )
        if fraction is not None:
            object.__setattr__(self, "fraction", float(fraction))
        if self.weights is not None and not isinstance(self.weights, str) and not hasattr(self.weights, "meta"):
            raise invalid_call(
                f"sample(weights={self.weights!r:.80})",
                fix="give the name of a column, or an expression such as col('clicks') + 1; "
                + (AS_COLUMN if hasattr(self.weights, "__len__") else "sample(n=5) draws 5 rows"),
            )
        if self.weights is not None and not isinstance(self.weights, str):
            require_weights(self.weights, "sample(weights)")

    @property
    def ordering(self) -> Ordering:
        return Ordering(Mixing(seed=self.seed))

    def resized(self, few: Callable[[int, int, int], int]) -> Sample:
        return self if self.n is None else replace(self, n=None, fraction=0.5)  # filters may leave fewer rows than few

    def label(self) -> str:
        shown = [] if self.n is None else [f"n={self.n}"]
        shown += [] if self.fraction is None else [f"fraction={self.fraction}"]
        if self.weights is not None:
            shown.insert(0, repr(self.weights) if isinstance(self.weights, str) else str(self.weights))
        return f"sample({', '.join(shown)})"

    def effects(self) -> Effects:
        return Effects(frozenset(weight_columns(self.weights)), frozenset(), random=True, rows="stream")

    def schema(self, *inputs: Schema) -> Schema:
        require_columns(weight_columns(self.weights), inputs[0], "sample(weights)")
        return inputs[0]

    def batched(self, *inputs: bool) -> bool:
        if inputs[0]:
            raise PipelineError("sample draws rows, but its input gives batches", fix="call sample() before batch()")
        return False

    def parameters(self) -> dict[str, Any]:
        weights = None if self.weights is None else str(self.weights)
        chosen = {"weights": weights, "n": self.n, "seed": self.seed, "local": self.local}
        return chosen | {"fraction": self.fraction, "replace": self.replace}

    def wanted(self, rows: int) -> int:
        """Return how many rows to draw from ``rows`` rows."""
        return self.n if self.n is not None else rows if self.fraction is None else round(self.fraction * rows)

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return SampleStream(inputs[0], self, context)


class SampleStream(Stream):
    """A position ``at`` is the index of a run of input rows."""

    def __init__(self, source: Stream, operator: Sample, context: StreamContext) -> None:
        self.source = source
        self.operator = operator
        self.context = context
        self.key = context.hash_seed(operator.seed)
        self._surveys: dict[int, DrawSurvey] = {}

    @property
    def count(self) -> Count:  # type: ignore[override]
        count = self.source.count
        if self.operator.n is not None or count is None or count == math.inf:
            return count if self.operator.n is None else self.operator.n
        return self.operator.wanted(int(count))

    def start(self) -> At:
        return 0

    def seek(self, unit: int, lap: int = 0) -> Position:
        survey = self.survey(lap)
        survey.step(wait=True)
        run = min(bisect_right(survey.ends, unit), len(survey.draws))
        return [run, unit - (int(survey.ends[run - 1]) if run else 0)]

    def open_at(self, at: At, lap: int) -> Flow:
        survey = self.survey(lap)
        runs = GeneratorFlow(self._runs(survey, at, lap))
        operator, site = self.operator, self.context.site

        def step(wait: bool) -> tuple[int, Any] | Pending | None:
            piece = runs.pull(wait)
            if not isinstance(piece, Piece):
                return piece
            run, n = piece.at, int(survey.draws[piece.at])
            if not n:
                return run, None
            seed = survey.seed(run)
            return run, self.context.submit(draw_rows, piece.rows, operator.weights, n, seed, site, operator.replace)

        def drawn(pulled: tuple[int, Block | None]) -> Piece | None:
            run, block = pulled
            return None if block is None else Piece(Rows.of(block), run)

        tasks = OrderedTasks(step)
        return GeneratorFlow(converted(tasks.pull, drawn), survey, tasks, runs)

    def _runs(self, survey: DrawSurvey, run: int, lap: int) -> Pieces:
        """Yield the runs of input rows from which rows are drawn, and short gaps; ``at`` is the index of a run."""
        wait = yield PENDING
        while not survey.step(wait):
            wait = yield PENDING
        while (stretch := survey.next_stretch(run)) is not None:
            run, last = stretch
            position = survey.position(run)
            with closing(chunked(self.source.open(position, lap), position, RUN)) as source:
                while run <= last:
                    piece = source.pull(wait)
                    if piece is None:
                        return
                    if piece is PENDING:
                        wait = yield PENDING
                    else:
                        wait = yield Piece(piece.rows, run)
                        run += 1
                    del piece

    def survey(self, lap: int) -> DrawSurvey:
        """Return the first pass of a lap, which runs once, when its result is needed."""
        if lap not in self._surveys:
            if self.source.count == math.inf:
                raise PipelineError(
                    "sample needs an input that ends",
                    site=self.context.site,
                    fix="call sample() before repeat(), or take(n) before sample()",
                )
            self._surveys[lap] = DrawSurvey(self, lap)
            while len(self._surveys) > _MAX_CACHED_LAPS:
                del self._surveys[next(iter(self._surveys))]
        return self._surveys[lap]


class DrawSurvey:
    """The first pass. When it is done, ``draws`` has the number of rows to take per run, and ``ends`` its cumsum."""

    def __init__(self, stream: SampleStream, lap: int) -> None:
        self._stream = stream
        self._lap = lap
        self._key = hash_ints(stream.key, lap)
        self._noted: list[Position] = []
        self._pass: Flow | None = None  # a flow without pieces, which ends when the pass is done
        self.ready = False

    def step(self, wait: bool) -> bool:
        """Continue the pass; return True when it is done, and False if it would have to wait but ``wait`` is False."""
        if not self.ready:
            try:
                self._pass = self._pass or GeneratorFlow(self._first_pass())
                self.ready = self._pass.pull(wait) is None
            except BaseException:
                self.close()
                raise
        return self.ready

    def close(self) -> None:
        """Discard an incomplete first pass, so that ``step`` starts again from the beginning."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    def _first_pass(self) -> Pieces:
        source, operator = self._stream.source, self._stream.operator
        wait = yield PENDING
        if operator.weights is None and source.count is not None:
            count = int(source.count)
            self._settle([float(min(RUN, count - first)) for first in range(0, count, RUN)], count, [])
        elif not self._load():
            start = [source.start(), 0]
            sums: list[float] = []
            arrivals: list[npt.NDArray[np.float64]] = []  # per run; only for weighted draws without replacement
            rows, self._noted, numbers = 0, [], itertools.count()
            with (
                closing(chunked(source.open(start, self._lap), start, RUN)) as runs,
                closing(OrderedTasks(task_per_piece(runs, lambda piece: self._weigh(piece, next(numbers))))) as tasks,
            ):
                while (pulled := tasks.pull(wait)) is not None:
                    if pulled is PENDING:
                        wait = yield PENDING
                        continue
                    piece, weighed = pulled
                    if not isinstance(weighed, float):
                        arrivals.append(weighed)
                        weighed = float(np.isfinite(weighed).sum())  # the number of rows that can be drawn
                    if len(sums) % _POSITION_INTERVAL == 0:
                        self._noted.append(piece.position())
                    sums.append(weighed)
                    rows += piece.units
                    del pulled, piece
            self._settle(sums, rows, arrivals)
            self._store(rows)

    @cached_property
    def _name(self) -> str | None:
        """The name of the stored result of the pass; None if it is not stored."""
        key = self._stream.context.stored_as()
        return None if key is None else name_of("sample", [key, self._lap, RUN])

    def _load(self) -> bool:
        """Use the result of the pass that an earlier run stored, if there is one."""

        def read(entry: Entry) -> tuple[Index, list[Position]]:
            draws, noted = np.frombuffer(entry.body, dtype="<i8"), entry.about["noted"]
            wanted = self._stream.operator.wanted(int(entry.about["rows"]))
            if (draws < 0).any() or draws.sum() != wanted or not all(map(self._stream.source.fits_position, noted)):
                raise ValueError("it is not the result of a first pass")
            return draws.astype(np.int64), noted

        known = None if self._name is None else load(user_place(), self._name, read)
        if known is not None:
            self._use(*known)
        return known is not None

    def _store(self, rows: int) -> None:
        def write(sink: Any) -> dict[str, Any]:
            sink.write(self.draws.astype("<i8").tobytes())
            return {"rows": rows, "noted": self._noted}

        if self._name is not None:
            save(user_place(), self._name, write)

    def _use(self, draws: Index, noted: list[Position]) -> None:
        self.draws, self._noted, self.ends = draws, noted, np.cumsum(draws)

    def _weigh(self, piece: Piece, run: int) -> Any:
        operator, site = self._stream.operator, self._stream.context.site
        rows = keep_columns(piece.rows, weight_columns(operator.weights), "sample(weights)", site)
        races = None if operator.replace or operator.weights is None else self.seed(run)
        return self._stream.context.submit(run_weight, rows, operator.weights, site, races)

    def _settle(self, weights: list[float], rows: int, arrivals: list[npt.NDArray[np.float64]]) -> None:
        """Draw the number of rows to take from each run."""
        operator = self._stream.operator
        sums = np.array(weights, dtype=np.float64)
        n = operator.wanted(rows)
        if n and not sums.any():
            raise PipelineError(
                f"sample: {'the weights of all rows are zero' if rows else 'the input has no rows'}",
                site=self._stream.context.site,
                fix="check the operators before sample(), and its weights",
            )
        if math.isinf(sum(weights)):
            raise PipelineError(
                "sample: the weights are so large that their sum is infinite",
                site=self._stream.context.site,
                fix="scale them down: only their ratios matter",
            )
        if not operator.replace and n > (there := int(sums.sum())):
            raise PipelineError(
                f"sample: cannot draw {n:,} rows without replacement from {there:,} rows",
                site=self._stream.context.site,
                fix="draw fewer, or give replace=True",
            )
        if operator.replace:
            draws = draw(n, sums, self.seed(-1))
        elif arrivals:
            first = np.argsort(np.concatenate(arrivals), kind="stable")[:n]
            ends = np.cumsum([len(race) for race in arrivals])
            draws = np.bincount(np.searchsorted(ends, first, side="right"), minlength=len(sums))
        else:
            draws = without_replacement(n, sums.astype(np.int64), self.seed(-1))
        self._use(draws, self._noted if self._stream.source.count is None else [])

    def seed(self, run: int) -> int:
        """Return the seed for drawing rows of a run; run -1 means the seed for drawing the numbers of rows per run."""
        return hash_ints(self._key, run)

    def position(self, run: int) -> Position:
        """Return the input position at which a run begins."""
        if self._stream.source.count is not None:
            return self._stream.source.seek(run * RUN, self._lap)
        at, skip = self._noted[run // _POSITION_INTERVAL]
        return [at, skip + run % _POSITION_INTERVAL * RUN]

    def next_stretch(self, run: int) -> tuple[int, int] | None:
        """Return the first and last index of the next runs that are read without seeking; None at the end."""
        drawn = np.flatnonzero(self.draws)
        drawn = drawn[np.searchsorted(drawn, run) :]
        if not len(drawn):
            return None
        gaps = np.flatnonzero(np.diff(drawn) > _MAX_GAP)
        return int(drawn[0]), int(drawn[gaps[0] if len(gaps) else -1])


def draw(n: int, weights: npt.NDArray[np.float64], seed: int) -> Index:
    """Return how often each item is drawn in ``n`` weighted draws, int64[len(weights)]; weight 0 is never drawn."""
    counts = np.zeros(len(weights), dtype=np.int64)
    some = np.flatnonzero(weights > 0)
    if n and len(some):
        share = weights[some] / weights[some].sum()
        counts[some] = np.random.default_rng(seed).multinomial(n, share / share.sum())
    return counts


def without_replacement(n: int, sizes: Index, seed: int) -> Index:
    """Draw ``n`` rows without replacement from runs of these sizes; return the number of rows per run."""
    rng, counts, left = np.random.default_rng(seed), np.zeros(len(sizes), dtype=np.int64), int(sizes.sum())
    for i, size in enumerate(sizes.tolist()):
        left -= size
        taken = rng.hypergeometric(size, left, n) if left < _MAX_EXACT_ROWS else rng.binomial(n, size / (left + size))
        counts[i] = min(max(taken, n - left), size)
        n -= int(counts[i])
    return counts


def arrival_times(weights: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    """Return exponential random numbers with the weights as rates; rows with the n smallest are a weighted sample."""
    with np.errstate(divide="ignore"):
        return np.random.default_rng(seed).exponential(size=len(weights)) / weights


def slot_weights(block: Block, weights: Any, site: Any) -> npt.NDArray[np.float64]:
    """Return the weight of each slot; a skipped row gets the average weight of the live rows."""
    live = live_weights(block, weights, site)
    slots = np.full(block.slots, live.mean() if len(live) else 1.0)
    slots[block.live_slots()] = live
    return slots


def run_weight(rows: Rows, weights: Any, site: Any, seed: int | None) -> float | npt.NDArray[np.float64]:
    """Return the total weight of a run of rows; with a seed, return its rows' ``arrival_times``."""
    with np.errstate(over="ignore"):  # the first pass raises an error for infinite sums
        each = slot_weights(rows.gather(), weights, site)
        return float(each.sum()) if seed is None else arrival_times(each, seed)


def draw_rows(rows: Rows, weights: Any, n: int, seed: int, site: Any, replace_rows: bool) -> Block:
    """Draw ``n`` rows from a run; each copy of a row gets its own key."""
    block = rows.gather()
    each = slot_weights(block, weights, site)
    if replace_rows:
        counts = draw(n, each, seed)
    else:
        counts = np.zeros(block.slots, dtype=np.int64)
        counts[np.argsort(arrival_times(each, seed), kind="stable")[:n]] = 1
    copies = block.take(np.repeat(np.arange(block.slots), counts))
    return replace(copies, keys=block.keys.copies(counts))
