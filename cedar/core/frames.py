"""Conversion of blocks to polars frames, including tensors and objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from cedar.core.block import Block
from cedar.core.groups.column import plain

if TYPE_CHECKING:
    import polars as pl

_FRAME_ROWS = 65_536  # rows per frame; fixed, so that results do not depend on block sizes


def first_rows(blocks: Iterable[Block], n: int) -> pl.DataFrame:
    """Return the first ``n`` rows of all blocks."""
    import polars as pl

    heads: list[pl.DataFrame] = []
    for block in blocks:
        heads.append(frame_of(block).head(n))
        n -= heads[-1].height
        if n <= 0:
            break
    return pl.concat(heads, how="vertical_relaxed") if heads else pl.DataFrame()


def frame_of(block: Block) -> pl.DataFrame:
    """Convert the rows of a block, including tensors and objects, to a polars frame."""
    import polars as pl

    def series(name: str, column: Any) -> pl.Series:
        column = plain(column)
        if not isinstance(column, np.ndarray):
            return pl.Series(name, pl.from_arrow(column))
        return pl.Series(name, column.tolist(), dtype=pl.Object) if column.dtype == object else pl.Series(name, column)

    return pl.DataFrame([series(name, column) for name, column in block.columns.items()])


def parts(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the rows in frames of 65,536 rows, so that results computed per frame do not depend on block sizes."""
    import polars as pl

    pending: list[pl.DataFrame] = []
    height = 0
    for frame in frames:
        pending.append(frame)
        height += frame.height
        while height >= _FRAME_ROWS:
            whole = pl.concat(pending, how="vertical_relaxed").rechunk()  # polars sums floats chunk by chunk
            yield whole[:_FRAME_ROWS].rechunk()
            pending = [whole[_FRAME_ROWS:]]
            height -= _FRAME_ROWS
    if height:
        yield pl.concat(pending, how="vertical_relaxed").rechunk()
