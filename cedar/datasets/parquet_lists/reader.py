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
_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd"}
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3

# Items of a row about a page: where its bytes begin after its header, fields of its header, and where its decompressed
# bytes are in memory.
PLACE, KIND, DECODED, STORED, ENTRIES, ENCODING, DEFINITION_ENCODING, REPETITION_ENCODING = range(8)
ENTRIES_V2, ENCODING_V2, DEFINITION_BYTES_V2, REPETITION_BYTES_V2, COMPRESSED_V2, ADDRESS = 8, 11, 12, 13, 14, 15
# Items of an array about a column; the kernel updates all but the first three.
WIDTH, EMPTY, FULL, ROW, KEPT, WRITTEN, FAILED, DICTIONARY, DICTIONARY_SIZE, NULLS = range(10)

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
        compiled = kernels("cedar.datasets.parquet_lists.kernels", "find_pages", "decode_column")
    except PipelineError:  # numba is damaged
        compiled = None
    found: dict[str, pa.Array] = {}
    if compiled is None or not leaves:
        return found
    try:
        data, chunks = _read_chunks(path, list(leaves.values()))
    except (OSError, pa.ArrowException):  # Arrow says what is damaged
        return found
    pages, counts = _find_pages(data, chunks, compiled.find_pages)
    pages = pages[: sum(count for count in counts if count > 0)]
    scratch, done = _Scratch.of(keep, int(pages[:, ENTRIES].max(initial=0))), 0
    for (name, leaf), count in zip(leaves.items(), counts, strict=True):
        if count >= 0:
            with suppress(OSError, pa.ArrowException):
                rows, done = pages[done : done + count], done + count
                bodies = _decompress(data, rows, _CODECS[leaf.compression])  # holds the memory that the rows point to
                column = _decode(data, rows, leaf.num_values, columns[name], scratch, compiled.decode_column)
                del bodies
                if column is not None:
                    found[name] = column
    return found


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
    data = pa.allocate_buffer(end)
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


def _decompress(data: pa.Buffer, pages: npt.NDArray[np.int64], name: str | None) -> list[pa.Buffer]:
    """Decompress pages and set their ``ADDRESS`` and ``DECODED``; return the memory, which the caller holds.

    Raises:
        OSError, pa.ArrowException: a page is damaged.
    """
    codec, bodies = None if name is None else pa.Codec(name), []
    for page, (place, kind, decoded, stored, *more) in zip(pages, pages[:, :ADDRESS].tolist(), strict=True):
        compressed = True
        if kind == DATA_PAGE_V2:  # its levels are not compressed
            *_, definition, repetition, compressed = more
            levels = definition + repetition
            place, stored, decoded = place + levels, stored - levels, decoded - levels
        if codec is None or not compressed or not decoded:
            if stored != decoded and decoded:
                raise pa.ArrowInvalid("the size of a page is wrong")
            page[ADDRESS] = data.address + place
        else:
            body = codec.decompress(data.slice(place, stored), decoded)
            bodies.append(body)
            page[ADDRESS] = body.address
        page[DECODED] = decoded
    return bodies


@dataclass(frozen=True)
class _Scratch:
    """Memory that the decoding of all columns of a row group uses, one after the other.

    Args:
        keep: for each row, 1 if it is wanted, else 0; ``kept`` of them are.
        levels, index, missing: see ``kernels.decode_column``.
    """

    keep: Flags
    kept: int
    levels: Flags
    index: npt.NDArray[np.int32]
    missing: Flags

    @classmethod
    def of(cls, keep: Flags, entries: int) -> _Scratch:
        kept, levels = int(np.count_nonzero(keep)), _empty(2 * entries, np.uint8).reshape(2, entries)
        return cls(keep, kept, levels, _empty(entries + 1, np.int32), np.zeros(kept + 1, np.uint8))


def _decode(
    data: pa.Buffer, pages: npt.NDArray[np.int64], entries: int, column: ListLeaf, scratch: _Scratch,
    decode: Callable[..., None],
) -> pa.Array | None:  # fmt: skip
    """Decode the rows of a column that are kept; return None if Arrow must read it."""
    width, kept, missing = column.kind.bit_width // 8, scratch.kept, scratch.missing
    values, ends = _empty(entries + 1, np.uint64), _empty(kept + 1, np.int64)
    ends[0] = 0
    state = np.array([width, column.empty, column.full, -1, 0, 0, 0, 0, 0, 0])
    memory = scratch.levels, scratch.index, scratch.keep, values, ends, missing
    decode(np.frombuffer(data, np.uint8), pages, state, *memory)
    _, _, _, row, _, written, failed, *_, nulls = state.tolist()
    valid = None
    if nulls:
        valid = from_flags(missing[1:] == 0).buffers()[1]
        missing[:] = 0
    if failed or row != len(scratch.keep) - 1:
        return None
    used = values[:written]
    if width == 4:
        used = used.astype(np.uint32)
    elif written < entries // 4:
        used = used.copy()  # do not hold the memory of all entries
    items = pa.Array.from_buffers(column.kind, written, [None, pa.py_buffer(used)])
    return pa.Array.from_buffers(pa.large_list(column.kind), kept, [valid, pa.py_buffer(ends)], children=[items])


def _empty(count: int, kind: Any) -> npt.NDArray[Any]:
    """Return memory of Arrow's allocator, which is used again; new memory would cost page faults."""
    return np.frombuffer(pa.allocate_buffer(int(count) * np.dtype(kind).itemsize), kind)
