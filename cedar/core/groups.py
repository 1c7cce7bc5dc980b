"""GroupColumn: a column whose rows repeat. Each distinct row is stored once, and an inverse maps rows to stored rows.

The columns of a group share one ``RowSharing`` object. Slicing and taking rows only change the inverse. Stored rows
that no row uses are dropped if there are more stored rows than rows, and when a block is pickled. Blocks are
concatenated without comparing their rows. ``grouped`` later stores every distinct row once, in the order of first
occurrence, so that a batch does not depend on how rows were cut into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import (
    Column,
    ColumnType,
    Index,
    concat,
    concat_arrays,
    cut,
    from_numbers,
    nbytes,
    numbers,
    take,
    take_arrays,
)
from cedar.core.distinct import distinct_rows, firsts, list_offsets, renumber, repeated
from cedar.core.jagged import gather

Inverse = npt.NDArray[np.int32]
Selection: TypeAlias = "Index | slice | None"  # selects stored rows; None means all


@dataclass(frozen=True, eq=False)
class RowSharing:
    """Maps each row to its stored row.

    Args:
        inverse: int32[rows], from 0 to ``stored_rows`` - 1.
        stored_rows: the number of rows that each column of the group stores.
        together: the number of columns whose stored rows, combined, are known to be distinct; 0 if unknown.
        rows: the number of rows in which the stored rows were found, for estimates of size.
    """

    inverse: Inverse
    stored_rows: int
    together: int = 0
    rows: int = 0

    def __len__(self) -> int:
        return len(self.inverse)

    @cached_property
    def narrow(self) -> tuple[RowSharing, Selection]:
        """The sharing without unused stored rows, and the selection of the stored rows that remain (None means all)."""
        if not len(self.inverse):
            return (self, None) if not self.stored_rows else (RowSharing(self.inverse, 0, self.together), slice(0, 0))
        low, high = int(self.inverse.min()), int(self.inverse.max()) + 1
        used = np.zeros(high - low, dtype=bool)
        used[self.inverse - np.int32(low)] = True
        if used.all():
            if high - low == self.stored_rows:
                return self, None
            inverse = self.inverse - np.int32(low)
            return RowSharing(inverse, high - low, self.together, len(inverse)), slice(low, high)
        places = np.cumsum(used, dtype=np.int32) - np.int32(1)
        kept = np.flatnonzero(used)
        return RowSharing(places[self.inverse - np.int32(low)], len(kept), self.together, len(self.inverse)), kept + low

    @cached_property
    def first(self) -> Index:
        """int64[stored_rows], the first row that uses each stored row; 0 if no row uses it."""
        return firsts(self.inverse, self.stored_rows)

    def at(self, index: Any) -> tuple[RowSharing, Selection]:
        """Return the sharing of the rows at ``index``. If stored rows outnumber rows, unused ones are dropped."""
        wide = RowSharing(self.inverse[index], self.stored_rows, self.together, max(self.rows, len(self.inverse)))
        return wide.narrow if wide.stored_rows > len(wide) and not isinstance(index, slice) else (wide, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowSharing, (self.inverse, self.stored_rows, self.together, self.rows)  # without cached properties


@dataclass(frozen=True, eq=False, slots=True)
class GroupColumn:
    """A column whose row i is ``values[sharing.inverse[i]]``.

    Args:
        values: an Arrow array of the stored rows.
        sharing: the inverse; the same object for all columns of a group.
        fresh: True if the stored rows were compared by these values.

    Examples:
        >>> import pyarrow as pa
        >>> columns = grouped({"a": pa.array([[1], [1], [2]]), "b": pa.array([[5], [5], [5]])})
        >>> columns["a"].values.to_pylist(), columns["b"].values.to_pylist(), columns["a"].sharing.inverse.tolist()
        ([[1], [2]], [[5], [5]], [0, 0, 1])
        >>> columns["b"].plain().to_pylist()
        [[5], [5], [5]]
    """

    values: pa.Array
    sharing: RowSharing
    fresh: bool = True

    def __len__(self) -> int:
        return len(self.sharing)

    @property
    def type(self) -> ColumnType:
        """The type of the values, so that a schema does not depend on grouping."""
        return self.values.type

    @property
    def nbytes(self) -> int:
        share = min(1.0, len(self) / max(self.sharing.rows, 1))
        return int(nbytes(self.values) * share) + self.sharing.inverse.nbytes

    def plain(self) -> pa.Array:
        """Return every row as a plain Arrow array."""
        return take_lists(self.values, self.sharing.inverse)

    to_arrow = plain

    def take(self, index: Index) -> GroupColumn:
        return _with_sharing(self, *self.sharing.at(index))

    def cut(self, start: int, stop: int) -> GroupColumn:
        return _with_sharing(self, *self.sharing.at(slice(start, stop)))

    def narrow(self) -> GroupColumn:
        """Return the column without stored rows that no row uses."""
        return _with_sharing(self, *self.sharing.narrow)

    def __reduce__(self) -> tuple[Any, ...]:
        sharing, rows = self.sharing.narrow
        if isinstance(rows, slice):  # pickling a slice would include the whole buffers
            rows = np.arange(rows.start, rows.stop)
        small = _with_sharing(self, sharing, rows)
        return GroupColumn, (small.values, small.sharing, small.fresh)


def _with_sharing(column: GroupColumn, sharing: RowSharing, rows: Selection) -> GroupColumn:
    if sharing is column.sharing:
        return column
    values = column.values if rows is None else take_lists(column.values, rows)
    return GroupColumn(values, sharing, column.fresh)


def take_lists(values: pa.Array, index: npt.NDArray[Any] | slice) -> pa.Array:
    """Return ``values.take(index)``, several times faster for lists of numbers without nulls; slices are not copied."""
    if isinstance(index, slice):
        return values.slice(index.start, index.stop - index.start)
    kind = values.type
    number = pt.is_large_list(kind) and (pt.is_integer(kind.value_type) or pt.is_floating(kind.value_type))
    if not number or not len(values) or values.null_count:
        return values.take(from_numbers(index))
    items = values.values
    if items.null_count:
        return values.take(from_numbers(index))
    picked, offsets = gather(numbers(items), list_offsets(values), index)
    child = pa.Array.from_buffers(kind.value_type, len(picked), [None, pa.py_buffer(picked)])
    return pa.Array.from_buffers(kind, len(index), [None, pa.py_buffer(offsets)], children=[child])


# ---- whole groups ----------------------------------------------------------------------------------------------------


def grouped(columns: Mapping[str, Column]) -> dict[str, GroupColumn]:
    """Make the columns one group that stores every distinct row once, in the order of first occurrence.

    If the columns already form one group, its stored rows are put into that order, and lists are compared only if some
    stored rows may be equal.
    """
    members = list(columns.values())
    shared_by_all = members[0].sharing if isinstance(members[0], GroupColumn) else None
    if shared_by_all is None or any(not isinstance(c, GroupColumn) or c.sharing is not shared_by_all for c in members):
        arrays = [plain(c) for c in members]
        inverse, first, known = distinct_rows(arrays)
        values = arrays
        if len(first) < len(inverse):
            values = [take_lists(a, first) if k is None else k for a, k in zip(arrays, known, strict=True)]
        sharing = RowSharing(inverse, len(first), len(members), len(inverse))
        return {name: GroupColumn(value, sharing) for name, value in zip(columns, values, strict=True)}
    inverse, order = _in_order(shared_by_all)
    values = [c.values if order is None else take_lists(c.values, order) for c in members]
    reported = shared_by_all.together == len(members) and all(c.fresh for c in members)
    duplicates = None if reported else repeated(values)
    if duplicates is not None:
        inverse, values = duplicates[0][inverse], [take_lists(v, duplicates[1]) for v in values]
    sharing = RowSharing(inverse, len(values[0]), len(members), len(inverse))
    return {name: GroupColumn(value, sharing) for name, value in zip(columns, values, strict=True)}


def _in_order(sharing: RowSharing) -> tuple[Inverse, Selection]:
    """Return the inverse for stored rows in the order of first occurrence, and the selection of these rows."""
    inverse = sharing.inverse
    if (
        len(inverse) and int(np.diff(inverse).view(np.uint32).max(initial=0)) <= 1
    ):  # each stored row equals the previous number, or is the next one
        low, high = int(inverse[0]), int(inverse[-1]) + 1
        return (inverse, None) if high - low == sharing.stored_rows else (inverse - np.int32(low), slice(low, high))
    inverse, order = renumber(inverse)
    ordered = len(order) == sharing.stored_rows and bool((order[1:] > order[:-1]).all())
    return inverse, None if ordered else order.astype(np.int64)


def plain(column: Column) -> Column:
    """Return a GroupColumn as a plain Arrow array; other columns unchanged."""
    return column.plain() if isinstance(column, GroupColumn) else column


# ---- the columns of a block, together -------------------------------------------------------------------------------


def take_each(columns: Mapping[str, Column], index: Index) -> dict[str, Column]:
    """Return the rows at ``index`` of every column; the columns of a group still share one inverse."""
    arrays = [column for column in columns.values() if isinstance(column, pa.Array)]
    if len(arrays) == len(columns):
        return dict(zip(columns, take_arrays(arrays, index), strict=True))
    return _each(columns, partial(take_arrays, index=index), partial(take, index=index), index)


def cut_each(columns: Mapping[str, Column], start: int, stop: int) -> dict[str, Column]:
    """Return rows ``start`` to ``stop`` of every column without a copy; columns of a group still share an inverse."""

    def together(arrays: list[pa.Array]) -> list[pa.Array]:
        return [array.slice(start, stop - start) for array in arrays]

    return _each(columns, together, lambda column: cut(column, start, stop), slice(start, stop))


def _each(columns: Mapping[str, Column], arrow: Any, single: Any, index: Any) -> dict[str, Column]:
    """Apply ``arrow`` to all Arrow columns in one call, and ``alone`` to each ndarray separately."""
    known: dict[int, tuple[RowSharing, Selection]] = {}
    chosen = dict(columns)
    arrays = {name: column for name, column in columns.items() if isinstance(column, pa.Array)}
    if arrays:
        chosen.update(zip(arrays, arrow(list(arrays.values())), strict=True))
        if len(arrays) == len(columns):
            return chosen
    for name, column in columns.items():
        if isinstance(column, pa.Array):
            continue
        if not isinstance(column, GroupColumn):
            chosen[name] = single(column)
            continue
        key = id(column.sharing)
        if key not in known:
            known[key] = column.sharing.at(index)
        chosen[name] = _with_sharing(column, *known[key])
    return chosen


def own_each(columns: Mapping[str, Column], own: Callable[[Column], Column]) -> dict[str, Column]:
    """Copy every column with ``own``. Groups lose unused stored rows; columns of a group still share one inverse."""
    known: dict[int, RowSharing] = {}
    copies: dict[str, Column] = {}
    for name, column in columns.items():
        if not isinstance(column, GroupColumn):
            copies[name] = own(column)
            continue
        small = column.narrow()
        shared = small.sharing
        if id(column.sharing) not in known:
            known[id(column.sharing)] = RowSharing(
                shared.inverse.copy(), shared.stored_rows, shared.together, len(shared)
            )
        copies[name] = GroupColumn(own(small.values), known[id(column.sharing)], small.fresh)
    return copies


def concat_each(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Concatenate the columns of several blocks. Columns that share an inverse in every block still share one."""
    known: dict[tuple[int, ...], RowSharing] = {}
    joined: dict[str, Column] = dict(parts[0])
    arrow = dict.fromkeys(name for name in joined if all(isinstance(part[name], pa.Array) for part in parts))
    if arrow:
        joined.update(zip(arrow, concat_arrays([[part[name] for name in arrow] for part in parts]), strict=True))
    for name in [name for name in joined if name not in arrow]:
        columns = [part[name] for part in parts]
        if not any(isinstance(column, GroupColumn) for column in columns):
            joined[name] = concat(columns)
            continue
        small = [c.narrow() if isinstance(c, GroupColumn) else c for c in columns]
        key = tuple(id(c.sharing) if isinstance(c, GroupColumn) else -1 for c in columns)
        if key not in known:
            known[key] = _concat_inverses(small)
        values = concat([c.values if isinstance(c, GroupColumn) else c for c in small])
        joined[name] = GroupColumn(values, known[key], fresh=False)
    return joined


def _concat_inverses(columns: Sequence[Column]) -> RowSharing:
    """Concatenate the inverses of columns; a plain column has one stored row per row."""
    inverses, offset = [], 0
    for column in columns:
        if isinstance(column, GroupColumn):
            inverses.append(column.sharing.inverse + np.int32(offset))
            offset += column.sharing.stored_rows
        else:
            inverses.append(np.arange(offset, offset + len(column), dtype=np.int32))
            offset += len(column)
    inverse = np.concatenate(inverses)
    return RowSharing(inverse, offset, 0, len(inverse))
