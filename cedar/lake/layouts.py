"""Choose how a Parquet file stores its columns, by the measured cost of reading its first rows.

For each column, cedar tries a few encodings and compressions on some thousand rows, and compares size and CPU time for
decoding. It only tries encodings and compressions that other Parquet readers support.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from cedar.core.printable import one_line
from cedar.core.process import Lock
from cedar.datasets.parquet_schema import column_of
from cedar.datasets.to_arrow import with_bytes
from cedar.store.cache import SECONDS_PER_BYTE

Layout: TypeAlias = "dict[str, list[str]]"  # column name -> [encoding, compression]

AIMS = ("fast", "small", "pyarrow")
PLAIN, DICTIONARY = "plain", "dictionary"
_BY_TYPE = {  # Parquet's physical type -> an encoding that may be better than plain
    "INT32": "DELTA_BINARY_PACKED", "INT64": "DELTA_BINARY_PACKED", "FLOAT": "BYTE_STREAM_SPLIT",
    "DOUBLE": "BYTE_STREAM_SPLIT", "BYTE_ARRAY": "DELTA_LENGTH_BYTE_ARRAY",
}  # fmt: skip
_SHORT_NAMES = {"DELTA_BINARY_PACKED": "delta", "BYTE_STREAM_SPLIT": "split", "DELTA_LENGTH_BYTE_ARRAY": "lengths"}
_LONG_NAMES = {reported: name for name, reported in _SHORT_NAMES.items()}
_COMPRESSIONS = ("none", "lz4", "zstd")
_ROWS, _BYTES = 8192, 4 << 20  # rows and bytes of a column to sample
_MIN_TIMED_ROWS = 1024  # minimum rows for a meaningful time measurement
_MAX_TRIAL_SECONDS = 3.0  # CPU seconds of trials; later columns reuse the layout of another column of their type
_ALL_COLUMNS = "all columns"
_TIMED_READS = 3  # number of reads, of which the fastest counts
_TOLERANCE = 1.1  # costs within this factor of the best count as equal; of these, the smallest file is chosen
SMALL = 1.1  # maximum size relative to zstd


class Layouts:
    """The layout of one job's files. It is chosen for the first rows and then stays the same. Thread-safe.

    Args:
        aim: "fast" minimizes the total time for CPU and reading; "small" minimizes CPU time among layouts at most 1.1
            times as large as with zstd; "pyarrow" uses pyarrow's defaults.
        place: "disk" or "url": the kind of storage that files are read from.
        known: the layout that an earlier run of the job chose.
        fields: the schema of the files so far, including nullability; None before the first rows.
    """

    def __init__(self, aim: str, place: str, known: Layout | None = None, fields: pa.Schema | None = None) -> None:
        self.aim, self._place, self.fields = aim, place, fields
        self.layout: Layout = known or {}
        self._lock = Lock()  # held during trials; a process may be forked meanwhile

    def options(self, table: pa.Table) -> dict[str, Any]:
        """Return the arguments of ``pyarrow.parquet.write_table`` for these rows."""
        if self.aim == "pyarrow":
            return {}
        with self._lock:
            end = time.thread_time() + _MAX_TRIAL_SECONDS
            alike = {table.schema.field(name).type: name for name in table.column_names if name in self.layout}
            for name in table.column_names:
                if name not in self.layout:
                    other = alike.get(kind := table.schema.field(name).type)
                    if other is not None and time.thread_time() > end:
                        self.layout[name] = list(self.layout[other])
                        continue
                    self.layout[name] = choose(table.select([name]), self.aim, self._place)
                    alike[kind] = name
        return options(table.schema, self.layout)

    def file_compression(self, choose: Callable[[pa.Table], str], table: pa.Table) -> str:
        """Return the compression for formats with one compression per file. It is chosen for the first rows."""
        with self._lock:
            if _ALL_COLUMNS not in self.layout:
                self.layout[_ALL_COLUMNS] = ["ipc", choose(table)]
            return self.layout[_ALL_COLUMNS][1]

    def with_job_schema(self, table: pa.Table) -> pa.Table:
        """Mark columns without nulls in these and earlier rows as non-nullable, and convert arrays to bytes."""
        if self.aim == "pyarrow":
            return table
        table = with_bytes(table)
        columns = [pa.chunked_array(map(_drop_hidden_nulls, column.chunks), column.type) for column in table.columns]
        table = pa.table(columns, table.schema)
        return table.cast(merge_nullability(tighten_nullability(table), self.fields))


def validated_layout(given: Any) -> Layout:
    """Validate a layout read from a file. Raise ValueError or TypeError if it is invalid."""
    for name, (encoding, compression) in dict(given).items():
        if not isinstance(name, str) or encoding not in (PLAIN, DICTIONARY, *_LONG_NAMES, "ipc"):
            raise ValueError("an invalid layout")
        if compression not in _COMPRESSIONS:
            raise ValueError("an invalid layout")
    return {name: list(pair) for name, pair in given.items()}


def describe(layout: Mapping[str, Sequence[str]]) -> str:
    """Describe a layout in words.

    Examples:
        >>> describe({"a": ["delta", "none"], "b": ["plain", "lz4"], "c": ["delta", "none"]})
        'delta: a, c; plain, lz4: b'
    """
    groups: dict[str, list[str]] = {}
    for name, (encoding, compression) in layout.items():
        how = encoding if compression == "none" else f"{encoding}, {compression}"
        groups.setdefault(how, []).append(one_line(name))
    return "; ".join(f"{how}: {_abbreviated(names)}" for how, names in groups.items())


def _abbreviated(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def layout_of(url: str) -> Layout:
    """Return the encoding and compression of a Parquet file's columns in its first row group."""
    import fsspec

    with fsspec.open(url) as file:
        metadata = pq.read_metadata(file)
    layout: Layout = {}
    names = set(metadata.schema.to_arrow_schema().names)
    for leaf in (metadata.row_group(0).column(i) for i in range(metadata.num_columns)) if metadata.num_rows else ():
        used = next((_SHORT_NAMES[name] for name in leaf.encodings if name in _SHORT_NAMES), PLAIN)
        used = DICTIONARY if leaf.has_dictionary_page else used
        codec = leaf.compression.lower()
        layout[column_of(leaf.path_in_schema, names)] = [used, "none" if codec == "uncompressed" else codec]
    return layout


# ---- the choice ------------------------------------------------------------------------------------------------------


def choose(column: pa.Table, aim: str, place: str) -> list[str]:
    """Choose the encoding and compression of a table's only column."""
    sample = column.slice(0, min(_ROWS, max(1, int(_BYTES * len(column) / max(column.nbytes, 1)))))
    name = sample.column_names[0]
    tried = [(how, file) for how in _candidates(sample.schema.field(0)) if (file := _encoded(sample, {name: how}))]
    if aim == "small":
        most = SMALL * min(file.size for how, file in tried if how[1] == "zstd")
        tried = [(how, file) for how, file in tried if file.size <= most]
    per_byte = SECONDS_PER_BYTE[place] if aim == "fast" else 0.0
    costs: list[tuple[float, int, list[str]]] = []
    for how, file in sorted(tried, key=lambda each: each[1].size):
        if costs and file.size * per_byte > _TOLERANCE * min(costs)[0]:
            break  # the remaining files are even larger
        seconds = _decoding_seconds(file) if len(sample) >= _MIN_TIMED_ROWS else 0.0
        costs.append((seconds + file.size * per_byte, file.size, how))
    best = min(cost for cost, _, _ in costs)
    return min((size, how) for cost, size, how in costs if cost <= _TOLERANCE * best)[1]


def _candidates(field: pa.Field) -> Iterator[list[str]]:
    kinds = {kind for _, kind in _leaves(field)}
    encodings = [PLAIN, *sorted({_SHORT_NAMES[_BY_TYPE[kind]] for kind in kinds if kind in _BY_TYPE})[:1]]
    encodings += [] if kinds == {"BOOLEAN"} else [DICTIONARY]
    for encoding in encodings:
        for compression in _COMPRESSIONS:
            yield [encoding, compression]


def _encoded(table: pa.Table, layout: Layout) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=max(1, len(table)), **options(table.schema, layout))
    return sink.getvalue()


def _decoding_seconds(file: pa.Buffer) -> float:
    """Return the CPU seconds that this thread needs to decode a file: the minimum of several runs."""
    best = float("inf")
    for _ in range(_TIMED_READS):
        with pq.ParquetFile(pa.BufferReader(file)) as opened:
            leaves = list(range(opened.metadata.num_columns))
            start = time.thread_time()
            opened.reader.read_row_group(0, column_indices=leaves, use_threads=False)
            best = min(best, time.thread_time() - start)
    return best


# ---- options for pyarrow --------------------------------------------------------------------------------------------


def options(schema: pa.Schema, layout: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the arguments of ``write_table`` for a layout of these columns."""
    compressions, encodings, dictionaries = {}, {}, []
    for field in schema:
        encoding, compression = layout[field.name]
        for path, kind in _leaves(field):
            compressions[path] = compression
            if encoding == DICTIONARY:
                dictionaries.append(path)
            else:
                encodings[path] = _BY_TYPE.get(kind, "PLAIN") if encoding != PLAIN else "PLAIN"
    return {"compression": compressions, "use_dictionary": dictionaries, "column_encoding": encodings}


@lru_cache(maxsize=4096)
def _leaves(field: pa.Field) -> tuple[tuple[str, str], ...]:
    """Return the path and physical type of a column's Parquet leaves."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.schema([field]).empty_table(), sink)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return tuple((leaves.column(i).path, leaves.column(i).physical_type) for i in range(len(leaves)))


# ---- nullability -----------------------------------------------------------------------------------------------------


def tighten_nullability(table: pa.Table) -> pa.Schema:
    """Return a table's schema with columns and list items marked as non-nullable if they have no nulls."""
    if not table.num_rows:
        return nullable_schema(table.schema)
    return pa.schema(
        [_tighten_field(table.schema.field(name), table.column(name).chunks) for name in table.column_names]
    )


def _tighten_field(field: pa.Field, arrays: Iterable[pa.Array]) -> pa.Field:
    """Mark a field as non-nullable if possible. Fields inside structs stay nullable, since a null struct hides them."""
    arrays = list(arrays)
    kind = field.type
    if pt.is_large_list(kind):
        kind = pa.large_list(_tighten_field(kind.value_field, [array.flatten() for array in arrays]))
    nullable = pt.is_null(kind) or any(array.null_count for array in arrays)  # Parquet's null type must be nullable
    return field.with_type(kind).with_nullable(nullable)


def _drop_hidden_nulls(array: pa.Array) -> pa.Array:
    """Remove null items that belong to no list, which the Parquet writer would count."""
    return array.take(pa.array(range(len(array)), pa.int64())) if _hides_nulls(array) else array


def _hides_nulls(array: pa.Array) -> bool:
    if not pt.is_large_list(array.type):
        return False
    items = array.flatten()
    return array.values.null_count > items.null_count or _hides_nulls(items)


def merge_nullability(schema: pa.Schema, other: pa.Schema | None) -> pa.Schema:
    """Return a schema with columns nullable if they are in either schema. ``other`` may lack partition columns."""
    if other is None or schema.equals(other):
        return schema
    known = set(other.names)
    return pa.schema(
        [_merge_field(field, other.field(field.name)) if field.name in known else field for field in schema]
    )


def _merge_field(field: pa.Field, other: pa.Field) -> pa.Field:
    kind = field.type
    if pt.is_large_list(kind):
        kind = pa.large_list(_merge_field(kind.value_field, other.type.value_field))
    return field.with_type(kind).with_nullable(field.nullable or other.nullable)


def nullable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns and list items nullable."""
    return pa.schema([field.with_type(_nullable_type(field.type)).with_nullable(True) for field in schema])


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    return pa.large_list(_nullable_type(kind.value_type)) if pt.is_large_list(kind) else kind
