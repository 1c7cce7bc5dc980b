"""Read list columns of numbers from a row group of a local Parquet file: only the rows that are kept.

Arrow decodes all rows of a row group; then the rows that a filter keeps are copied. Here other rows are never copied,
and decoding takes two thirds of the time. Only the common layout is read: lists of integers or floats, one level deep,
without null values, plain or in a dictionary, uncompressed or compressed with Snappy or Zstandard. Anything else, and
whatever looks damaged, is left to Arrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import from_flags
from cedar.core.errors import PipelineError

_MIN_BYTES = 1 << 20  # of lists in a row group; to load the kernels takes as long as decoding several times as much
_NUMBERS = {"INT64": pa.int64(), "DOUBLE": pa.float64(), "INT32": pa.int32(), "FLOAT": pa.float32()}
_CODECS = ("UNCOMPRESSED", "SNAPPY", "ZSTD")
RUN_BYTES = 4 << 20  # columns are decoded together up to about this size, to save memory
SLACK = 16  # bytes that Snappy's kernel may read after a page, or write after its result: it copies several at once
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3

# Items of a row about a page: where its bytes begin after its header, fields of its header, and the address of its
# bytes. The address, ``DECODED`` and ``STORED`` leave out the levels of a page of version 2, which come first.
PLACE, KIND, DECODED, STORED, ENTRIES, ENCODING, DEFINITION_ENCODING, REPETITION_ENCODING = range(8)
ENTRIES_V2, ENCODING_V2, DEFINITION_BYTES_V2, REPETITION_BYTES_V2, COMPRESSED, ADDRESS = 8, 11, 12, 13, 14, 15
# Items of a row about a column: its type, its pages, the address of its values; the others are the kernel's.
WIDTH, EMPTY, FULL, FIRST_PAGE, PAGES, VALUES = range(6)
ROW, KEPT, WRITTEN, FAILED, DICTIONARY, DICTIONARY_SIZE, NULLS = range(6, 13)

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


def list_leaves(schema: Any, arrow: pa.Schema, leaves: Sequence[int]) -> dict[str, ListLeaf]:
    """Return the columns among ``leaves`` that ``read_lists`` can read, by name.

    Args:
        schema, arrow: the schema of a file as Parquet and as Arrow have it.
        leaves: indices of leaves.
    """
    found = {}
    shared = {name.partition(".")[0] for name in arrow.names if "." in name}  # also of other columns
    for leaf in leaves:
        column = schema.column(leaf)
        name = column.path.partition(".")[0]
        if column.max_repetition_level != 1 or arrow.names.count(name) != 1 or name in shared:
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
    from cedar.operators.native import kernels

    leaves = {name: group.column(column.leaf) for name, column in columns.items()}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.compression in _CODECS and not leaf.file_path}
    try:
        compiled = kernels("cedar.datasets.parquet_lists.kernels", "find_pages", "decode_columns")
    except PipelineError:  # numba is damaged
        compiled = None
    if compiled is None or not leaves:
        return {}
    try:
        data, chunks = _read_chunks(path, list(leaves.values()))
    except (OSError, pa.ArrowException):  # Arrow says what is damaged
        return {}
    pages, counts = _find_pages(data, chunks, compiled.find_pages)
    pages = pages[: sum(count for count in counts if count > 0)]
    found: dict[str, pa.Array] = {}
    bodies: list[pa.Buffer] = []  # the memory that the pages point to
    lists: dict[str, tuple[int, int, int]] = {}  # by column: its first page, number of pages and number of entries
    first = size = 0
    for (name, leaf), count in zip(leaves.items(), counts, strict=True):
        if count < 0:
            continue
        with suppress(OSError, pa.ArrowException):
            own = pages[first : first + count]
            if leaf.compression == "UNCOMPRESSED":
                own[:, COMPRESSED] = 0
            elif leaf.compression == "ZSTD":  # the kernel decompresses Snappy
                bodies += _decompress(data, own)
            lists[name] = first, count, leaf.num_values
            size += leaf.total_uncompressed_size
        first += count
        if size >= RUN_BYTES:
            found |= _decode(data, pages, lists, columns, keep, compiled.decode_columns)
            bodies, lists, size = [], {}, 0
    return found | _decode(data, pages, lists, columns, keep, compiled.decode_columns)


@cache
def _has_compiler() -> bool:
    return find_spec("numba") is not None


def _read_chunks(path: str, leaves: Sequence[Any]) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    """Read columns into one buffer; return it, and what ``find_pages`` takes as ``chunks``."""
    chunks = np.empty((len(leaves), 4), np.int64)
    ranges: list[list[int]] = []  # where they begin and end in the file; neighbors are read at once
    end = 0
    for i, leaf in enumerate(leaves):
        start, size = leaf.data_page_offset, leaf.total_compressed_size
        if leaf.dictionary_page_offset:
            start = min(start, leaf.dictionary_page_offset)
        if ranges and ranges[-1][1] == start:
            ranges[-1][1] += size
        else:
            ranges.append([start, start + size])
        chunks[i] = end, end + size, leaf.num_values, leaf.total_uncompressed_size
        end += size
    data = pa.allocate_buffer(end + SLACK)
    view, done = memoryview(data).cast("B"), 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, stop in ranges:
            if os.preadv(file, [view[done : done + stop - start]], start) != stop - start:
                raise OSError("the file ends early")
            done += stop - start
    finally:
        os.close(file)
    return data, chunks


def _find_pages(
    data: pa.Buffer, chunks: npt.NDArray[np.int64], find: Callable[..., None]
) -> tuple[npt.NDArray[np.int64], list[int]]:
    counts, room = np.empty(len(chunks), np.int64), 8 * len(chunks)
    while True:
        pages = np.empty((room, 16), np.int64)
        find(np.frombuffer(data, np.uint8), chunks, pages, counts)
        needed = int(counts[counts > 0].sum())
        if needed <= room:
            return pages, counts.tolist()
        room = needed


def _decompress(data: pa.Buffer, pages: npt.NDArray[np.int64]) -> list[pa.Buffer]:
    """Decompress pages with Zstandard and change their rows; return the memory, which the caller holds.

    Raises:
        OSError, pa.ArrowException: a page is damaged.
    """
    codec, bodies = pa.Codec("zstd"), []
    for page in pages:
        address, stored, decoded = page[[ADDRESS, STORED, DECODED]].tolist()
        if page[COMPRESSED] and decoded:
            bodies.append(codec.decompress(data.slice(address - data.address, stored), decoded))
            page[[ADDRESS, STORED, COMPRESSED]] = bodies[-1].address, decoded, 0
    return bodies


def _decode(
    data: pa.Buffer, pages: npt.NDArray[np.int64], lists: Mapping[str, tuple[int, int, int]],
    columns: Mapping[str, ListLeaf], keep: Flags, decode: Callable[..., None],
) -> dict[str, pa.Array]:  # fmt: skip
    """Decode the rows that are kept, of several columns at once: each call of a kernel costs time that holds the GIL.

    Columns that Arrow must read are left out.

    Args:
        lists: the columns: where the pages of each begin in ``pages``, their number, and the number of entries.
    """
    kept, longest = int(np.count_nonzero(keep)), int(pages[:, ENTRIES].max(initial=0))
    values = [_empty(entries + 1, np.uint64) for _, _, entries in lists.values()]
    state = np.zeros((len(lists), 13), np.int64)
    for about, (name, (first, count, _)), memory in zip(state, lists.items(), values, strict=True):
        column = columns[name]
        about[: ROW + 1] = column.kind.bit_width // 8, column.empty, column.full, first, count, memory.ctypes.data, -1
    ends, missing = (_empty(len(lists) * (kept + 1), kind).reshape(-1, kept + 1) for kind in (np.int64, np.uint8))
    largest = int(pages[:, DECODED].max(initial=0)) + SLACK
    spare, levels = (_empty(2 * size, np.uint8).reshape(2, size) for size in (largest, longest))
    index = _empty(longest + 1, np.int32)
    decode(np.frombuffer(data, np.uint8), pages, state, spare, levels, index, keep, ends, missing)
    found = {}
    rows = zip(lists.items(), state.tolist(), values, ends, missing, strict=True)
    for (name, (_, _, entries)), (*_, row, _, written, failed, _, _, nulls), memory, stops, gone in rows:
        if failed or row != len(keep) - 1:
            continue
        used, kind = memory[:written], columns[name].kind
        if kind.bit_width == 32:
            used = used.astype(np.uint32)
        elif written < entries // 4:
            used = used.copy()  # do not hold the memory of all entries
        valid = from_flags(gone[1:] == 0).buffers()[1] if nulls else None
        items = pa.Array.from_buffers(kind, written, [None, pa.py_buffer(used)])
        parts = [valid, pa.py_buffer(stops)]
        found[name] = pa.Array.from_buffers(pa.large_list(kind), kept, parts, children=[items])
    return found


def _empty(count: int, kind: Any) -> npt.NDArray[Any]:
    """Return memory of Arrow's allocator, which is used again; new memory would cost page faults."""
    return np.frombuffer(pa.allocate_buffer(int(count) * np.dtype(kind).itemsize), kind)
