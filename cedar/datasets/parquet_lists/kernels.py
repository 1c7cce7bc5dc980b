"""Compiled loops that decode the pages of a list column.

Parquet stores for each entry of a list column a repetition level (0 begins a row) and a definition level (how much of
the entry is there), and the values that are there. A page may begin in the middle of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.datasets.parquet_lists.memory import as_pointer, load_half, load_word
from cedar.datasets.parquet_lists.reader import (
    ADDRESS,
    COMPRESSED,
    DATA_PAGE,
    DATA_PAGE_V2,
    DECODED,
    DEFINITION_BYTES_V2,
    DEFINITION_ENCODING,
    DICTIONARY,
    DICTIONARY_PAGE,
    DICTIONARY_SIZE,
    EMPTY,
    ENCODING,
    ENCODING_V2,
    ENTRIES,
    ENTRIES_V2,
    FAILED,
    FIRST_PAGE,
    FULL,
    KEPT,
    KIND,
    NULLS,
    PAGES,
    PLACE,
    REPETITION_BYTES_V2,
    REPETITION_ENCODING,
    ROW,
    STORED,
    VALUES,
    WIDTH,
    WRITTEN,
)
from cedar.datasets.parquet_lists.snappy import decompress
from cedar.operators.jit import kernel, numba

_carray = numba().carray
_RLE, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 3, 2, 8  # encodings; 0 is plain
_DATA_PAGE_HEADER, _DATA_PAGE_HEADER_V2 = 5, 8  # fields of a page's header


@kernel()
def read_varint(data: Any, place: Any, end: Any) -> Any:
    """Return the number at ``data[place:end]``, and where it ends; -1 if the data end early."""
    value, shift = np.uint64(0), np.uint64(0)
    while place < end and shift < 64:
        byte = np.uint64(data[place])
        place += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < 128:
            return np.int64(value), place
        shift += np.uint64(7)
    return np.int64(0), -1


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
        header, place = read_varint(data, place, end)
        if place < 0 or header < 0 or header >> 35:
            return False
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


@kernel()
def read_header(  # noqa: C901, PLR0912 - one loop over a format's fields
    data: Any, place: Any, end: Any, page: Any
) -> Any:
    """Read a ``PageHeader`` of Thrift's compact protocol into ``page``; return where it ends, -1 if it is damaged."""
    page[:] = 0
    page[COMPRESSED] = 1
    outer = np.zeros(4, np.int64)  # the last field of each struct that contains the current one
    depth, field = 0, np.int64(0)
    while True:
        if place < 0 or place >= end:
            return -1
        byte = np.int64(data[place])
        place += 1
        if byte == 0:  # the end of a struct
            if depth == 0:
                return place
            depth -= 1
            field = outer[depth]
            continue
        kind = byte & 15
        if byte >> 4:
            field += byte >> 4
        else:
            field, place = read_varint(data, place, end)
            field = (field >> 1) ^ -(field & 1)
        value = np.int64(0)
        if kind <= 2:
            value = np.int64(kind == 1)
        elif 4 <= kind <= 6:
            value, place = read_varint(data, place, end)
            value = (value >> 1) ^ -(value & 1)
        elif kind == 8:  # bytes
            value, place = read_varint(data, place, end)
            if place < 0 or not 0 <= value <= end - place:
                return -1
            place += value
        elif kind == 12:  # a struct
            if depth == 3:
                return -1
            outer[depth] = field
            depth, field = depth + 1, np.int64(0)
            continue
        else:  # pages have no other kinds
            return -1
        if depth == 0 and 1 <= field <= 3:
            page[field] = value
        elif depth == 1 and outer[0] == _DATA_PAGE_HEADER and 1 <= field <= 4:
            page[ENTRIES - 1 + field] = value
        elif depth == 1 and outer[0] == _DATA_PAGE_HEADER_V2 and 1 <= field <= 7:
            page[ENTRIES_V2 - 1 + field] = value


@kernel()
def is_sound(page: Any, room: Any, whole: Any) -> Any:
    """Whether a page has a known layout, and its sizes are within a column chunk of ``room`` bytes."""
    if not (0 <= page[STORED] <= room and 0 <= page[DECODED] <= whole):
        return False
    if page[KIND] == DATA_PAGE_V2:
        definition, repetition = page[DEFINITION_BYTES_V2], page[REPETITION_BYTES_V2]
        page[ENTRIES], page[ENCODING] = page[ENTRIES_V2], page[ENCODING_V2]
        if not (0 <= definition <= whole and 0 <= repetition <= whole):
            return False
        if definition + repetition > min(page[STORED], page[DECODED]):
            return False
    elif page[KIND] == DATA_PAGE:
        if page[REPETITION_ENCODING] != _RLE or page[DEFINITION_ENCODING] != _RLE:
            return False
    else:
        page[ENTRIES] = 0
        return page[KIND] == DICTIONARY_PAGE
    encoding = page[ENCODING]
    return page[ENTRIES] >= 0 and (encoding in (0, _PLAIN_DICTIONARY, _RLE_DICTIONARY))


@kernel("void(uint8[::1], int64[:, ::1], int64[:, ::1], int64[::1])")
def find_pages(data: Any, chunks: Any, pages: Any, counts: Any) -> None:
    """Find the pages of columns.

    Args:
        data: the bytes of all columns.
        chunks: int64[columns, 4]: where each begins and ends, its entries, and its size when decompressed.
        pages: int64[room, 16] receives the pages, see ``reader.PLACE``; there may be more than there is room for.
        counts: int64[columns] receives the number of pages of each column; -1 if one is unusual or damaged.
    """
    number = 0
    spare = np.zeros(pages.shape[1], np.int64)
    for i in range(len(chunks)):
        place, end, entries, whole = chunks[i]
        seen, first = 0, number
        while seen < entries:
            page = pages[number] if number < len(pages) else spare
            place = read_header(data, place, end, page)
            if place < 0 or not is_sound(page, end - place, whole):
                break
            levels = np.int64(0)
            if page[KIND] == DATA_PAGE_V2:  # its levels come first, and are not compressed
                levels = page[DEFINITION_BYTES_V2] + page[REPETITION_BYTES_V2]
            page[PLACE], page[ADDRESS] = place, np.int64(data.ctypes.data) + place + levels
            place += page[STORED]
            page[STORED] -= levels
            page[DECODED] -= levels
            seen += page[ENTRIES]
            number += 1
        counts[i] = number - first if seen == entries else -1
        if seen != entries:
            number = first


@kernel()
def number_at(address: Any, index: Any, width: Any) -> Any:
    """Return number ``index`` of an array of numbers of 4 or 8 bytes."""
    if width == 8:
        return load_word(np.int64(address + (index << 3)))
    return np.uint64(load_half(np.int64(address + (index << 2))))


@kernel()
def decode_levels(
    data: Any, repetition: Any, stop: Any, definition: Any, end: Any, column: Any, count: Any, levels: Any
) -> Any:
    """Decode the levels of ``count`` entries: repetition from ``data[repetition:stop]``; False if they are damaged."""
    if not decode_runs(data, repetition, stop, 1, levels[0], count):
        return False
    return decode_runs(data, definition, end, 2 if column[FULL] > 1 else 1, levels[1], count)


@kernel()
def decode_page(
    data: Any, start: Any, page: Any, column: Any, levels: Any, index: Any, keep: Any, values: Any, ends: Any,
    missing: Any,
) -> Any:  # fmt: skip
    """Append the rows of a page that are kept, whose values begin at ``start``; False if the data are damaged."""
    repetition, definition = levels[0], levels[1]
    count, empty, full, width = page[ENTRIES], np.uint8(column[EMPTY]), np.uint8(column[FULL]), column[WIDTH]
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
    row, kept, written, used = column[ROW], column[KEPT], column[WRITTEN], 0
    if wrong or row + rows >= len(keep) or (row < 0 and count and repetition[0]):
        return False
    if page[ENCODING] and present:
        bits = np.int64(data[start]) if start < len(data) else 64
        if bits > 31 or not decode_runs(data, start + 1, len(data), bits, index, present):
            return False
        largest = np.int32(0)
        for i in range(present):
            largest = max(largest, index[i])
        if largest >= column[DICTIONARY_SIZE]:
            return False
        index[present] = 0
        stored = column[DICTIONARY]
        for i in range(count):  # without branches, since lengths of rows cannot be predicted
            begins, there = repetition[i] == 0, definition[i] == full
            row += begins
            wanted = keep[row]
            kept += begins & wanted
            # signed places would cost a comparison
            values[np.uint64(written)] = number_at(stored, np.int64(index[np.uint64(used)]), width)
            written += there & wanted
            used += there
            ends[np.uint64(kept)] = written
    else:
        stored = np.int64(data.ctypes.data) + start
        available = max(0, len(data) - start) // width
        if present > available:
            return False
        for i in range(count):
            begins, there = repetition[i] == 0, definition[i] == full
            row += begins
            wanted = keep[row]
            kept += begins & wanted
            values[written] = number_at(stored, used, width) if used < available else np.uint64(0)
            written += there & wanted
            used += there
            ends[kept] = written
    if nulls:
        column[NULLS] = 1
        row, kept = column[ROW], column[KEPT]
        for i in range(count):
            begins = repetition[i] == 0
            row += begins
            kept += begins & keep[row]
            missing[kept] |= begins & keep[row] & (definition[i] < empty)
    column[ROW], column[KEPT], column[WRITTEN] = row, kept, written
    return True


@kernel()
def decompress_page(page: Any, memory: Any) -> Any:
    """Decompress a page into ``memory`` if it is compressed, with Snappy; False if it is damaged."""
    if not page[COMPRESSED] or not page[DECODED]:
        return page[STORED] == page[DECODED] or not page[DECODED]
    source = page[ADDRESS]
    page[ADDRESS] = np.int64(memory.ctypes.data)
    return decompress(source, page[STORED], page[ADDRESS], page[DECODED])


@kernel()
def decode_column(
    chunk: Any, pages: Any, column: Any, spare: Any, levels: Any, index: Any, keep: Any, values: Any, ends: Any,
    missing: Any,
) -> None:  # fmt: skip
    """Decode the rows of a column that are kept, see ``decode_columns``."""
    column[FAILED] = 1
    for i in range(len(pages)):
        page = pages[i]
        if not decompress_page(page, spare[0 if page[KIND] == DICTIONARY_PAGE else 1]):
            return
        body = _carray(as_pointer(page[ADDRESS]), (page[DECODED],), np.uint8)
        if page[KIND] == DICTIONARY_PAGE:
            column[DICTIONARY], column[DICTIONARY_SIZE] = page[ADDRESS], page[DECODED] // column[WIDTH]
            continue
        coded, at, middle = body, 4, np.int64(0)
        if page[KIND] == DATA_PAGE_V2:
            coded, at = chunk, page[PLACE]
            middle = at + page[REPETITION_BYTES_V2]
            end, start = middle + page[DEFINITION_BYTES_V2], np.int64(0)
            done = decode_levels(coded, at, middle, middle, end, column, page[ENTRIES], levels)
        else:
            if len(body) < 4:
                return
            middle = 8 + np.int64(load_half(page[ADDRESS]))
            if middle > len(body):
                return
            end = middle + np.int64(load_half(page[ADDRESS] + middle - 4))
            start = end
            done = end <= len(body) and decode_levels(coded, at, middle - 4, middle, end, column, page[ENTRIES], levels)
        if not done or not decode_page(body, start, page, column, levels, index, keep, values, ends, missing):
            return
    column[FAILED] = 0


@kernel(
    "void(uint8[::1], int64[:, ::1], int64[:, ::1], uint8[:, ::1], uint8[:, ::1], int32[::1], uint8[::1],"
    " int64[:, ::1], uint8[:, ::1])"
)
def decode_columns(
    chunk: Any, pages: Any, columns: Any, spare: Any, levels: Any, index: Any, keep: Any, ends: Any, missing: Any
) -> None:
    """Decode the rows of columns that are kept. Damaged data cannot make it read or write outside the arrays.

    Args:
        chunk: the bytes of the file that ``reader.PLACE`` counts in, and ``reader.SLACK`` more.
        pages: int64[pages, 16], see ``reader.PLACE``; those with ``COMPRESSED`` are compressed with Snappy.
        columns: int64[columns, 13], see ``reader.WIDTH``. At ``VALUES`` is memory for 8 bytes for each entry of the
            column and one more, which receives the values of the kept rows. ``FAILED`` becomes 1 if the data are
            damaged or contain null values.
        spare: uint8[2, bytes]: memory for the largest decompressed page, and ``reader.SLACK`` more: for a dictionary,
            and for a data page.
        levels: uint8[2, entries]: memory for the levels of the entries of a page.
        index: int32[entries + 1]: memory for the places in the dictionary.
        keep: for each row of a column, 1 if it is kept, else 0.
        ends: for each column, receives where its first kept row begins, 0, and the end of each.
        missing: for each column with null rows, receives 1 at ``i + 1`` if the kept row ``i`` is null, else 0.
    """
    for i in range(len(columns)):
        column = columns[i]
        own = pages[column[FIRST_PAGE] : column[FIRST_PAGE] + column[PAGES]]
        room = np.int64(1)
        for page in range(len(own)):
            room += own[page, ENTRIES]
        values = _carray(as_pointer(column[VALUES]), (room,), np.uint64)
        ends[i, 0] = 0
        missing[i] = 0
        decode_column(chunk, own, column, spare, levels, index, keep, values, ends[i], missing[i])
