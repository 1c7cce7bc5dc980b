"""Computes the weight or cost of each row from a column or an expression."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column
from cedar.core.errors import PipelineError, RowError, Site, invalid_call, require_columns
from cedar.core.process import in_fresh_process_after_fork
from cedar.operators.expression_kernel import run
from cedar.operators.expression_nodes import columns_of, format_expr
from cedar.operators.expression_steps import KeepColumns, compile_steps
from cedar.operators.expressions import require_elementwise
from cedar.operators.failures import ErrorContext

Weights = npt.NDArray[np.float64]
SAMPLE = ("sample", "weight")
AS_COLUMN = "add values as a column: cedar.zip(p, cedar.from_numpy({'w': values}))"


def weight_columns(weights: Any) -> list[str]:
    """Return the columns that ``weights`` (a column's name, a polars expression, or None) reads."""
    if weights is None:
        return []
    return [weights] if isinstance(weights, str) else sorted(columns_of(weights) or ())


def require_weights(expr: Any, label: str) -> None:
    """Raise PipelineError unless an expression is row-wise and names its columns explicitly."""
    require_elementwise(expr, label)
    if columns_of(expr) is None:
        problem = "reads columns that depend on the schema"
    elif expr.meta.has_multiple_outputs():
        problem = "gives several columns"
    else:
        return
    raise invalid_call(
        f"{label}: {format_expr(expr)} {problem}",
        fix="name the columns, and give one value for each row: for example col('clicks') + 1",
    )


def live_weights(block: Block, weights: Any, site: Site | None, use: tuple[str, str] = SAMPLE) -> Weights:
    """Return the weight of each live row, float64; ``use`` names the operator and the purpose in messages.

    Raises:
        PipelineError: the column is missing or not numeric.
        RowError: a weight is null, NaN, infinite or negative.
    """
    if weights is None:
        return np.ones(len(block))
    column = _evaluate(block, weights, site, use)
    if isinstance(column, pa.Array) and column.null_count:
        _refuse(block, np.asarray(column.is_null()), "null", site, use)
    return checked_weights(block, _floats(column, weights, site, use), site, use)


def checked_weights(block: Block, values: Weights, site: Site | None, use: tuple[str, str]) -> Weights:
    """Check the weights of live rows, and return them unchanged.

    Raises:
        RowError: a weight is NaN, infinite or negative.
    """
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        _refuse(block, bad, str(values[int(np.argmax(bad))]), site, use)
    return values


@in_fresh_process_after_fork
def _evaluate(block: Block, weights: Any, site: Site | None, use: tuple[str, str]) -> Column:
    who = f"{use[0]}({use[1]})"
    require_columns(weight_columns(weights), block.columns, who, site)
    if isinstance(weights, str):
        return block.columns[weights]
    import polars as pl

    step = KeepColumns((("weight", weights),), ErrorContext(0, who, site, None))
    try:
        program = compile_steps((step,), tuple(block.types.items()))
        return run(program, Block(block.columns, block.live_keys())).columns["weight"]
    except pl.exceptions.PolarsError as error:
        raise PipelineError(f"{use[0]}: the {use[1]}s {weights} cannot be computed: {error}", site=site) from error


def _floats(column: Column, weights: Any, site: Site | None, use: tuple[str, str]) -> Weights:
    try:
        if isinstance(column, pa.Array) and not is_number(column.type):
            raise TypeError(f"a column of {column.type}")
        values = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column
        floats = np.asarray(values, dtype=np.float64)
        if floats.ndim == 1:
            return floats
        raise ValueError(f"each row gives an array of shape {floats.shape[1:]}")
    except (TypeError, ValueError) as error:
        kind = column.type if isinstance(column, pa.Array) else column.dtype
        raise PipelineError(
            f"{use[0]}: the {use[1]}s {weights!s} are not numbers but {kind}",
            site=site,
            fix="give a column or an expression with a number per row",
        ) from error


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type can be used as weights without conversion."""
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind))


def _refuse(block: Block, bad: npt.NDArray[np.bool_], shown: str, site: Site | None, use: tuple[str, str]) -> None:
    row = int(np.argmax(bad))
    raise RowError(
        f"{use[0]}: the {use[1]} of a row is {shown}",
        site=site,
        row=block.live_keys().ref(row),
        fix=f"a {use[1]} must be finite and not negative: fill or filter such rows before {use[0]}()",
    )
