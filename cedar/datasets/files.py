"""Read whole files: each row is a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.columns import Column, ColumnType, Index, from_strings
from cedar.datasets.base import Chunk, Split, selected
from cedar.datasets.files_io import File, open_stored, path_value, read_range, read_whole, reading
from cedar.datasets.filesource import FileSource, Paths, as_paths
from cedar.datasets.hive import satisfied
from cedar.datasets.split_table import Numbers, SplitTable

if TYPE_CHECKING:
    import polars as pl

_FILES = 32  # mean number of small files per split
_SPLIT_BYTES = 8 << 20  # of a split of several files: small so that shuffles mix many folders, but each split is a task
_CHUNK_BYTES = 64 << 20  # bytes read before a chunk is delivered
_TYPES: dict[str, ColumnType] = {"path": pa.large_string(), "bytes": pa.large_binary()}


@dataclass(frozen=True, repr=False)
class FilesSource(FileSource):
    """Whole files: their paths, and their bytes as stored (compressed files stay compressed)."""

    reader: ClassVar[str] = "read_files"
    reads_columns_separately: ClassVar[bool] = True  # paths are known without reading the contents
    second_read_cost_bytes: ClassVar[int] = 0  # a second pass over other columns has no overhead
    splits_join_files: ClassVar[bool] = True

    def sound_splits(self) -> SplitTable:
        sizes = np.array([file.size or 0 for file in self.listing], dtype=np.int64)
        files_per_split = np.clip(_SPLIT_BYTES // np.maximum(sizes, 1), 1, _FILES)
        ids = self.listing.ids
        begins_split = ids % files_per_split == 0  # depends only on the file, so new files do not move other splits
        begins_split[0] = True
        first = np.flatnonzero(begins_split)
        rows, named = np.diff(first, append=len(sizes)), first.copy()
        named[0] = np.argmin(ids[: rows[0]])  # a new file may become the first, so name the split after the smallest id
        return SplitTable(file=named, stop=rows, rows=rows, bytes=np.add.reduceat(sizes, first), part=first)

    def read(self, split: Split) -> Iterator[Chunk]:
        assert split.stop is not None
        for start, stop in self._portions(split.part, split.part + split.stop):
            files = self.listing.files[start:stop]
            columns = {name: _paths(files) if name == "path" else _contents(files) for name in self.schema()}
            rows = np.zeros(stop - start, dtype=np.int64)
            yield Chunk(columns, rows, stop - start, np.arange(start, stop, dtype=np.int64))

    def row_keys(self, split: Split) -> tuple[Index, Index]:
        """Return the file index and row index of each row; every file has the single row 0."""
        numbers = np.arange(split.part, split.part + (split.stop or 0), dtype=np.int64)
        return numbers, np.zeros(len(numbers), dtype=np.int64)

    def pieces(self, split: Split, first: int) -> list[Split]:
        """Return one split per file from row ``first`` on, so that an unreadable file affects only its own row."""
        return [Split(i, 0, 1, 1, part=i) for i in range(split.part + first, split.part + (split.stop or 0))]

    def _portions(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of files to read together; a range ends with the file at which its size reaches the limit."""
        size = 0
        for i in range(start, stop):
            size += self.listing[i].size or 0
            if size >= _CHUNK_BYTES:
                yield start, i + 1
                start, size = i + 1, 0
        if start < stop:
            yield start, stop

    def count_matching_rows(self, splits: SplitTable, predicate: pl.Expr) -> Numbers | None:
        """Return how many rows of each split satisfy the predicate, int64[splits]; None if it needs more than paths."""
        if self.tolerant:  # unreadable files count as rows, whatever their paths
            return None
        known = {"path": lambda: _paths(self.listing.files)} if "path" in self.schema() else {}
        satisfying = satisfied(known, predicate)
        if satisfying is None:
            return None
        before: Numbers = np.concatenate([[0], np.cumsum(satisfying)])
        first = splits.column("part")
        remaining_rows: Numbers = before[first + splits.column("stop")] - before[first]
        return remaining_rows

    def schema(self) -> dict[str, ColumnType]:
        return selected(_TYPES, self.columns, self.describe())

    def url(self, file: int) -> str:
        return self.describe()

    def url_of(self, file: int, row: int) -> str:
        return self.listing[file].url

    @cached_property
    def row_bytes(self) -> float | None:
        sizes = [file.size or 0 for file in self.listing]
        return sum(sizes) / len(sizes)


def _paths(files: Sequence[File]) -> Column:
    return from_strings([path_value(file) for file in files], pa.large_string())


def _contents(files: Sequence[File]) -> Column:
    """Read files one after another; local files are read into a single buffer."""
    offsets = np.zeros(len(files) + 1, dtype=np.int64)
    if all(file.remote is None and file.size is not None for file in files):
        np.cumsum([file.size or 0 for file in files], out=offsets[1:])
        data: Any = np.empty(int(offsets[-1]), dtype=np.uint8)
        view, at = memoryview(data), offsets.tolist()
        for i, file in enumerate(files):
            read_whole(file, view[at[i] : at[i + 1]])
    else:
        parts = [_content(file) for file in files]
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        data = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return pa.Array.from_buffers(pa.large_binary(), len(files), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _content(file: File) -> Any:
    if file.size is not None:
        return read_range(file, 0, file.size)
    with reading(file.url), open_stored(file) as stream:
        return np.frombuffer(stream.read(), dtype=np.uint8)


def read_files(paths: Paths) -> FilesSource:
    """Return the source that ``cedar.read_files`` uses."""
    return FilesSource(as_paths(paths, "read_files"))
