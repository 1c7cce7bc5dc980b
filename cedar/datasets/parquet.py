"""Read Parquet files. Each row group is a split; footers are read once and cached."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from cedar.core.boundary import as_columns, canonical_type
from cedar.core.columns import Column, Index, TensorType, cut
from cedar.core.errors import PipelineError, SourceError, missing_column
from cedar.core.groups import take_each
from cedar.core.limits import MemoryReservation
from cedar.datasets.base import Chunk, Selects, Split, numbered_rows, once
from cedar.datasets.files_io import File, check_unchanged, open_stored, reading
from cedar.datasets.filesource import FileSource, Paths, as_flag, as_names, as_paths, as_types
from cedar.datasets.footers import Footers, ReadFooters
from cedar.datasets.hive import HiveColumn, hive_columns, satisfied
from cedar.datasets.listing import Listing, list_files
from cedar.datasets.manifest import SUFFIXES, Manifest, manifest_of
from cedar.datasets.parquet_lists.reader import RUN_BYTES, ListLeaf, are_read, list_leaves, read_lists
from cedar.datasets.parquet_schema import (
    Leaves,
    Types,
    check_microseconds,
    check_same,
    column_of,
    decoded_bytes,
    hive_bounds,
    is_int96,
    leaf_bounds,
    leaves_of,
    types_of,
)
from cedar.datasets.split_table import Numbers, SplitTable
from cedar.datasets.to_arrow import same_tensors, tensor_types, with_tensors
from cedar.datasets.truth import Bounds, Path, excludes

if TYPE_CHECKING:
    import polars as pl

_CHUNK_BYTES = 16 << 20  # bytes per chunk, so that the CPU caches hold a chunk between operators
_MIN_CHUNK_ROWS = 4096
_REPEAT_DISCOUNT = 8  # count repeating columns with 1/8 of their bytes, as operators process distinct rows
_MAX_SELECTIONS = 16  # maximum number of cached column selections


@dataclass(frozen=True)
class _Schema:
    """What a source reads of the files with one schema.

    Args:
        names: all columns of the files.
        types: the types of the columns to read.
        leaves: the indices of the leaf columns to read.
        int96: those of columns that contain INT96 timestamps.
        lists: the columns that ``read_lists`` can read.
        tensors: the columns that contain arrays.
    """

    names: list[str]
    types: Types
    leaves: list[int]
    int96: frozenset[int]
    lists: dict[str, ListLeaf]
    tensors: dict[str, TensorType]


@dataclass(frozen=True)
class _Delivered:
    """The columns that a source delivers.

    Args:
        names: in the requested order; by default, those of the first file, then the partition columns.
        types: the types of the stored, declared and partition columns.
        casts: the declared types of columns that some file lacks or stores as another type.
        tensors: the columns that contain arrays.
    """

    names: list[str]
    types: Types
    casts: Types
    tensors: dict[str, TensorType]


@dataclass(frozen=True, repr=False)
class ParquetSource(FileSource):
    """Parquet files with the same schema.

    Args:
        paths: files, globs, or directories; a directory is replaced by all Parquet files below it.
        columns: the columns to read; ``"a.b"`` names a field of a struct.
        verify: check page checksums if the files have them.
        manifest: path of a file with the listing and footers; see ``cedar.datasets.manifest``.
        repeating: columns in which most rows repeat other rows; operators process only the distinct rows.
        declared: types of columns and partition columns; a file may store a declared column as another type or lack it.
    """

    verify: bool = False
    repeating: frozenset[str] = frozenset()
    manifest: str | None = None
    declared: tuple[tuple[str, pa.DataType], ...] = ()
    reader: ClassVar[str] = "read_parquet"
    lenient: ClassVar[bool] = False  # whether a declared column may be missing in all files
    reads_columns_separately: ClassVar[bool] = True  # Parquet stores each column separately
    selects: ClassVar[Selects] = "fields"
    second_read_cost_bytes: ClassVar[int] = 512 << 10  # overhead of a second read of a split
    suffixes: ClassVar[tuple[str, ...] | None] = SUFFIXES

    @once
    def _manifest(self) -> Manifest:
        assert self.manifest is not None
        return manifest_of(self.paths, self.manifest, self.storage_options)

    @once
    def listing(self) -> Listing:
        if self.manifest is not None:
            return self._manifest.listing
        return list_files(self.paths, self.suffixes, self.storage_options)

    @once
    def _footers(self) -> Footers:
        if self.manifest is not None and self.listing == self._manifest.listing:
            return self._manifest.footers
        return ReadFooters(self.listing.files)

    @once
    def _hive(self) -> list[HiveColumn]:
        """Return the partition columns that the files do not contain as columns."""
        inside = set(self._footers[0].schema.to_arrow_schema().names)
        return [h for h in hive_columns(self.listing, dict(self.declared)) if h.name not in inside]

    @once
    def _schemas(self) -> list[_Schema]:
        """Return what to read of the files with each schema."""
        outside = {h.name for h in self._hive}
        wanted = None if self.columns is None else [c for c in self.columns if c not in outside]
        declared = dict(self.declared)
        arrow_only = self.verify or any(file.remote is not None for file in self.listing.files)
        found: list[_Schema] = []
        for number in self._footers.firsts:
            footer = self._footers[number]
            arrow = footer.schema.to_arrow_schema()
            present = None if wanted is None else [c for c in wanted if c in arrow.names or c not in declared]
            types, leaves = types_of(footer, self.listing[number], present)
            first = found[0].types if found else types
            one, other = ({n: t for n, t in each.items() if n not in declared} for each in (first, types))
            check_same(one, other, self.listing[0], self.listing[number], schema=True)
            with_int96 = {_column_name(footer, leaf) for leaf in leaves if is_int96(footer, leaf)}
            int96 = frozenset(leaf for leaf in leaves if with_int96 and _column_name(footer, leaf) in with_int96)
            lists = {} if arrow_only else list_leaves(footer.schema, arrow, leaves)
            found.append(_Schema(arrow.names, types, leaves, int96, lists, tensor_types(arrow, first)))
        return found

    @once
    def _delivered(self) -> _Delivered:
        """Return the columns that the source delivers."""
        tensors = same_tensors(schema.tensors for schema in self._schemas)
        partitions = {hive.name: hive.kind for hive in self._hive}
        casts: Types = {}
        for name, kind in self.declared:
            outside = name in partitions
            if not self.lenient and not outside and all(name not in schema.names for schema in self._schemas):
                raise missing_column(name, self._schemas[0].names, f"{self.describe()}: schema")
            if outside or name in tensors or (self.columns is not None and name not in self.columns):
                continue
            stored = [schema.types.get(name) for schema in self._schemas]
            for each in stored:
                if each not in (None, kind, pa.null()) and (pt.is_nested(kind) or pt.is_nested(each)):
                    raise PipelineError(
                        f"{self.describe()}: schema[{name!r}]: {each} cannot be read as {kind}",
                        fix=f"leave it out of schema=, and convert it with map(fn, {name!r}, dtype=...)",
                    )
            if any(each != kind for each in stored):
                casts[name] = kind
        types = self._schemas[0].types | casts | partitions
        names = types if self.columns is None else [column_of(path, types) for path in self.columns]
        return _Delivered(list(dict.fromkeys(names)), types, casts, tensors)

    def sound_splits(self) -> SplitTable:
        return self._splits

    @once
    def _splits(self) -> SplitTable:
        footers = self._footers
        rows, size = footers.rows, footers.sizes([schema.leaves for schema in self._schemas])
        file = np.repeat(np.arange(len(footers)), np.diff(footers.groups))
        before = np.cumsum(rows) - rows  # rows in all earlier row groups
        start = before - before[footers.groups[file]]
        part = np.arange(len(file)) - footers.groups[file]
        table = SplitTable(file=file, start=start, stop=start + rows, rows=rows, bytes=size, part=part)
        return table[rows > 0]

    row_keys = staticmethod(numbered_rows)

    def read(self, split: Split) -> Iterator[Chunk]:
        return self.read_rows(split, None)

    def reads_rows(self, split: Split) -> bool:
        columns = self._schemas[self._footers.kinds[split.file]].lists
        return bool(columns) and are_read(self._footers[split.file].row_group(split.part), columns)

    def read_rows(self, split: Split, wanted: Index | None) -> Iterator[Chunk]:
        """Yield the rows at the ascending positions ``wanted`` of a split; None reads all rows."""
        file, footer = self.listing[split.file], self._footers[split.file]
        group, schema = footer.row_group(split.part), self._schemas[self._footers.kinds[split.file]]
        rows = group.num_rows if wanted is None else len(wanted)
        leaves, types = schema.leaves, schema.types
        # Count only the leaves that this source reads; ``split.bytes`` may come from a source with more columns.
        sizes = dict(zip(leaves, decoded_bytes(group, leaves), strict=True))
        declared = sum(sizes.values())
        MemoryReservation.of_task(file.url, file.limits).take(declared, f"row group {split.part}, as it declares,")
        with reading(file.url, f"row group {split.part}"):
            if leaves:
                check_unchanged(file)
            columns = self._lists_read(split, wanted)
            done = {schema.lists[name].leaf for name in columns}
            others = {leaf: size for leaf, size in sizes.items() if leaf not in done}
            rest = _read_group(file, footer, split.part, others, self.verify, schema.int96)
            columns |= rest if wanted is None else take_each(rest, wanted)
            if leaves and file.remote is None:  # check that the file was not replaced while it was read
                check_unchanged(file)
            for name, column in columns.items():
                if len(column) != rows:
                    raise ValueError(f"column {name!r} has {len(column)} rows, its metadata says {rows}")
                if column.type != types.get(name):
                    raise ValueError(f"column {name!r} is {column.type}, its metadata says {types.get(name)}")
            columns = with_tensors(columns, self._delivered.tensors, file.url)
        for name, kind in self._delivered.casts.items():
            try:
                columns[name] = _cast(columns[name], kind) if name in columns else pa.nulls(rows, kind)
            except pa.ArrowException as error:
                raise SourceError(
                    f"{file.url}, row group {split.part}: column {name!r} of {types[name]} "
                    f"cannot be converted to {kind}: {error}",
                    fix="give a type in schema= that holds all values, or change the values with with_columns",
                ) from error
        for hive in self._hive:
            columns[hive.name] = hive.column(split.file, rows)
        operator_bytes: float = declared
        for leaf, size in sizes.items() if self.repeating else ():
            if _column_name(footer, leaf) in self.repeating:
                operator_bytes -= size * (1 - 1 / _REPEAT_DISCOUNT)
        step = max(_MIN_CHUNK_ROWS, int(_CHUNK_BYTES * group.num_rows / max(operator_bytes, 1)))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            part = columns if step >= rows else {name: cut(column, start, stop) for name, column in columns.items()}
            yield Chunk({name: part[name] for name in self._delivered.names}, length=stop - start)

    def _lists_read(self, split: Split, wanted: Index | None) -> dict[str, Column]:
        """Return the columns of lists that need not be read by Arrow."""
        if not self.reads_rows(split):
            return {}
        file, columns = self.listing[split.file], self._schemas[self._footers.kinds[split.file]].lists
        group = self._footers[split.file].row_group(split.part)
        keep = np.ones(group.num_rows, np.uint8)
        if wanted is not None:
            keep[:] = 0
            keep[wanted] = 1
        return dict(read_lists(file.path, group, columns, keep))

    def schema(self) -> Types:
        delivered = self._delivered
        return {name: delivered.tensors.get(name, delivered.types[name]) for name in delivered.names}

    def select(self, columns: Sequence[str]) -> Self:
        """Return a source over the same files with only ``columns``; it reuses the listing and the footers.

        If this source reads only some fields of a struct column, selecting that column selects only those fields.
        """
        _ = self._footers  # read footers before selections copy them, so that they are read once
        known: dict[tuple[str, ...], Self] = self.__dict__.setdefault("_selections", {})  # for repeated runs
        asked = tuple(columns)
        selection = known.get(asked)
        if selection is None:
            parts = [c for c in self.columns or () if c not in self._delivered.names]
            tops = {p: column_of(p, self._delivered.types) for p in parts}
            fields = ([p for p in parts if p.startswith(f"{c}.") and len(tops[p]) <= len(c)] or [c] for c in columns)
            selection = self.share_known(replace(self, columns=tuple(chain.from_iterable(fields))))
            if len(known) >= _MAX_SELECTIONS:
                known.clear()
            known[asked] = selection
        return selection

    def _tolerant(self, listing: Listing) -> Self:
        other = super()._tolerant(listing)
        if "_manifest" in self.__dict__:  # do not read it again for each file
            other.__dict__["_manifest"] = self._manifest
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_selections"}

    def with_repeating(self, names: frozenset[str]) -> ParquetSource:
        """Return a source with the same rows and ``names`` as repeating columns, whose chunks may be larger."""
        return self.share_known(replace(self, repeating=names))

    def prune(self, split: Split, predicate: pl.Expr) -> bool:
        """Return True if statistics in the footer prove that no row of the split satisfies the predicate."""
        if split.part < 0:  # its file is missing
            return False
        excluded = excludes(predicate, lambda path: self._bounds(split, path), self._delivered.types)
        file = self.listing[split.file]
        if excluded and split.start == 0 and file.remote is None:  # once per epoch, as pruned files are not opened
            with reading(file.url):
                check_unchanged(file)
        return excluded

    def count_matching_rows(self, splits: SplitTable, predicate: pl.Expr) -> Numbers | None:
        """Return how many rows of each split satisfy a predicate on partition columns, int64[splits]; else None."""
        columns = {hive.name: hive.of_files for hive in self._hive if hive.name in self._delivered.names}
        satisfying = satisfied(columns, predicate)
        return None if satisfying is None else splits.rows * satisfying[splits.column("file")]

    def _bounds(self, split: Split, path: Path) -> Bounds | None:
        group = self._footers[split.file].row_group(split.part)
        for hive in self._hive:
            if path == (hive.name,):
                return hive_bounds(hive, split.file, group.num_rows)
        leaf = self._leaves[self._footers.kinds[split.file]].get(path)
        return (
            None
            if leaf is None or path[0] in self._delivered.casts
            else leaf_bounds(group.column(leaf[0]), leaf[1], group.num_rows)
        )

    @once
    def _leaves(self) -> list[Leaves]:
        """Return for each schema the leaf columns that have one value per row."""
        return [leaves_of(self._footers[number]) for number in self._footers.firsts]

    @property
    def row_bytes(self) -> float | None:
        splits = self._splits
        return splits.known_bytes / splits.known_rows if splits.known_rows else None

    @once
    def _digest(self) -> str:
        rows, ends = self._footers.rows.tolist(), self._footers.groups.tolist()
        return self.listing.digest([rows[low:high] for low, high in pairwise(ends)])

    def digest(self) -> str:
        return self._digest


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    schema: Mapping[str, Any] | pa.Schema | None = None,
    verify: bool = False,
    manifest: str | os.PathLike[str] | None = None,
) -> ParquetSource:
    """Return the source that ``cedar.read_parquet`` uses."""
    chosen = as_names(columns, "columns", "read_parquet")
    where = None if manifest is None else os.fspath(manifest)
    types = as_types(schema, "schema", "read_parquet")
    flag = as_flag(verify, "verify", "read_parquet")
    return ParquetSource(as_paths(paths, "read_parquet"), flag, columns=chosen, manifest=where, declared=types)


def _read_group(
    file: File, footer: Any, part: int, sizes: dict[int, int], verify: bool, int96: frozenset[int]
) -> dict[str, Column]:
    """Read columns of a row group; ``sizes`` has the decoded bytes of their leaves."""
    if not sizes:
        return {}
    columns: dict[str, Column] = {}
    with ExitStack() as stack:
        # Opening a file with known metadata takes only 0.05 ms, so local files are not kept open.
        # From a path, pyarrow would first look for a file system and what is at the path.
        source = stack.enter_context(pa.OSFile(file.path) if file.remote is None else open_stored(file))

        for run in _runs(footer, sizes):
            for unit, chosen in ("us", run), ("ns", [leaf for leaf in run if leaf in int96]):
                if not chosen:
                    continue
                # ``pre_buffer`` saves requests to remote storage; for local files it would only use memory.
                opened = pq.ParquetFile(
                    source, metadata=footer, page_checksum_verification=verify, pre_buffer=file.remote is not None,
                    coerce_int96_timestamp_unit=unit,
                )  # fmt: skip
                with opened:
                    # Select by index, since a column "a.b" and the field b of a struct "a" have the same path.
                    table = opened.reader.read_row_group(part, column_indices=chosen, use_threads=False)
                table.validate()
                if strings := [i for i, field in enumerate(table.schema) if _has_strings(canonical_type(field.type))]:
                    table.select(strings).validate(full=True)
                decoded = as_columns(dict(zip(table.column_names, table.columns, strict=True)))
                if unit == "us":
                    columns |= decoded
                else:
                    for name, column in decoded.items():
                        check_microseconds(name, columns[name], column, file)
    return columns


def _runs(footer: Any, sizes: dict[int, int]) -> Iterator[list[int]]:
    """Group leaves to decode together; small groups save memory, as a decoder buffers pages of all its leaves."""
    if sum(sizes.values()) < RUN_BYTES:
        yield list(sizes)
        return
    run: list[int] = []
    size = 0
    for _, parts in groupby(sizes, key=partial(_column_name, footer)):
        column = list(parts)
        run += column
        size += sum(sizes[leaf] for leaf in column)
        if size >= RUN_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _cast(column: Column, kind: pa.DataType) -> Column:
    """Cast a column; also raise ArrowInvalid for numbers that are too large for a type of floats."""
    cast = column.cast(kind)
    if pt.is_floating(kind) and (infinite := np.isinf(cast.to_numpy(zero_copy_only=False))).any():
        if pt.is_floating(column.type):
            infinite &= ~np.isinf(column.to_numpy(zero_copy_only=False))
        elif pt.is_large_string(column.type):  # "inf" has no digits
            infinite &= [any(map(str.isdigit, text or "")) for text in column.to_pylist()]
        if infinite.any():
            raise pa.ArrowInvalid(f"{column[int(np.argmax(infinite))]} is too large")
    return cast


def _column_name(footer: Any, leaf: int) -> str:
    """Return the name of the column that a leaf belongs to."""
    return str(footer.schema.column(leaf).path).partition(".")[0]


@lru_cache(maxsize=1024)
def _has_strings(kind: pa.DataType) -> bool:
    """Return whether a type contains strings, whose UTF-8 must be validated."""
    if pa.types.is_struct(kind):
        return any(_has_strings(f.type) for f in kind)
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _has_strings(kind.value_type)
    return bool(pa.types.is_large_string(kind))
