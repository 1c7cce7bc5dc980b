"""Containers: a block's columns as the table, frame, arrays or tensors that ``map_batches`` hands to a function."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import pyarrow as pa

from cedar.core.block import Block
from cedar.core.boundary import polars_type, to_frame
from cedar.core.errors import PipelineError, RowError
from cedar.core.jagged import JaggedTensor
from cedar.operators.arguments import numpy_columns, pick
from cedar.operators.failures import BadResult, Blame
from cedar.operators.fit import describe

Format: TypeAlias = Literal["arrow", "polars", "numpy", "torch"]


def container(block: Block, columns: tuple[str, ...], format: Format, blame: Blame) -> Any:
    """The columns as the user's function wants them."""
    if format == "numpy":
        return numpy_columns(block, columns, blame)
    from cedar.core.convert import to_arrow, to_torch

    if format == "torch":
        keys = block.live_keys() if block.aligned else None
        try:
            return {name: _own(to_torch(pick(block, name, blame), name, keys)) for name in columns}
        except RowError as error:
            error.site = error.site or blame.site
            raise
    arrays = {name: to_arrow(pick(block, name, blame), name) for name in columns}
    return pa.table(arrays) if format == "arrow" else _frame(arrays, blame)


def _frame(arrays: dict[str, pa.Array], blame: Blame) -> Any:
    for name, array in arrays.items():
        if polars_type(array.type) is None:
            raise PipelineError(
                f"{blame.label}: column {name!r} of {array.type}: polars has no such type",
                site=blame.site,
                fix='use format="arrow", or name the columns that the function needs',
            )
    return to_frame(arrays)


def _own(tensors: Any) -> Any:
    """A copy: tensors cannot be read-only, and a block may be worked on again, or be shared."""
    if isinstance(tensors, dict):
        return {name: _own(child) for name, child in tensors.items()}
    if isinstance(tensors, JaggedTensor):
        return JaggedTensor(_own(tensors.values), _own(tensors.offsets))
    return tensors.clone() if hasattr(tensors, "clone") else tensors


def arrays_of(result: Any, format: Format) -> dict[str, Any]:
    """The columns of what the user's function returned.

    Raises:
        BadResult: it is not the container that the format asks for.
    """
    wanted = {"arrow": "a pyarrow.Table", "polars": "a polars.DataFrame"}.get(format, "a dict of arrays")
    if format == "arrow" and isinstance(result, (pa.Table, pa.RecordBatch)):
        names = result.schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadResult(f"returned the column {twice!r} twice", "name each column once")
        return dict(zip(result.schema.names, result.columns, strict=True))
    if format == "polars" and hasattr(result, "get_columns"):
        return {series.name: series for series in result.get_columns()}
    if format in ("numpy", "torch") and isinstance(result, dict):
        return result
    fix = "did it forget to return? " if result is None else ""
    raise BadResult(f"returned {describe(result)}, not {wanted}", f'{fix}format="{format}" gives and takes {wanted}')
