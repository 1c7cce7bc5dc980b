"""Columns of lists as flat items and offsets, and back; what the transforms here have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.arrow import of_numbers
from cedar.core.columns import Column, ColumnType
from cedar.core.errors import PipelineError, user_site
from cedar.core.groups.gather import stretches
from cedar.operators.transform import BadValues, Transform

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Lists:
    """A column of lists.

    Args:
        items: an Arrow array of the items of all rows, one after the other; null rows have none.
        offsets: int64[rows + 1], from 0.
        missing: the null rows; None if there are none.
    """

    items: pa.Array
    offsets: npt.NDArray[np.int64]
    missing: Mask | None

    @staticmethod
    def of(array: pa.Array) -> Lists:
        missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        if missing is None:
            bounds = array.offsets.to_numpy()
            start = int(bounds[0])
            return Lists(array.values.slice(start, int(bounds[-1]) - start), bounds - start, None)
        items = array.flatten()  # without what is behind null rows
        lengths = np.where(missing, 0, np.diff(array.offsets.to_numpy()))
        return Lists(items, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), missing)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self) -> npt.NDArray[np.int64]:
        """The row of each item."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def places(self) -> npt.NDArray[np.int64]:
        """The place of each item in its row."""
        return np.arange(len(self.items)) - np.repeat(self.offsets[:-1], self.lengths)

    def parts(self, starts: Array, lengths: Array) -> pa.Array:
        """A part of each list, as a column: from which of the items on, and how many."""
        places, offsets = stretches(starts, lengths)
        plain = is_numbers(self.items.type) and not self.items.null_count
        items = values_of(self.items)[places] if plain else self.items.take(of_numbers(places))
        return lists_from(items, offsets, self.missing)

    def numbers(self, name: str) -> Array:
        """The items as numbers.

        Raises:
            BadValues: nulls inside lists.
        """
        if self.items.null_count:
            rows = np.unique(self.rows()[self.items.is_null().to_numpy(zero_copy_only=False)])
            raise BadValues(
                {int(row): f"{name} got a list with a null in it" for row in rows}, "fill or drop them first"
            )
        return values_of(self.items)


def lists_from(items: pa.Array | Array, offsets: Array, *missing: Mask | None) -> pa.Array:
    """Items and offsets as a column; rows missing in any of the inputs are null."""
    gone = [mask for mask in missing if mask is not None]
    null = pa.array(np.logical_or.reduce(gone)) if gone else None
    items = items if isinstance(items, pa.Array) else of_numbers(items, pa.from_numpy_dtype(items.dtype))
    return pa.LargeListArray.from_arrays(of_numbers(offsets), items, mask=null)


def offsets_of(lengths: Array) -> npt.NDArray[np.int64]:
    """Where rows of these lengths begin and end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def values_of(array: pa.Array) -> Array:
    """Numbers as they are in memory; the value at a null is undefined."""
    kind = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), dtype=kind)
    return np.frombuffer(data, dtype=kind, count=len(array), offset=array.offset * kind.itemsize)


def is_lists(kind: Any) -> bool:
    return isinstance(kind, pa.DataType) and pt.is_large_list(kind)


def is_ids(kind: Any) -> bool:
    """Integers."""
    return isinstance(kind, pa.DataType) and pt.is_integer(kind)


def is_numbers(kind: Any) -> bool:
    return isinstance(kind, pa.DataType) and (pt.is_integer(kind) or pt.is_floating(kind))


def as_int64(values: Array) -> npt.NDArray[np.int64]:
    """The same 64 bits; smaller numbers keep their value."""
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64, copy=False)


def check_whole(name: str, parameter: str, value: Any, low: int, high: int) -> None:
    """Refuse a parameter that is not an integer, or out of range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PipelineError(f"{name}({parameter}={value!r}): an integer from {low} to {high}", site=user_site())


class Items(Transform):
    """A transform of each number by itself: of a column of numbers, or of the items of a column of lists.

    Nulls stay nulls, empty lists stay empty.
    """

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        return pa.large_list(self.item(kind.value_type)) if is_lists(kind) else self.item(kind)

    def columns(self, *columns: Column) -> Column:
        (array,) = columns
        if not is_lists(array.type):
            return self._done(array, None)
        lists = Lists.of(array)
        return lists_from(self._done(lists.items, lists), lists.offsets, lists.missing)

    def _done(self, array: pa.Array, lists: Lists | None) -> pa.Array:
        missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        values = values_of(array)
        bad = self.bad(values)
        if bad is not None:
            places = np.flatnonzero(bad if missing is None else bad & ~missing)
            if len(places):
                rows = places if lists is None else lists.rows()[places]
                firsts = dict(zip(rows[::-1].tolist(), places[::-1].tolist(), strict=True))
                raise BadValues({row: self.why(values[place]) for row, place in sorted(firsts.items())}, self.fix())
        return pa.array(self.change(values), self.item(array.type), mask=missing)

    @abstractmethod
    def item(self, kind: Any) -> pa.DataType:
        """The type of a result for a number of this type; PipelineError where it takes none such."""

    @abstractmethod
    def change(self, values: Array) -> Array:
        """The results; what it makes of the places of nulls does not count."""

    def bad(self, values: Array) -> Mask | None:
        """Which values have no result; None if all have one."""
        return None

    def why(self, value: Any) -> str:
        return f"{type(self).__name__} of {value}"

    def fix(self) -> str:
        return "filter or map such values first, or give on_error=cedar.Skip(...)"
