"""Documents: the input of ``pack``, rows of number lists that are stored as flat arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cedar.core.arrow import numbers
from cedar.core.block import Block, Skipped
from cedar.core.columns import UNKNOWN, Column, ColumnType, Index, TensorType
from cedar.core.cursor import Keys, concat_keys
from cedar.core.errors import PipelineError, RowError, Site
from cedar.core.groups.column import plain
from cedar.core.stream import Rows

ADDED_COLUMNS = ("segment_ids", "positions")


@dataclass(frozen=True, slots=True)
class Documents:
    """The tokens of several consecutive rows.

    Args:
        values: for each column, the concatenated tokens of all rows.
        lengths: the number of tokens per slot (row position), int64; 0 if the row was skipped.
        keys: one key per slot.
        dead: maps the slot of a skipped row to the reason.
    """

    values: dict[str, npt.NDArray[Any]]
    lengths: Index
    keys: Keys
    dead: Mapping[int, Skipped]

    def __len__(self) -> int:
        return len(self.lengths)

    def slice(self, start: int, stop: int) -> Documents:
        """Return slots ``start`` to ``stop`` without copying tokens."""
        if start == 0 and stop >= len(self):
            return self
        low, high = int(self.lengths[:start].sum()), int(self.lengths[:stop].sum())
        return Documents(
            {name: column[low:high] for name, column in self.values.items()},
            self.lengths[start:stop],
            self.keys.take(slice(start, stop)),
            {slot - start: why for slot, why in self.dead.items() if start <= slot < stop},
        )


def concat_documents(runs: Sequence[Documents]) -> Documents:
    """Concatenate several runs of documents."""
    if len(runs) == 1:
        return runs[0]
    dead: dict[int, Skipped] = {}
    slots = 0
    for run in runs:
        dead.update({slot + slots: why for slot, why in run.dead.items()})
        slots += len(run)
    return Documents(
        {name: np.concatenate([run.values[name] for run in runs]) for name in runs[0].values},
        np.concatenate([run.lengths for run in runs]),
        concat_keys([run.keys for run in runs]),
        dead,
    )


def token_dtype(kind: ColumnType) -> np.dtype[Any] | None:
    """Return the dtype of the numbers in a column of lists; None if the column does not contain lists of numbers."""
    if isinstance(kind, TensorType):
        return np.dtype(kind.dtype) if len(kind.shape) == 1 and np.dtype(kind.dtype).kind in "biuf" else None
    if not isinstance(kind, pa.DataType) or not (pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    inner = kind.value_type
    number = pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)
    return np.dtype(inner.to_pandas_dtype()) if number else None


def token_columns(types: Mapping[str, ColumnType], wanted: Sequence[str], site: Site | None = None) -> tuple[str, ...]:
    """Return the columns to pack: those in ``wanted``, or all columns of lists of numbers.

    Raises:
        PipelineError: a column in ``wanted`` has another type, or no column contains lists of numbers.
    """
    wrong = [n for n in wanted if types.get(n, UNKNOWN) is not UNKNOWN and token_dtype(types[n]) is None]
    if wrong:
        raise PipelineError(
            "pack needs lists of numbers: " + ", ".join(f"{n!r} is {types[n]}" for n in wrong),
            site=site,
            fix="name the token columns, or tokenize with map first",
        )
    taken = [n for n in ADDED_COLUMNS if n in (wanted or types)]
    if taken:
        raise PipelineError(
            f"pack adds the columns {' and '.join(ADDED_COLUMNS)}, but the input already has {taken[0]!r}",
            site=site,
            fix="rename or drop it",
        )
    chosen = tuple(wanted) or tuple(n for n, kind in types.items() if token_dtype(kind) is not None)
    if not chosen and UNKNOWN not in types.values():
        raise PipelineError(
            "pack: no column is a list of numbers: " + ", ".join(f"{n!r} is {kind}" for n, kind in types.items()),
            site=site,
            fix="tokenize with map first",
        )
    return chosen


def documents(rows: Rows, columns: Sequence[str], site: Site | None) -> Documents:
    """Gather rows and store their tokens as flat arrays.

    Raises:
        RowError: a row's columns have different lengths, or a list or a number in a list is null.
    """
    return block_documents(rows.gather(), columns, site)


def block_documents(block: Block, columns: Sequence[str], site: Site | None) -> Documents:
    """Return the documents of a block, as ``documents`` does for rows."""
    token_columns({name: block.types[name] for name in columns}, columns, site)
    lengths: Index | None = None
    values = {}
    for name in columns:
        values[name], counts = _flat(block, name, plain(block.columns[name]), site)
        if lengths is not None and not np.array_equal(lengths, counts):
            row = int(np.flatnonzero(lengths - counts)[0])
            raise RowError(
                f"pack: columns {columns[0]!r} and {name!r} have {lengths[row]} and {counts[row]} tokens in one row",
                site=site,
                row=block.live_keys().ref(row),
                fix="columns that are packed together must have equal lengths in every row",
            )
        lengths = counts
    slots = np.zeros(block.slots, dtype=np.int64)
    if lengths is not None:
        slots[block.live_slots()] = lengths
    return Documents(values, slots, block.keys, dict(block.dead))


def _flat(block: Block, name: str, column: Column, site: Site | None) -> tuple[npt.NDArray[Any], Index]:
    if not isinstance(column, pa.Array):
        return column.reshape(-1), np.full(len(column), column.shape[1], dtype=np.int64)
    if column.null_count:
        _refuse(block, name, int(np.argmax(np.asarray(column.is_null()))), "is missing (null)", site)
    lengths = numbers(pc.list_value_length(column)).astype(np.int64)
    flat: Any = cast("Any", column).flatten()
    if flat.null_count:
        token = int(np.argmax(np.asarray(flat.is_null())))
        row = int(np.searchsorted(np.cumsum(lengths), token, side="right"))
        _refuse(block, name, row, "holds a missing number (null)", site)
    return flat.to_numpy(zero_copy_only=False) if pa.types.is_boolean(flat.type) else numbers(flat), lengths


def _refuse(block: Block, name: str, row: int, problem: str, site: Site | None) -> None:
    raise RowError(
        f"pack: the list in column {name!r} {problem}",
        site=site,
        row=block.live_keys().ref(row),
        fix="fill or filter missing values before pack()",
    )
