"""Parquet footers of many files; values that are needed for all files are stored in arrays."""

from __future__ import annotations

import io
import struct
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.columns import Index
from cedar.datasets.files_io import File, check_unchanged, concurrently, open_stored, reading
from cedar.datasets.parquet_footer import BadFooter, metadata_of, read_tail
from cedar.datasets.parquet_schema import decoded_bytes
from cedar.datasets.to_arrow import declared_tensors

_CODEC = "zstd"
_LENGTH = struct.Struct("<Q")
_CACHED_FOOTERS = 256  # maximum number of parsed footers in the cache
_ARROW = b"ARROW:schema"  # the metadata key under which Arrow stores its own schema


class FileSchema:
    """A file's Parquet schema and Arrow schema; only the latter has time zones, durations and arrays."""

    def __init__(self, footer: Any) -> None:
        self.parquet = footer.schema
        self._arrow_metadata = (footer.metadata or {}).get(_ARROW)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return self.parquet.to_arrow_schema().remove_metadata()  # without pandas metadata, which differs between files

    def same(self, other: FileSchema) -> bool:
        """Return whether two files have the same columns, so that they can share what is derived from the schema."""
        if not self.parquet.equals(other.parquet):
            return False
        if self._arrow_metadata == other._arrow_metadata or self._arrow.equals(other._arrow, check_metadata=True):
            return True
        return bool(self._arrow.equals(other._arrow)) and declared_tensors(self._arrow) == declared_tensors(
            other._arrow
        )


class Footers(Sequence[Any]):
    """The ``FileMetaData`` of files, in order.

    Args:
        files: the files of a listing.
        kinds: for each file, the index of its schema among the distinct schemas, in order of first appearance.
        groups: the index of each file's first row group among all row groups, and their total number; int64[files + 1].
        rows: the row count of each row group.
    """

    def __init__(self, files: Sequence[File], kinds: Index, groups: Index, rows: Index) -> None:
        self.files, self.kinds, self.groups, self.rows = files, kinds, groups, rows
        self.firsts: list[int] = np.unique(kinds, return_index=True)[1].tolist()  # the first file of each schema

    @abstractmethod
    def sizes(self, leaves: Sequence[Sequence[int]]) -> Index:
        """Estimate the decoded bytes of leaf columns in each row group; ``leaves`` has leaf indices for each schema."""

    def __len__(self) -> int:
        return len(self.files)


class ReadFooters(Footers):
    """Footers read from the files and kept in memory."""

    def __init__(self, files: Sequence[File]) -> None:
        self._footers = concurrently(read_footer, files)
        rows = [[f.row_group(i).num_rows for i in range(f.num_row_groups)] for f in self._footers]
        groups = np.cumsum([0, *map(len, rows)])
        schemas: list[FileSchema] = []
        kinds = np.array([kind_of(*each, schemas) for each in zip(self._footers, files, strict=True)], dtype=np.int64)
        super().__init__(files, kinds, groups, np.array([n for each in rows for n in each], dtype=np.int64))

    def __getitem__(self, file: Any) -> Any:
        return self._footers[file]

    def sizes(self, leaves: Sequence[Sequence[int]]) -> Index:
        sizes = []
        for file, (footer, kind) in enumerate(zip(self._footers, self.kinds.tolist(), strict=True)):
            with reading(self.files[file].url, "footer"):
                groups = map(footer.row_group, range(footer.num_row_groups))
                sizes += [sum(decoded_bytes(group, leaves[kind])) for group in groups]
        return np.array(sizes, dtype=np.int64)


class KeptFooters(Footers):
    """Footers stored in a manifest and parsed on demand. When unpickled, they are read from the files instead.

    Args:
        sizes: estimated bytes of each leaf column of each row group, ordered by file, row group and leaf.
        ends: the index at which each file's part of ``sizes`` begins, and the total; int64[files + 1].
        packed: the compressed footers, as ``pack_footer`` returns them.
        where: the manifest's path, for messages.
    """

    def __init__(
        self,
        files: Sequence[File],
        kinds: Index,
        groups: Index,
        rows: Index,
        sizes: Index,
        ends: Index,
        packed: Any,
        where: str,
    ) -> None:
        super().__init__(files, kinds, groups, rows)
        self._packed, self._where = packed, where
        self._parsed = lru_cache(_CACHED_FOOTERS)(self._parse)
        self._schemas = [FileSchema(self._unpacked(first)) for first in self.firsts]
        self._sizes, self._sizes_at = sizes, ends
        leaves = np.array([len(schema.parquet) for schema in self._schemas], dtype=np.int64)
        if (np.diff(ends) != leaves[kinds] * np.diff(groups)).any():
            raise BadFooter("it lacks the sizes of some columns")

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_parsed", "_packed", "_sizes", "_schemas")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_packed": None, "_sizes": None, "_schemas": None}
        self._parsed = lru_cache(_CACHED_FOOTERS)(self._parse)

    def __getitem__(self, file: Any) -> Any:
        return self._parsed(range(len(self))[file])

    def _parse(self, file: int) -> Any:
        if self._packed is None:
            return read_footer(self.files[file])
        with reading(self._where, f"the footer of {self.files[file].url}"):
            footer = self._unpacked(file)
            rows = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            same = rows == self.rows[self.groups[file] : self.groups[file + 1]].tolist()
            if not same or not FileSchema(footer).same(self._schemas[self.kinds[file]]):
                raise BadFooter("it differs from the manifest; rebuild the manifest: cedar data manifest")
            return footer

    def _unpacked(self, file: int) -> Any:
        """Decompress and parse a footer, which must not exceed the file's size or the limit on decompression."""
        data, listed = self._packed[file].as_py(), self.files[file]
        if len(data) < _LENGTH.size:
            raise BadFooter("it is cut off")
        (length,) = _LENGTH.unpack_from(data)
        if length > len(data) * listed.limits.decompression_ratio or (listed.size is not None and length > listed.size):
            raise BadFooter(f"it says it has {length:,} bytes")
        try:
            tail = pa.decompress(data[_LENGTH.size :], decompressed_size=length, codec=_CODEC, asbytes=True)
        except (pa.ArrowException, OSError) as error:
            raise BadFooter(f"it is damaged: {error}") from error
        return metadata_of(tail)

    def sizes(self, leaves: Sequence[Sequence[int]]) -> Index:
        if self._sizes is None:
            return ReadFooters(self.files).sizes(leaves)
        file = np.repeat(np.arange(len(self)), np.diff(self.groups))
        kinds = self.kinds[file]
        part = np.arange(len(file)) - self.groups[file]
        sizes = np.zeros(len(file), dtype=np.int64)
        for kind, chosen in enumerate(leaves):
            mine = np.flatnonzero(kinds == kind)
            first = self._sizes_at[file[mine]] + part[mine] * len(self._schemas[kind].parquet)
            for leaf in chosen:
                sizes[mine] += self._sizes[first + leaf]
        return sizes


def kind_of(footer: Any, file: File, known: list[FileSchema]) -> int:
    """Return the index of a file's schema in the list ``known``; append the schema if it is new."""
    schema = FileSchema(footer)
    with reading(file.url, "footer"):
        for kind, other in enumerate(known):
            if schema.same(other):
                return kind
    known.append(schema)
    return len(known) - 1


def read_footer(file: File) -> Any:
    """Return the ``FileMetaData`` of a file."""
    with reading(file.url, "footer"):
        return metadata_of(_tail(file))


def _tail(file: File) -> bytes:
    check_unchanged(file)
    with open_stored(file) as stream:
        return read_tail(stream, file.size if file.size is not None else stream.seek(0, io.SEEK_END))


def pack_footer(file: File) -> tuple[Any, Index, Index, bytes]:
    """Return a footer, the row counts of its row groups, the bytes of their leaf columns, and the compressed footer."""
    with reading(file.url, "footer"):
        tail = _tail(file)
        footer = metadata_of(tail)
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        sizes = [size for group in groups for size in decoded_bytes(group, range(group.num_columns))]
        small = _LENGTH.pack(len(tail)) + pa.compress(tail, codec=_CODEC, asbytes=True)
        rows = [group.num_rows for group in groups]
        return footer, np.array(rows, dtype=np.int64), np.array(sizes, dtype=np.int64), small
