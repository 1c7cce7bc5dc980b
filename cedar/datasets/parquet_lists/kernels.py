"""Compiled loops that decode the pages of a list column.

Parquet stores for each entry of a list column a repetition level (0 begins a row) and a definition level (how much of
the entry is there), and the values that are there. A page may begin in the middle of a row.
"""

# ruff: noqa: ARG001 - numba passes these arguments to every intrinsic
from __future__ import annotations

from typing import Any

import numpy as np

from cedar.datasets.parquet_lists.reader import (
    DEFINITION,
    EMPTY,
    END,
    ENTRIES,
    FAILED,
    FULL,
    IN_DICTIONARY,
    KEPT,
    REPETITION,
    ROW,
    VALUES,
    WRITTEN,
)
from cedar.operators.jit import kernel, numba, part

_types = numba().core.types
_word = part("llvmlite.ir").IntType(64)


@numba().extending.intrinsic  # type: ignore[untyped-decorator]
def load_word(typing: Any, address: Any) -> Any:
    """Return the eight bytes at an address as uint64; the address need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _word.as_pointer()), align=1)

    return _types.uint64(_types.int64), generate


@kernel()
def unpack(data: Any, place: Any, end: Any, width: Any, out: Any, count: Any) -> None:
    """Unpack ``count`` numbers of ``width`` bits each from ``data[place:end]``."""
    done = 0
    if width == 1:
        for i in range(count >> 3):
            byte = data[place + i]
            for k in range(8):
                out[8 * i + k] = (byte >> k) & 1
        done = count >> 3 << 3
    elif width == 2:
        for i in range(count >> 2):
            byte = data[place + i]
            for k in range(4):
                out[4 * i + k] = (byte >> (2 * k)) & 3
        done = count >> 2 << 2
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    whole = min(count, ((end - place - 7) * 8 + width - 1) // width) if end - place >= 8 and width else 0
    first = np.int64(data.ctypes.data) + place
    for i in range(done, whole):
        bit = i * width
        out[i] = (load_word(first + (bit >> 3)) >> np.uint64(bit & 7)) & mask
    for i in range(max(done, whole), count):
        bit = i * width
        at = place + (bit >> 3)
        word = np.uint64(0)
        for byte in range(min(8, end - at)):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        out[i] = (word >> np.uint64(bit & 7)) & mask


@kernel()
def decode_runs(data: Any, place: Any, end: Any, width: Any, out: Any, count: Any) -> Any:
    """Decode ``count`` numbers from ``data[place:end]``, runs of equal or packed ones; False if the data end early."""
    done = 0
    while done < count:
        header, shift = np.int64(0), 0
        while True:
            if place >= end or shift > 35:
                return False
            byte = np.int64(data[place])
            place += 1
            header |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if header & 1:
            number = min((header >> 1) * 8, count - done)
            if (number * width + 7) // 8 > end - place:
                return False
            unpack(data, place, end, width, out[done:], number)
            place += (header >> 1) * width
        else:
            number = min(header >> 1, count - done)
            size = (width + 7) // 8
            if size > end - place:
                return False
            value = np.int64(0)
            for i in range(size):
                value |= np.int64(data[place + i]) << (8 * i)
            if value >> width:
                return False
            for i in range(done, done + number):
                out[i] = value
            place += size
        done += number
    return True


@kernel(
    "void(uint8[::1], int64[::1], uint8[::1], uint8[::1], int32[::1], uint8[::1], uint64[::1], uint64[::1], int64[::1],"
    " uint8[::1])"
)
def decode_page(  # noqa: C901, PLR0912 - numba compiles it as one function
    data: Any, page: Any, repetition: Any, definition: Any, index: Any, keep: Any, stored: Any, values: Any, ends: Any,
    missing: Any,
) -> None:  # fmt: skip
    """Append the rows of a page that are kept. Damaged data cannot make it read or write outside the arrays.

    Args:
        data: the page's bytes.
        page: int64[12], see ``reader.ENTRIES``. ``REPETITION`` to ``END`` are places in ``data``, ``EMPTY`` is the
            definition level of an empty list, ``FULL`` that of a value. ``FAILED`` becomes 1 if the data are damaged or
            contain null values.
        repetition, definition: memory for the levels of all entries.
        index: memory for one number more than there are entries.
        keep: for each row of the column, 1 if it is kept, else 0.
        stored: the values of the dictionary; without a dictionary, those of this page.
        values: receives the values of the kept rows; it has one item more than the column has entries.
        ends: receives the end of each kept row; its first item is 0.
        missing: receives 1 at ``i + 1`` if the kept row ``i`` is null.
    """
    count, empty, full = page[ENTRIES], np.uint8(page[EMPTY]), np.uint8(page[FULL])
    page[FAILED] = 1
    if not decode_runs(data, page[REPETITION], page[DEFINITION], 1, repetition, count):
        return
    if not decode_runs(data, page[DEFINITION], page[VALUES], 2 if full > 1 else 1, definition, count):
        return
    present, rows, wrong, nulls = 0, 0, 0, 0
    for i in range(count):
        level, begins = definition[i], repetition[i] == 0
        present += level == full
        rows += begins
        nulls += level < empty
        wrong += (level > full) | ((empty < level) & (level < full))
        wrong += (not begins) & (
            (level != full) | (definition[max(i - 1, 0)] != full)
        )  # only lists with values may continue
    row, kept, written, used = page[ROW], page[KEPT], page[WRITTEN], 0
    if wrong or row + rows >= len(keep) or (row < 0 and count and repetition[0]):
        return
    in_dictionary = page[IN_DICTIONARY]
    if in_dictionary and present:
        width = np.int64(data[page[VALUES]]) if page[VALUES] < page[END] else 64
        if width > 31 or not decode_runs(data, page[VALUES] + 1, page[END], width, index, present):
            return
        largest = np.int32(0)
        for i in range(present):
            largest = max(largest, index[i])
        if largest >= len(stored):
            return
        index[present] = 0
        for i in range(count):  # without branches, since lengths of rows cannot be predicted
            begins, there = repetition[i] == 0, definition[i] == full
            row += begins
            wanted = keep[row]
            kept += begins & wanted
            values[np.uint64(written)] = stored[np.uint64(index[np.uint64(used)])]  # signed places cost a comparison
            written += there & wanted
            used += there
            ends[np.uint64(kept)] = written
    elif present <= len(stored):
        for i in range(count):
            begins, there = repetition[i] == 0, definition[i] == full
            row += begins
            wanted = keep[row]
            kept += begins & wanted
            values[written] = stored[used] if used < len(stored) else np.uint64(0)  # with an int64, it would be a float
            written += there & wanted
            used += there
            ends[kept] = written
    else:
        return
    if nulls:
        row, kept = page[ROW], page[KEPT]
        for i in range(count):
            begins = repetition[i] == 0
            row += begins
            kept += begins & keep[row]
            missing[kept] |= begins & keep[row] & (definition[i] < empty)
    page[ROW], page[KEPT], page[WRITTEN], page[FAILED] = row, kept, written, 0
