"""balance: assign the rows of a training step to ranks so that the ranks' batches cost about the same."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Index
from cedar.core.errors import PipelineError, Site, invalid_call, require_columns
from cedar.core.groups import plain
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
from cedar.operators.base import Effects, Env, Ordering, RowUse, Schema, StreamContext, StreamOperator
from cedar.operators.bucket import has_length, value_lengths
from cedar.operators.buffers import OrderedTasks, keep_columns, task_per_piece
from cedar.operators.calls import Call
from cedar.operators.expression_nodes import format_expr
from cedar.operators.failures import ErrorContext
from cedar.operators.functions import check_fn, fn_name, makes_instances
from cedar.operators.weights import Weights, checked_weights, live_weights, require_weights, weight_columns


@dataclass(frozen=True, eq=False)
class Balance(StreamOperator):
    """Redistributes the rows of a step (one batch per rank) so that the ranks' batches cost about the same.

    Rows move only within a step, and each batch keeps its number of rows. Rows are sorted by cost, largest first. Each
    row goes to the batch that has the lowest total cost and room (Graham, "Bounds on multiprocessing timing anomalies",
    1969; Babel, Kellerer and Kotov, "The k-partitioning problem", 1998). Within a batch, rows keep their order in the
    step. A row that an earlier operator skipped stays in its batch and costs nothing.

    Every rank reads all rows of a step and runs the operators before ``balance`` on them. Later operators run only on
    the rank's own rows. With one rank, the operator has no effect.

    Args:
        by: the cost of a row: the name of a column of numbers, strings, lists or arrays (its value, length or size);
            an elementwise expression; or a function that takes the row as a dict and returns a number.
        over: the processes between which rows move; always "ranks".

    Raises:
        PipelineError: ``by`` is invalid, or the input delivers rows instead of batches. During planning, also if a
            later operator changes which batches ranks get, or an earlier one processes whole batches.
        RowError: while running, a cost is null, NaN, infinite or negative, or the function fails.

    Examples:
        >>> from cedar.operators.balance import Balance
        >>> Balance("tokens").label()
        "balance('tokens')"
    """

    by: Any
    over: str = "ranks"
    name: ClassVar[str] = "balance"
    group_use = "kept"
    row_use = RowUse("balanced")
    ordering = Ordering(moves_rows=True)

    def __post_init__(self) -> None:
        if self.over != "ranks":
            raise invalid_call(f"balance(over={self.over!r})", fix='over is "ranks"')
        if isinstance(self.by, str):
            return
        if hasattr(self.by, "meta"):
            require_weights(self.by, "balance(by)")
        elif callable(self.by) and not makes_instances(self.by):
            check_fn("balance(by)", self.by, 1)
        else:
            raise invalid_call(
                f"balance(by={self.by!r})",
                fix="use a column's name, an expression such as col('tokens').list.len(), or a function of a row",
            )

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that costs depend on; None if they may depend on any column."""
        if not isinstance(self.by, str) and not hasattr(self.by, "meta"):
            return None
        return tuple(weight_columns(self.by))

    def label(self) -> str:
        if isinstance(self.by, str):
            return f"balance({self.by!r})"
        return f"balance({fn_name(self.by) if self.columns is None else format_expr(self.by, 60)})"

    def effects(self) -> Effects:
        reads = None if self.columns is None else frozenset(self.columns)
        return Effects(reads, frozenset(), rows="stream")

    def parameters(self) -> dict[str, Any]:
        return {"by": None if self.columns is None else str(self.by), "over": self.over}

    def code(self) -> tuple[Any, ...]:
        return () if isinstance(self.by, str) else (self.by,)

    def schema(self, *inputs: Schema) -> Schema:
        require_columns(self.columns or (), inputs[0], "balance(by)")
        return inputs[0]

    def batched(self, *inputs: bool) -> bool:
        if not inputs[0]:
            raise PipelineError(
                "balance() redistributes rows between the ranks' batches, but its input gives rows, not batches",
                fix="call balance() after the operator that makes batches: p.batch(8).balance(by=...)",
            )
        return True

    def stream(self, inputs: tuple[Stream, ...], context: StreamContext) -> Stream:
        return BalanceStream(inputs[0], self, context)


def assign_rows(costs: Sequence[Weights]) -> list[Index]:
    """Return, for each batch of a step, the rows assigned to it, as ascending indices into all slots of the step.

    Args:
        costs: for each batch, the cost of each slot; NaN marks a slot without a row, which stays in its batch.

    Examples:
        >>> import numpy as np
        >>> [rows.tolist() for rows in assign_rows([np.array([9.0, 8.0]), np.array([1.0, 2.0])])]
        [[0, 2], [1, 3]]
    """
    slots = np.concatenate([*costs, np.empty(0)])
    batch = np.repeat(np.arange(len(costs)), [len(each) for each in costs])  # each slot's batch, updated below
    room = [int(np.isfinite(each).sum()) for each in costs]
    lightest = [(0.0, number) for number, left in enumerate(room) if left]  # sorted, so it is a valid heap
    order = np.argsort(-slots, kind="stable")  # NaN sorts last
    goes = []
    for cost in slots[order[: sum(room)]].tolist():
        load, number = lightest[0]
        goes.append(number)
        room[number] -= 1
        if room[number]:
            heapq.heapreplace(lightest, (load + cost, number))
        else:
            heapq.heappop(lightest)
    batch[order[: len(goes)]] = goes
    return [np.flatnonzero(batch == number) for number in range(len(costs))]


class BalanceStream(Stream):
    """The stream of ``balance``. A position ``at`` is [input position, batch index] at the beginning of a step.

    The first step begins at batch ``context.assigned``, where ranks were last assigned. Earlier batches pass unchanged.
    """

    def __init__(self, source: Stream, operator: Balance, context: StreamContext) -> None:
        self.source = source
        self.operator = operator
        self.context = context

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self.source.count

    def start(self) -> At:
        return [[self.source.start(), 0], 0]

    def rows_of(self, unit: int) -> range | None:
        return self.source.rows_of(unit)  # steps keep their rows, and batches keep their row counts

    def seek(self, unit: int, lap: int = 0) -> Position:
        if self.source.count is None:
            return [self.start(), unit]
        within = max(0, unit - self.context.assigned) % self.context.ranks
        return [[self.source.seek(unit - within, lap), unit - within], within]

    def fits(self, at: At) -> bool:
        return is_list(at, 2) and self.source.fits_position(at[0]) and is_count(at[1])

    def open_at(self, at: At, lap: int) -> Flow:
        position, number = at
        source, ranks = self.source.open(position, lap), self.context.ranks
        ahead = OrderedTasks(task_per_piece(source, self._measure), max(2, ranks))
        pieces = self._balanced(ahead, number)
        return GeneratorFlow(pieces, ahead, source, limit=lambda units: source.limit(-(-units // ranks) * ranks))

    def _measure(self, piece: Piece) -> Any:
        operator, site, rows = self.operator, self.context.site, piece.rows
        if self.context.ranks == 1:
            return None
        if not all(block.aligned for block in rows.blocks):
            raise PipelineError(
                f"{operator.label()}: an earlier function changed a batch's number of rows, so rows have no keys",
                site=site,
                fix="call that function after balance()",
            )
        if operator.columns is not None:
            rows = keep_columns(rows, operator.columns, operator.label(), site)
        return self.context.submit(row_costs, rows, operator.by, site)

    def _balanced(self, ahead: OrderedTasks[Piece], number: int) -> Pieces:
        """Yield the batches of each step; ``number`` is the index of the next input batch."""
        ranks, ended = self.context.ranks, False
        wait = yield PENDING
        while not ended:
            at: At = None
            units: list[Rows] = []
            costs: list[Weights] = []
            full = 0  # batches of the step without those whose rows were all skipped
            while not ended and full < ranks and (not units or number > self.context.assigned):
                pulled = ahead.pull(wait)
                if pulled is PENDING:
                    wait = yield PENDING
                elif pulled is None:
                    ended = True
                elif pulled[0].units:
                    piece, cost = pulled
                    at = at or [piece.position(), number]
                    counted = piece.rows.counted()
                    counts = counted is None or bool(counted.any())
                    units.append(piece.rows)
                    costs += [] if cost is None else [cost]
                    full += counts
                    number += counts
                    del piece
                del pulled
            if full > 1 and ranks > 1:
                joined = concat_rows(units)
                units = [joined.take(slots).compact() for slots in assign_rows(costs)]
                del joined
            for i in range(len(units)):
                wait = yield Piece(units[i], at, i, batch=True)


# ---- the cost of a row -----------------------------------------------------------------------------------------------


WHAT = ("balance", "cost")


def row_costs(rows: Rows, by: Any, site: Site | None) -> Weights:
    """Return the cost of each row, float64[slots]; NaN where an earlier operator skipped the row.

    Raises:
        PipelineError: the column is missing, or its values are neither numbers nor have a length.
        RowError: a cost is null, NaN, infinite or negative, or the function failed on a row.
    """
    block = rows.gather()
    costs = np.full(block.slots, np.nan)
    costs[block.live_slots()] = _live_costs(block, by, site)
    return costs


def _live_costs(block: Block, by: Any, site: Site | None) -> Weights:
    if callable(by) and not hasattr(by, "meta"):
        return _costs_by_call(block, by, site)
    column = plain(block.columns[by]) if isinstance(by, str) else np.empty(0)
    if not (has_length(column.type) if isinstance(column, pa.Array) else column.ndim > 1 or column.dtype == object):
        return live_weights(block, by, site, WHAT)

    def size(value: Any) -> int:
        return value.size if isinstance(value, np.ndarray) else len(value)

    return value_lengths(block, by, column, "balance", site, size).astype(np.float64)


def _costs_by_call(block: Block, fn: Callable[..., Any], site: Site | None) -> Weights:
    blame = ErrorContext(0, "balance(by)", site, None)
    results, failures = Call(fn, blame).on_rows(block, Env(), ())
    if failures:
        first = min(failures)
        raise blame.error(failures[first], block.live_keys().ref(first))
    try:
        costs = np.array([float(cost) for cost in results], dtype=np.float64)
    except (TypeError, ValueError) as error:
        kinds = sorted({type(cost).__name__ for cost in results})
        raise PipelineError(
            f"balance: the function by= must return a number, but it returned {', '.join(kinds)}",
            site=site,
            fix="return a number from by(row)",
        ) from error
    return checked_weights(block, costs, site, WHAT)
