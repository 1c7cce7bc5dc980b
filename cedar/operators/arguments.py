"""Convert a block into the arguments of a user's function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from cedar.core.block import Block, python_values
from cedar.core.columns import UNKNOWN, Column, blank
from cedar.core.cursor import Hashes
from cedar.core.errors import VALUE, PipelineError, RowError, missing_column
from cedar.operators.base import Env
from cedar.operators.failures import ErrorContext


def row_arguments(block: Block, columns: tuple[str, ...], blame: ErrorContext) -> list[Iterable[Any]]:
    """Return one iterable of values per column, for calls per row; without column names, one iterable of row dicts."""
    values = [_values(pick(block, name, blame), name, blame) for name in columns or block.columns]
    if columns:
        return list(values)
    names = list(block.columns)
    return [_dicts(names, values) if names else ({} for _ in range(len(block)))]


def batch_arguments(block: Block, columns: tuple[str, ...], blame: ErrorContext) -> list[Any]:
    """Return a batch's arrays, one per name in ``columns``; without names, a dict of all columns or the batch value."""
    if VALUE in block.columns and not columns:
        return [block.columns[VALUE][0]]
    arrays = numpy_columns(block, columns or tuple(block.columns), blame)
    return [arrays[name] for name in columns] if columns else [arrays]


def numpy_columns(block: Block, columns: tuple[str, ...], blame: ErrorContext) -> dict[str, Any]:
    """Return columns as ndarrays (read-only views of the block's memory), JaggedTensors or dicts of them."""
    from cedar.core.convert import to_numpy

    keys = block.live_keys() if block.aligned else None
    try:
        return {name: read_only(to_numpy(pick(block, name, blame), name, keys)) for name in columns}
    except RowError as error:
        error.site = error.site or blame.site
        raise


def pick(block: Block, name: str, blame: ErrorContext) -> Column:
    """Return the column of a block with this name.

    Raises:
        PipelineError: the block has no column of that name; the message lists its columns.
    """
    try:
        return blank(UNKNOWN, 0) if block.is_nothing else block.columns[name]
    except KeyError:
        raise missing_column(name, list(block.columns), blame.label, blame.site) from None


def key_hashes(block: Block, env: Env, draw: int) -> Hashes:
    """Return the hash of each live row's key, which seeds that row's random draws."""
    return block.live_keys().hash(env.draw_seed(draw))


def read_only(array: Any) -> Any:
    """Return a read-only view of an array, because a block may be shared or processed again after a retry."""
    if isinstance(array, np.ndarray) and array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def _values(column: Column, name: str, blame: ErrorContext) -> Sequence[Any]:
    try:
        values = python_values(column)
    except (ValueError, OverflowError) as error:  # nanoseconds or years beyond 9999 do not fit Python's datetime
        raise PipelineError(
            f"{blame.label}: column {name!r} of {column.type} holds values without a Python type: {error}",
            site=blame.site,
            fix='cast the column first, e.g. .dt.cast_time_unit("us")',
        ) from error
    return read_only(values)  # type: ignore[no-any-return]


def _dicts(names: list[str], values: list[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return map(dict, map(zip, repeat(names), zip(*values, strict=True)))  # these iterators all run in C
