"""Read list columns of numbers from a row group of a local Parquet file: only the rows that are kept.

Arrow decodes all rows of a row group; then the rows that a filter keeps are copied. Here other rows are never copied,
and decoding takes two thirds of the time. Only the common layout is read: lists of integers or floats, one level deep,
without null values, plain or in a dictionary, uncompressed or compressed with Snappy or Zstandard. Anything else, and
whatever looks damaged, is left to Arrow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.arrow import from_flags
from cedar.core.errors import PipelineError
from cedar.datasets.parquet_footer import numbers_of

_MIN_BYTES = 1 << 20  # of lists in a row group; to load the kernels takes as long as decoding several times as much
_NUMBERS = {"INT64": pa.int64(), "DOUBLE": pa.float64(), "INT32": pa.int32(), "FLOAT": pa.float32()}
_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd"}
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_PLAIN, _RLE, _DICTIONARY = 0, 3, (2, 8)  # encodings

# Items of the argument ``page`` of a kernel, which updates the last four for the next page.
ENTRIES, REPETITION, DEFINITION, VALUES, END, IN_DICTIONARY, EMPTY, FULL, ROW, KEPT, WRITTEN, FAILED = range(12)

Flags = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ListLeaf:
    """A list column that this module can read.

    Args:
        leaf: the index of its leaf.
        kind: the type of its values.
        empty, full: the definition levels of an empty list, and of a value.
    """

    leaf: int
    kind: pa.DataType
    empty: int
    full: int


class _Unsupported(ValueError):
    """A column must be read by Arrow."""


def list_leaves(schema: Any, arrow: pa.Schema, leaves: Sequence[int]) -> dict[str, ListLeaf]:
    """Return the columns among ``leaves`` that ``read_lists`` can read, by name.

    Args:
        schema, arrow: the schema of a file as Parquet and as Arrow have it.
        leaves: indices of leaves.
    """
    found = {}
    for leaf in leaves:
        column = schema.column(leaf)
        name = column.path.partition(".")[0]
        if column.max_repetition_level != 1 or arrow.names.count(name) != 1:
            continue
        field = arrow.field(name)
        kind = _NUMBERS.get(column.physical_type)
        if kind is None or not (pt.is_list(field.type) or pt.is_large_list(field.type)):
            continue
        full = int(field.nullable) + 1 + int(field.type.value_field.nullable)
        if field.type.value_type == kind and column.max_definition_level == full:
            found[name] = ListLeaf(leaf, kind, int(field.nullable), full)
    return found


def are_read(group: Any, columns: Mapping[str, ListLeaf]) -> bool:
    """Return whether columns of a row group are large enough to be read by ``read_lists``."""
    size = 0
    for column in columns.values():
        size += group.column(column.leaf).total_uncompressed_size
    return size >= _MIN_BYTES and _has_compiler()


def read_lists(path: str, group: Any, columns: Mapping[str, ListLeaf], keep: Flags) -> dict[str, pa.Array]:
    """Read columns of a row group as large lists. Columns that Arrow must read are left out.

    While the kernels compile, all are left out.

    Args:
        path: a local file.
        group: the metadata of the row group.
        keep: for each row, 1 if it is wanted, else 0.
    """
    found: dict[str, pa.Array] = {}
    from cedar.operators.background_kernels import kernels

    try:
        compiled = kernels("cedar.datasets.parquet_lists.kernels", "decode_page")
    except PipelineError:  # numba is damaged
        compiled = None
    if compiled is None:
        return found
    with suppress(OSError), open(path, "rb") as file:
        for name, column in columns.items():
            with suppress(IndexError, KeyError, ValueError, OSError, pa.ArrowException):  # Arrow says what is damaged
                found[name] = _read_column(file.fileno(), group.column(column.leaf), column, keep, compiled.decode_page)
    return found


@cache
def _has_compiler() -> bool:
    return find_spec("numba") is not None


def _read_column(file: int, leaf: Any, column: ListLeaf, keep: Flags, decode: Any) -> pa.Array:
    kept, entries, width = int(np.count_nonzero(keep)), int(leaf.num_values), column.kind.bit_width // 8
    values, ends, missing = _empty(entries + 1, np.uint64), _empty(kept + 1, np.int64), np.zeros(kept + 1, np.uint8)
    ends[0] = 0
    page = np.zeros(12, np.int64)
    page[[EMPTY, FULL, ROW]] = column.empty, column.full, -1
    dictionary, levels, index = np.empty(0, np.uint64), np.empty((2, 0), np.uint8), np.empty(0, np.int32)
    for header, data in _pages(file, leaf):
        if header[1,] == _DICTIONARY_PAGE:
            dictionary = _words(data, 0, width)
            continue
        page[:IN_DICTIONARY], encoding = _places(header, data), header[5, 2] if (5, 2) in header else header[8, 4]
        page[IN_DICTIONARY] = encoding in _DICTIONARY
        if encoding != _PLAIN and encoding not in _DICTIONARY:
            raise _Unsupported
        if page[ENTRIES] >= len(index):
            levels = _empty(2 * page[ENTRIES], np.uint8).reshape(2, -1)
            index = _empty(page[ENTRIES] + 1, np.int32)
        present = dictionary if page[IN_DICTIONARY] else _words(data, int(page[VALUES]), width)
        decode(np.frombuffer(data, np.uint8), page, levels[0], levels[1], index, keep, present, values, ends, missing)
        if page[FAILED]:
            raise _Unsupported
    if page[ROW] != len(keep) - 1:
        raise _Unsupported
    used = values[: page[WRITTEN]]
    if width == 4:
        used = used.astype(np.uint32)
    elif len(used) < entries // 4:
        used = used.copy()  # do not hold the memory of all entries
    items = pa.Array.from_buffers(column.kind, len(used), [None, pa.py_buffer(used)])
    valid = from_flags(missing[1:] == 0).buffers()[1] if missing.any() else None
    return pa.Array.from_buffers(pa.large_list(column.kind), kept, [valid, pa.py_buffer(ends)], children=[items])


def _empty(count: int, kind: Any) -> npt.NDArray[Any]:
    """Return memory of Arrow's allocator, which is used again; new memory would cost page faults."""
    return np.frombuffer(pa.allocate_buffer(int(count) * np.dtype(kind).itemsize), kind)


def _pages(file: int, leaf: Any) -> Iterator[tuple[dict[tuple[int, ...], int], Any]]:
    """Yield the headers of a column's pages and their decompressed bytes.

    The keys of a header are field ids of the format's ``PageHeader``.
    """
    name = _CODECS.get(leaf.compression, leaf.compression)
    if name == leaf.compression or leaf.file_path:
        raise _Unsupported
    codec = None if name is None else pa.Codec(name)
    start, size = leaf.data_page_offset, leaf.total_compressed_size
    if leaf.dictionary_page_offset:
        start = min(start, leaf.dictionary_page_offset)
    data, whole = memoryview(pa.allocate_buffer(size)).cast("B"), leaf.total_uncompressed_size
    if os.preadv(file, [data], start) != size:
        raise _Unsupported
    seen = place = 0
    while seen < leaf.num_values:
        header, place = numbers_of(data, place)  # type: ignore[arg-type] # a memoryview of bytes
        stored, decoded = header[3,], header[2,]
        if not (0 <= stored <= size - place and 0 <= decoded <= whole):
            raise _Unsupported
        body, place = data[place : place + stored], place + stored
        if header[1,] == _DATA_PAGE_V2:  # its levels are not compressed
            levels = header[8, 5] + header[8, 6]
            if min(header[8, 5], header[8, 6]) < 0 or levels > min(stored, decoded):
                raise _Unsupported
            if codec is not None and header.get((8, 7), 1) and decoded > levels:
                body = bytes(body[:levels]) + codec.decompress(body[levels:], decoded - levels, asbytes=True)
        elif codec is not None:
            body = codec.decompress(body, decoded)
        if len(body) != decoded or header[1,] not in (_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2):
            raise _Unsupported
        entries = header.get((5, 1), 0) + header.get((8, 1), 0)
        seen += entries
        if entries < 0 or seen > leaf.num_values:
            raise _Unsupported
        yield header, body


def _places(header: Mapping[tuple[int, ...], int], data: Any) -> tuple[int, ...]:
    """Return a data page's entries, and where its repetition levels, definition levels and values begin and end."""
    if header[1,] == _DATA_PAGE_V2:
        repetition, definition = 0, header[8, 6]
        return header[8, 1], repetition, definition, definition + header[8, 5], len(data)
    if (header[5, 3], header[5, 4]) != (_RLE, _RLE):
        raise _Unsupported
    view = memoryview(data)
    definition = 8 + int.from_bytes(view[:4], "little")
    values = definition + int.from_bytes(view[definition - 4 : definition], "little")
    if values > len(data):
        raise _Unsupported
    return header[5, 1], 4, definition, values, len(data)


def _words(data: Any, start: int, width: int) -> npt.NDArray[np.uint64]:
    """Return the numbers of ``width`` bytes in a page from ``start`` on as 64-bit words, aligned in memory."""
    count = max(0, len(data) - start) // width
    numbers = np.frombuffer(data, f"u{width}", count, start)
    return numbers if numbers.flags.aligned and width == 8 else numbers.astype(np.uint64)
