"""Convert columns of text to flat bytes with offsets and back, for the transforms of this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import Column, Index, from_flags
from cedar.core.jagged import stretches
from cedar.operators.transform import BadValues

Bytes: TypeAlias = npt.NDArray[np.uint8]
Mask: TypeAlias = npt.NDArray[np.bool_]
Errors: TypeAlias = Literal["strict", "replace"]

ASCII = 128  # bytes of at least 128 belong to non-ASCII characters


@dataclass(frozen=True)
class StringColumn:
    """A column of valid UTF-8 strings.

    Args:
        data: the concatenated bytes of all rows.
        offsets: int64[rows + 1], the start of each row in ``data`` and the end; may start above 0. Null rows are empty.
        missing: a mask of null rows; None if no row is null.
    """

    data: Bytes
    offsets: Index
    missing: Mask | None

    @staticmethod
    def of(column: Column, errors: Errors = "strict") -> StringColumn:
        """Convert a column of large strings or large binaries.

        Raises:
            BadValues: ``errors`` is "strict" and some rows are not valid UTF-8.
        """
        column = _check_utf8(column, errors)
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        if missing is not None:
            column = column.fill_null("")  # nulls may have arbitrary bytes
        _, offsets, data = column.buffers()
        if data is None or not len(column):
            return StringColumn(np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64), missing)
        bounds = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
        return StringColumn(np.frombuffer(data, np.uint8, int(bounds[-1])), bounds, missing)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Index:
        """The length of each row in bytes, int64[rows]."""
        return np.diff(self.offsets)

    @property
    def bytes(self) -> Bytes:
        """The part of ``data`` that belongs to the rows."""
        return self.data[int(self.offsets[0]) : int(self.offsets[-1])]

    def array(self) -> pa.Array:
        """Return the strings as an Arrow column in which nulls are empty strings."""
        return strings(self.data, self.offsets)

    def non_ascii_rows(self) -> Mask | None:
        """Return a mask of rows with a non-ASCII character; None if all rows are ASCII."""
        data = self.bytes
        if not len(data) or int(data.max()) < ASCII:
            return None
        positions = np.flatnonzero(data >= ASCII) + self.offsets[0]
        rows: Mask = np.zeros(len(self), dtype=np.bool_)
        rows[np.searchsorted(self.offsets, positions, side="right") - 1] = True
        return rows


def strings(data: Bytes, offsets: Index, missing: Mask | None = None) -> pa.Array:
    """Create a column of large strings from flat bytes, which must be valid UTF-8."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
    if missing is not None:
        buffers[0] = from_flags(~missing).buffers()[1]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def is_text(kind: Any) -> bool:
    """Return whether a type is large strings or large binaries."""
    return isinstance(kind, pa.DataType) and (pt.is_large_string(kind) or pt.is_large_binary(kind))


def _check_utf8(column: Column, errors: Errors) -> pa.Array:
    text = column.view(pa.large_string()) if pt.is_large_binary(column.type) else column
    try:
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        raw = column.view(pa.large_binary()).to_pylist()
    if errors == "replace":
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in raw], text.type)
    wrong = {row: why for row, value in enumerate(raw) if value is not None and (why := _utf8_fault(value))}
    raise BadValues(wrong, 'fix the data, or decode it with errors="replace"')


def _utf8_fault(value: bytes) -> str | None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"not valid UTF-8: byte {value[error.start]:#04x} at byte {error.start}"
    return None


def take_lists(items: Any, offsets: Index, rows: Index) -> tuple[Any, Index]:
    """Return the lists with the indices ``rows``, in that order."""
    starts = offsets[:-1][rows]
    places, new_offsets = stretches(starts, offsets[1:][rows] - starts)
    return items[places], new_offsets


def concatenate_lists(first: tuple[Any, Index], second: tuple[Any, Index]) -> tuple[Any, Index]:
    """Concatenate two columns of lists."""
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1][1:] + first[1][-1]])


def surround_lists(ids: Any, offsets: Index, begin: Any, end: Any) -> tuple[Any, Index]:
    """Add the items ``begin`` at the start, and ``end`` at the end, of every list."""
    if not len(begin) and not len(end):
        return ids, offsets
    added = len(begin) + len(end)
    new_offsets = offsets + added * np.arange(len(offsets), dtype=np.int64)
    out = np.empty(int(new_offsets[-1]), dtype=ids.dtype)
    from_list = np.ones(len(out), dtype=np.bool_)
    for position, item in enumerate(begin):
        out[new_offsets[:-1] + position] = item
        from_list[new_offsets[:-1] + position] = False
    for position, item in enumerate(end):
        out[new_offsets[1:] - len(end) + position] = item
        from_list[new_offsets[1:] - len(end) + position] = False
    out[from_list] = ids
    return out, new_offsets
