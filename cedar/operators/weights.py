"""The weight of each row, from a column or an expression."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column
from cedar.core.errors import PipelineError, RowError, Site, missing_column
from cedar.core.forks import elsewhere
from cedar.operators.expression_kernel import run
from cedar.operators.expression_steps import Keep, compile_steps
from cedar.operators.failures import Blame

Weights = npt.NDArray[np.float64]


def weight_columns(weights: Any) -> list[str]:
    """The columns that ``weights`` (a column's name, a polars expression, or None) reads.

    Example:
        >>> from cedar.operators.weights import weight_columns
        >>> weight_columns("clicks")
        ['clicks']
    """
    if weights is None:
        return []
    return [weights] if isinstance(weights, str) else sorted(set(weights.meta.root_names()))


def live_weights(block: Block, weights: Any, site: Site | None) -> Weights:
    """float64[live rows].

    Raises:
        PipelineError: the column is missing, or gives no numbers.
        RowError: a weight that is null, NaN, infinite or negative.
    """
    if weights is None:
        return np.ones(len(block))
    column = _evaluate(block, weights, site)
    if isinstance(column, pa.Array) and column.null_count:
        _refuse(block, np.asarray(column.is_null()), "null", site)
    values = _floats(column, weights, site)
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        _refuse(block, bad, str(values[int(np.argmax(bad))]), site)
    return values


@elsewhere
def _evaluate(block: Block, weights: Any, site: Site | None) -> Column:
    for name in weight_columns(weights):
        if name not in block.columns:
            raise missing_column(name, list(block.columns), "sample(weights)", site)
    if isinstance(weights, str):
        return block.columns[weights]
    import polars as pl

    step = Keep((("weight", weights),), Blame(0, "sample(weights)", site, None))
    try:
        program = compile_steps((step,), tuple(block.types.items()))
        return run(program, Block(block.columns, block.live_keys())).columns["weight"]
    except pl.exceptions.PolarsError as error:
        raise PipelineError(f"sample: the weights {weights} cannot be worked out: {error}", site=site) from error


def _floats(column: Column, weights: Any, site: Site | None) -> Weights:
    try:
        if isinstance(column, pa.Array) and not _is_number(column.type):
            raise TypeError(f"a column of {column.type}")
        values = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column
        floats = np.asarray(values, dtype=np.float64)
        if floats.ndim == 1:
            return floats
        raise ValueError(f"each row gives an array of shape {floats.shape[1:]}")
    except (TypeError, ValueError) as error:
        kind = column.type if isinstance(column, pa.Array) else column.dtype
        raise PipelineError(
            f"sample: the weights {weights!s} are not numbers but {kind}",
            site=site,
            fix="give a column or an expression with a number per row",
        ) from error


def _is_number(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind))


def _refuse(block: Block, bad: npt.NDArray[np.bool_], shown: str, site: Site | None) -> None:
    row = int(np.argmax(bad))
    raise RowError(
        f"sample: the weight of a row is {shown}",
        site=site,
        row=block.live_keys().ref(row),
        fix="weights are finite and not negative: fill or filter them above sample()",
    )
