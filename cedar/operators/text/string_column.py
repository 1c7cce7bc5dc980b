"""Columns of text as flat bytes and offsets; what the transforms here have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import Column, Index
from cedar.operators.transform import BadValues

Bytes: TypeAlias = npt.NDArray[np.uint8]
Mask: TypeAlias = npt.NDArray[np.bool_]
Errors: TypeAlias = Literal["strict", "replace"]

ASCII = 128  # bytes from here on belong to other characters


@dataclass(frozen=True)
class StringColumn:
    """A column of valid UTF-8.

    Args:
        data: the bytes of all rows, one after the other.
        offsets: int64[rows + 1]; the first need not be 0. Null rows have none.
        missing: the null rows; None if there are none.
    """

    data: Bytes
    offsets: Index
    missing: Mask | None

    @staticmethod
    def of(column: Column, errors: Errors = "strict") -> StringColumn:
        """A column of large strings or large binaries.

        Raises:
            BadValues: rows that are not valid UTF-8, where ``errors`` is "strict".
        """
        column = _valid(column, errors)
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        if missing is not None:
            column = column.fill_null("")  # the value at a null is undefined
        _, offsets, data = column.buffers()
        if data is None or not len(column):
            return StringColumn(np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64), missing)
        bounds = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
        return StringColumn(np.frombuffer(data, np.uint8, int(bounds[-1])), bounds, missing)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Index:
        """int64[rows], in bytes."""
        return np.diff(self.offsets)

    @property
    def bytes(self) -> Bytes:
        """The bytes of these rows alone."""
        return self.data[int(self.offsets[0]) : int(self.offsets[-1])]

    def array(self) -> pa.Array:
        """The column, nulls as empty strings."""
        return strings(self.data, self.offsets)

    def beyond_ascii(self) -> Mask | None:
        """Which rows have a character that is not ASCII; None if all are plain ASCII."""
        data = self.bytes
        if not len(data) or int(data.max()) < ASCII:
            return None
        places = np.flatnonzero(data >= ASCII) + self.offsets[0]
        rows: Mask = np.zeros(len(self), dtype=np.bool_)
        rows[np.searchsorted(self.offsets, places, side="right") - 1] = True
        return rows


def strings(data: Bytes, offsets: Index, missing: Mask | None = None) -> pa.Array:
    """Flat bytes, which are valid UTF-8, as a column of large strings."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
    if missing is not None:
        buffers[0] = pa.array(~missing).buffers()[1]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def is_text(kind: Any) -> bool:
    """Strings, or bytes that hold UTF-8."""
    return isinstance(kind, pa.DataType) and (pt.is_large_string(kind) or pt.is_large_binary(kind))


def _valid(column: Column, errors: Errors) -> pa.Array:
    text = column.view(pa.large_string()) if pt.is_large_binary(column.type) else column
    try:
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        raw = column.view(pa.large_binary()).to_pylist()
    if errors == "replace":
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in raw], text.type)
    wrong = {row: why for row, value in enumerate(raw) if value is not None and (why := _fault(value))}
    raise BadValues(wrong, 'fix the data, or decode it with errors="replace"')


def _fault(value: bytes) -> str | None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"not valid UTF-8: byte {value[error.start]:#04x} at byte {error.start}"
    return None


def picked(items: Any, offsets: Index, rows: Index) -> tuple[Any, Index]:
    """The lists at ``rows``, in that order."""
    starts = offsets[:-1][rows]
    lengths = offsets[1:][rows] - starts
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places), dtype=np.int64)
    return items[places], np.concatenate([[0], ends]).astype(np.int64)


def joined(one: tuple[Any, Index], other: tuple[Any, Index]) -> tuple[Any, Index]:
    """Lists after lists."""
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1][1:] + one[1][-1]])


def with_ends(ids: Any, offsets: Index, begin: Any, end: Any) -> tuple[Any, Index]:
    """Every list with the same items before and after it."""
    if not len(begin) and not len(end):
        return ids, offsets
    more = len(begin) + len(end)
    wider = offsets + more * np.arange(len(offsets), dtype=np.int64)
    out = np.empty(int(wider[-1]), dtype=ids.dtype)
    own = np.ones(len(out), dtype=np.bool_)
    for place, item in enumerate(begin):
        out[wider[:-1] + place] = item
        own[wider[:-1] + place] = False
    for place, item in enumerate(end):
        out[wider[1:] - len(end) + place] = item
        own[wider[1:] - len(end) + place] = False
    out[own] = ids
    return out, wider
