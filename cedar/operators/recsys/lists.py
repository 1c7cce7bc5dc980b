"""Convert columns of lists to flat items with offsets and back, for the transforms of this package."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import Column, ColumnType, from_numbers
from cedar.core.errors import invalid_call
from cedar.core.jagged import stretches
from cedar.operators.transform import BadValues, Transform

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Lists:
    """A column of lists.

    Args:
        items: an Arrow array with the items of all rows concatenated; null rows have none.
        offsets: int64[rows + 1], from 0 to the number of items; row i has items ``offsets[i]`` to ``offsets[i + 1]``.
        missing: a mask of null rows; None if no row is null.
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
        items = array.flatten()  # leaves out items of null rows
        lengths = np.where(missing, 0, np.diff(array.offsets.to_numpy()))
        return Lists(items, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), missing)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self) -> npt.NDArray[np.int64]:
        """Return the row index of each item."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def positions(self) -> npt.NDArray[np.int64]:
        """Return the index of each item in its list."""
        return np.arange(len(self.items)) - np.repeat(self.offsets[:-1], self.lengths)

    def parts(self, starts: Array, lengths: Array) -> pa.Array:
        """Return a column with a part of each list; ``starts`` are indices into ``items``."""
        item_indices, offsets = stretches(starts, lengths)
        plain = is_numbers(self.items.type) and not self.items.null_count
        items = values_of(self.items)[item_indices] if plain else self.items.take(from_numbers(item_indices))
        return lists_from(items, offsets, self.missing)

    def numbers(self, name: str) -> Array:
        """Return the items as a NumPy array.

        Raises:
            BadValues: a list contains a null.
        """
        if self.items.null_count:
            rows = np.unique(self.rows()[self.items.is_null().to_numpy(zero_copy_only=False)])
            raise BadValues(
                {int(row): f"{name} does not support nulls in lists" for row in rows}, "fill or drop them first"
            )
        return values_of(self.items)


def lists_from(items: pa.Array | Array, offsets: Array, *missing: Mask | None) -> pa.Array:
    """Return a column of lists from items and offsets. Rows in any of the masks ``missing`` are null."""
    masks = [mask for mask in missing if mask is not None]
    null = pa.array(np.logical_or.reduce(masks)) if masks else None
    items = items if isinstance(items, pa.Array) else from_numbers(items, pa.from_numpy_dtype(items.dtype))
    return pa.LargeListArray.from_arrays(from_numbers(offsets), items, mask=null)


def offsets_of(lengths: Array) -> npt.NDArray[np.int64]:
    """Return the offsets of lists with these lengths: [0, lengths[0], lengths[0] + lengths[1], ...]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def values_of(array: pa.Array) -> Array:
    """Return a view of an Arrow array of numbers; values at nulls are undefined."""
    kind = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), dtype=kind)
    return np.frombuffer(data, dtype=kind, count=len(array), offset=array.offset * kind.itemsize)


def is_lists(kind: Any) -> bool:
    return isinstance(kind, pa.DataType) and pt.is_large_list(kind)


def is_ids(kind: Any) -> bool:
    """Return whether a type is an integer type."""
    return isinstance(kind, pa.DataType) and pt.is_integer(kind)


def is_numbers(kind: Any) -> bool:
    return isinstance(kind, pa.DataType) and (pt.is_integer(kind) or pt.is_floating(kind))


def as_int64(values: Array) -> npt.NDArray[np.int64]:
    """Return uint64 values reinterpreted as int64, and all others converted to int64."""
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64, copy=False)


def check_integer(name: str, parameter: str, value: Any, low: int, high: int) -> None:
    """Raise PipelineError if a parameter is not an integer from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid_call(f"{name}({parameter}={value!r}): must be an integer from {low} to {high}")


class Items(Transform):
    """Base class of elementwise transforms of numbers, for columns of numbers and for columns of lists of numbers.

    Nulls stay null, and empty lists stay empty.
    """

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        return pa.large_list(self.item_type(kind.value_type)) if is_lists(kind) else self.item_type(kind)

    def columns(self, *columns: Column) -> Column:
        (array,) = columns
        if not is_lists(array.type):
            return self._transform_items(array, None)
        lists = Lists.of(array)
        return lists_from(self._transform_items(lists.items, lists), lists.offsets, lists.missing)

    def _transform_items(self, array: pa.Array, lists: Lists | None) -> pa.Array:
        missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        values = values_of(array)
        bad = self.invalid_mask(values)
        if bad is not None:
            bad_indices = np.flatnonzero(bad if missing is None else bad & ~missing)
            if len(bad_indices):
                rows = bad_indices if lists is None else lists.rows()[bad_indices]
                firsts = dict(zip(rows[::-1].tolist(), bad_indices[::-1].tolist(), strict=True))
                raise BadValues({row: self.why(values[index]) for row, index in sorted(firsts.items())}, self.fix())
        return pa.array(self.transform_values(values), self.item_type(array.type), mask=missing)

    @abstractmethod
    def item_type(self, kind: Any) -> pa.DataType:
        """Return the result type for numbers of type ``kind``; raise PipelineError if the type is not supported."""

    @abstractmethod
    def transform_values(self, values: Array) -> Array:
        """Return the result for each value. Values of nulls are arbitrary, and their results are ignored."""

    def invalid_mask(self, values: Array) -> Mask | None:
        """Return a mask of the values for which the transform fails; None if it cannot fail."""
        return None

    def why(self, value: Any) -> str:
        return f"{type(self).__name__} of {value}"

    def fix(self) -> str:
        return "filter or map such values first, or give on_error=cedar.Skip(...)"
