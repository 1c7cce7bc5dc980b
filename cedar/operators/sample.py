"""sample: weighted or not, with or without replacement, as a stream.

A first pass adds up the weights of runs of rows; how often each run is drawn is settled there. A second pass settles
inside each run how often each row is drawn. Nothing but a number per run is held in memory, but for weights without
replacement: a number per row. ``Pipeline.sample`` puts shuffles around it, for a random order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.columns import Index
from cedar.core.cursor import hash_ints
from cedar.core.errors import PipelineError, missing_column, user_site
from cedar.core.stream import PENDING, At, Count, Flow, Piece, Position, Pulled, Rows, Stream
from cedar.operators.base import Effects, Mixing, Schema, StreamContext, StreamOperator
from cedar.operators.buffers import Ahead, ChunkFlow, narrow, over
from cedar.operators.take import whole
from cedar.operators.weights import live_weights, require_weights, weight_columns

RUN = 1024  # rows of a run: part of the result, so it never changes
_NOTED = 64  # where the count is unknown, the position of every so many runs is kept
_GAP = 16  # so many runs without a draw are jumped over
_EXACT = 10**9  # rows up to which numpy draws exactly without replacement
_LAPS = 4  # laps whose first pass is remembered


@dataclass(frozen=True, eq=False)
class Sample(StreamOperator):
    """``n`` rows drawn at random; they come in the order of the input, copies of a row together.

    Rows that were skipped above weigh as much as the average row of their run of 1,024, so that what they cost shows.

    Args:
        weights: a column or an elementwise expression, not negative; None weighs all rows alike.
        n: how many; None for as many as the input has.
        seed: mixed into the seed of the run.
        local: True draws from each rank's share by itself.
        fraction: of the rows of the input, in place of ``n``.
        replace: a row may be drawn more than once.

    Raises:
        PipelineError: a bad ``n`` or ``fraction``, weights that are not row-wise, or that a selector picks;
            while running, an input without end, without rows or with weights that are all zero or have no finite sum,
            or more rows to draw than there are.
        RowError: while running, a weight that is null, NaN, infinite or negative.

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
    recounts = True

    def __post_init__(self) -> None:
        if self.n is not None:
            object.__setattr__(self, "n", whole(self.n, "sample(n)"))
        most = math.inf if self.replace else 1
        if self.fraction is not None and (self.n is not None or not 0 <= self.fraction <= most):
            raise PipelineError(
                f"sample(n={self.n!r}, fraction={self.fraction!r}, replace={self.replace})",
                site=user_site(),
                fix="give n or fraction, a share of the rows from 0 to 1, above 1 with replace=True alone",
            )
        if self.weights is not None and not isinstance(self.weights, str) and not hasattr(self.weights, "meta"):
            raise PipelineError(
                f"sample(weights={self.weights!r})",
                site=user_site(),
                fix="give the name of a column, or an expression such as col('clicks') + 1; sample(n=5) draws 5 rows",
            )
        if self.weights is not None and not isinstance(self.weights, str):
            require_weights(self.weights, "sample(weights)")

    @property
    def unsteady(self) -> str:
        return "draws other rows in each epoch"

    @property
    def mixing(self) -> Mixing:
        return Mixing(seed=self.seed)

    def label(self) -> str:
        shown = [] if self.n is None else [f"n={self.n}"]
        shown += [] if self.fraction is None else [f"fraction={self.fraction}"]
        if self.weights is not None:
            shown.insert(0, repr(self.weights) if isinstance(self.weights, str) else str(self.weights))
        return f"sample({', '.join(shown)})"

    def effects(self) -> Effects:
        return Effects(frozenset(weight_columns(self.weights)), frozenset(), random=True, rows="stream")

    def schema(self, *inputs: Schema) -> Schema:
        for name in weight_columns(self.weights) if inputs[0] is not None else ():
            if inputs[0] is not None and name not in inputs[0]:
                raise missing_column(name, list(inputs[0]), "sample(weights)")
        return inputs[0]

    def batched(self, *inputs: bool) -> bool:
        if inputs[0]:
            raise PipelineError("sample draws rows, and its input gives batches", fix="put sample() above batch()")
        return False

    def parameters(self) -> dict[str, Any]:
        weights = None if self.weights is None else str(self.weights)
        chosen = {"weights": weights, "n": self.n, "seed": self.seed, "local": self.local}
        return chosen | {"fraction": self.fraction, "replace": self.replace}

    def wanted(self, rows: int) -> int:
        """How many rows are drawn of so many."""
        return self.n if self.n is not None else rows if self.fraction is None else round(self.fraction * rows)

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return SampleStream(inputs[0], self, context)


class SampleStream(Stream):
    """``at`` is the number of a run of input rows."""

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
        return SampleFlow(self, self.survey(lap), at, lap)

    def survey(self, lap: int) -> DrawSurvey:
        """The first pass of a lap: made once, and lazily."""
        if lap not in self._surveys:
            if self.source.count == math.inf:
                raise PipelineError(
                    "sample needs an input that ends",
                    site=self.context.site,
                    fix="put sample() above repeat(), or take(n) above sample()",
                )
            self._surveys[lap] = DrawSurvey(self, lap)
            while len(self._surveys) > _LAPS:
                del self._surveys[next(iter(self._surveys))]
        return self._surveys[lap]


class DrawSurvey:
    """How often each run is drawn: ``draws``, int64[runs], and their running sum ``ends``, once ``step`` says True."""

    def __init__(self, stream: SampleStream, lap: int) -> None:
        self._stream = stream
        self._lap = lap
        self._key = hash_ints(stream.key, lap)
        self._sums: list[float] = []
        self._races: list[npt.NDArray[np.float64]] = []  # of weights without replacement: of each run
        self._weighed = 0  # runs that were submitted
        self._rows = 0
        self._noted: list[Position] = []
        self._ahead: Ahead[Piece] | None = None
        self._flow: Flow | None = None
        self.ready = False

    def step(self, wait: bool) -> bool:
        """Continue; False if there was something to wait for and ``wait`` is False."""
        if self.ready:
            return True
        if self._stream.operator.weights is None and self._stream.source.count is not None:
            self._rows = int(self._stream.source.count)
            self._sums = [float(min(RUN, self._rows - first)) for first in range(0, self._rows, RUN)]
        elif not self._read(wait):
            return False
        self._settle()
        return True

    def _read(self, wait: bool) -> bool:
        stream = self._stream
        if self._ahead is None:
            start = [stream.source.start(), 0]
            self._flow = ChunkFlow(stream.source.open(start, self._lap), start, RUN)
            self._ahead = Ahead(over(self._flow, self._weigh))
        try:
            while (pulled := self._ahead.pull(wait)) is not None:
                if not isinstance(pulled, tuple):
                    return False
                self._note(*pulled)
        except BaseException:
            self.close()  # or the next flow of this lap would continue behind the run that failed
            raise
        if self._flow is not None:
            self._flow.close()
        return True

    def _note(self, piece: Piece, weighed: float | npt.NDArray[np.float64]) -> None:
        if not isinstance(weighed, float):
            self._races.append(weighed)
            weighed = float(np.isfinite(weighed).sum())  # rows that may be drawn
        if len(self._sums) % _NOTED == 0:
            self._noted.append(piece.position())
        self._sums.append(weighed)
        self._rows += piece.units

    def close(self) -> None:
        """Release a first pass that is not complete; ``step`` would start again."""
        if self._ahead is not None and self._flow is not None and not self.ready:
            self._ahead.close()
            self._flow.close()
            self._ahead = self._flow = None
            self._sums, self._noted, self._races, self._rows, self._weighed = [], [], [], 0, 0

    def _weigh(self, piece: Piece) -> Any:
        operator, site = self._stream.operator, self._stream.context.site
        rows = narrow(piece.rows, weight_columns(operator.weights), "sample(weights)", site)
        self._weighed += 1
        races = None if operator.replace or operator.weights is None else self.seed(self._weighed - 1)
        return self._stream.context.submit(run_weight, rows, operator.weights, site, races)

    def _settle(self) -> None:
        operator = self._stream.operator
        sums = np.array(self._sums, dtype=np.float64)
        n = operator.wanted(self._rows)
        if n and not sums.any():
            raise PipelineError(
                f"sample: {'the weights of all rows are zero' if self._rows else 'the input has no rows'}",
                site=self._stream.context.site,
                fix="check what is above sample(), and its weights",
            )
        if math.isinf(sum(self._sums)):
            raise PipelineError(
                "sample: the weights are so large that their sum is infinite",
                site=self._stream.context.site,
                fix="scale them down: only what they are of their sum counts",
            )
        if not operator.replace and n > (there := int(sums.sum())):
            raise PipelineError(
                f"sample: {n:,} rows are to be drawn without replacement, and there are {there:,} to draw from",
                site=self._stream.context.site,
                fix="draw fewer, or give replace=True",
            )
        if operator.replace:
            self.draws = draw(n, sums, self.seed(-1))
        elif self._races:
            first = np.argsort(np.concatenate(self._races), kind="stable")[:n]
            ends = np.cumsum([len(race) for race in self._races])
            self.draws = np.bincount(np.searchsorted(ends, first, side="right"), minlength=len(sums))
        else:
            self.draws = without_replacement(n, sums.astype(np.int64), self.seed(-1))
        self._races = []
        self.ends = np.cumsum(self.draws)
        self.ready = True

    def seed(self, run: int) -> int:
        """The seed of the draws inside a run; -1: of those between runs."""
        return hash_ints(self._key, run)

    def position(self, run: int) -> Position:
        """Where a run begins in the input."""
        if self._stream.source.count is not None:
            return self._stream.source.seek(run * RUN, self._lap)
        at, skip = self._noted[run // _NOTED]
        return [at, skip + run % _NOTED * RUN]

    def drawn_from(self, run: int) -> tuple[int, int] | None:
        """The next stretch of runs that are read at once: its first and last run; None at the end."""
        drawn = np.flatnonzero(self.draws)
        drawn = drawn[np.searchsorted(drawn, run) :]
        if not len(drawn):
            return None
        gaps = np.flatnonzero(np.diff(drawn) > _GAP)
        return int(drawn[0]), int(drawn[gaps[0] if len(gaps) else -1])


def draw(n: int, weights: npt.NDArray[np.float64], seed: int) -> Index:
    """How often each of ``weights`` is drawn in ``n`` draws, int64 of the same length; what weighs 0 never is."""
    counts = np.zeros(len(weights), dtype=np.int64)
    some = np.flatnonzero(weights > 0)
    if n and len(some):
        share = weights[some] / weights[some].sum()
        counts[some] = np.random.default_rng(seed).multinomial(n, share / share.sum())
    return counts


def without_replacement(n: int, sizes: Index, seed: int) -> Index:
    """How many of ``n`` rows fall into each of the runs of these sizes."""
    rng, counts, left = np.random.default_rng(seed), np.zeros(len(sizes), dtype=np.int64), int(sizes.sum())
    for i, size in enumerate(sizes.tolist()):
        left -= size
        taken = rng.hypergeometric(size, left, n) if left < _EXACT else rng.binomial(n, size / (left + size))
        counts[i] = min(max(taken, n - left), size)
        n -= int(counts[i])
    return counts


def race(weights: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    """When each row comes, by an exponential clock at the rate of its weight: the first n are a weighted sample."""
    with np.errstate(divide="ignore"):
        return np.random.default_rng(seed).exponential(size=len(weights)) / weights


def slot_weights(block: Block, weights: Any, site: Any) -> npt.NDArray[np.float64]:
    """The weight of each slot; dead ones weigh as much as the average live one."""
    live = live_weights(block, weights, site)
    slots = np.full(block.slots, live.mean() if len(live) else 1.0)
    slots[block.live_slots()] = live
    return slots


def run_weight(rows: Rows, weights: Any, site: Any, seed: int | None) -> float | npt.NDArray[np.float64]:
    """What a run of rows weighs; with a seed, the race of its rows."""
    with np.errstate(over="ignore"):  # the survey refuses sums that are infinite
        each = slot_weights(rows.gather(), weights, site)
        return float(each.sum()) if seed is None else race(each, seed)


def draw_rows(rows: Rows, weights: Any, n: int, seed: int, site: Any, replace_rows: bool) -> Block:
    """``n`` rows drawn from a run; copies of a row have their own keys."""
    block = rows.gather()
    each = slot_weights(block, weights, site)
    if replace_rows:
        counts = draw(n, each, seed)
    else:
        counts = np.zeros(block.slots, dtype=np.int64)
        counts[np.argsort(race(each, seed), kind="stable")[:n]] = 1
    copies = block.take(np.repeat(np.arange(block.slots), counts))
    return replace(copies, keys=block.keys.expand(counts))


class SampleFlow(Flow):
    def __init__(self, stream: SampleStream, survey: DrawSurvey, run: int, lap: int) -> None:
        self._stream = stream
        self._survey = survey
        self._lap = lap
        self._next = run  # of the stretch being read
        self._stop = run
        self._source: Flow | None = None
        self._ahead: Ahead[int] = Ahead(self._step)

    def pull(self, wait: bool) -> Pulled:
        if not self._survey.step(wait):
            return PENDING
        pulled = self._ahead.pull(wait)
        while isinstance(pulled, tuple) and pulled[1] is None:
            pulled = self._ahead.pull(wait)
        if not isinstance(pulled, tuple):
            return pulled
        return Piece(Rows.of(pulled[1]), pulled[0])

    def _step(self, wait: bool) -> Any:
        if self._next >= self._stop:
            self._close_source()
            stretch = self._survey.drawn_from(self._next)
            if stretch is None:
                return None
            self._next, self._stop = stretch[0], stretch[1] + 1
        if self._source is None:
            position = self._survey.position(self._next)
            self._source = ChunkFlow(self._stream.source.open(position, self._lap), position, RUN)
        piece = self._source.pull(wait)
        if not isinstance(piece, Piece):
            return piece
        run, self._next = self._next, self._next + 1
        n = int(self._survey.draws[run])
        return run, self._draw(piece.rows, n, self._survey.seed(run)) if n else None

    def _draw(self, rows: Rows, n: int, seed: int) -> Any:
        context = self._stream.context
        operator = self._stream.operator
        return context.submit(draw_rows, rows, operator.weights, n, seed, context.site, operator.replace)

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def close(self) -> None:
        self._survey.close()
        self._ahead.close()
        self._close_source()
