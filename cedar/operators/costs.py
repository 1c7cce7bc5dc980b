"""What each row costs: a number of its own, the length of a value, an expression or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column
from cedar.core.errors import PipelineError, RowError, Site
from cedar.core.groups.column import plain
from cedar.core.stream import Rows
from cedar.operators.arguments import row_arguments
from cedar.operators.base import Env
from cedar.operators.bucket import arrow_lengths, has_length
from cedar.operators.calls import Call
from cedar.operators.failures import Blame
from cedar.operators.weights import Weights, checked_weights, live_weights

WHAT = ("balance", "cost")


def row_costs(rows: Rows, by: Any, site: Site | None) -> Weights:
    """float64[slots]: the cost of each row; NaN where a row was skipped above.

    Raises:
        PipelineError: the column is missing, or has neither numbers nor lengths.
        RowError: a cost that is null, NaN, infinite or negative, or on which the function failed.
    """
    block = rows.gather()
    costs = np.full(block.slots, np.nan)
    costs[block.live_slots()] = _live(block, by, site)
    return costs


def _live(block: Block, by: Any, site: Site | None) -> Weights:
    if callable(by) and not hasattr(by, "meta"):
        return _called(block, by, site)
    column = plain(block.columns[by]) if isinstance(by, str) else None
    if column is None or not _has_size(column):
        return live_weights(block, by, site, WHAT)
    arrow = isinstance(column, pa.Array)
    bad = np.asarray(column.is_null()) if arrow else np.array([not hasattr(value, "__len__") for value in column])
    if bad.any():
        raise RowError(
            f"balance: a value of column {by!r} is missing or has no length",
            site=site,
            row=block.live_keys().ref(int(np.argmax(bad))),
            fix="fill or filter missing values above balance()",
        )
    sizes = arrow_lengths(column) if arrow else [v.size if isinstance(v, np.ndarray) else len(v) for v in column]
    return np.asarray(sizes, dtype=np.float64)


def _has_size(column: Column) -> bool:
    return has_length(column.type) if isinstance(column, pa.Array) else column.ndim > 1 or column.dtype == object


def _called(block: Block, fn: Callable[..., Any], site: Site | None) -> Weights:
    blame = Blame(0, "balance(by)", site, None)
    found, failures = Call(fn, blame).run(Env(), row_arguments(block, (), blame), len(block))
    if failures:
        first = min(failures)
        raise blame.error(failures[first], block.live_keys().ref(first))
    try:
        costs = np.array([float(cost) for cost in found], dtype=np.float64)
    except (TypeError, ValueError) as error:
        kinds = sorted({type(cost).__name__ for cost in found})
        raise PipelineError(
            f"balance: the function gives {', '.join(kinds)}, and a cost is a number",
            site=site,
            fix="return a number from by(row)",
        ) from error
    return checked_weights(block, costs, site, WHAT)
