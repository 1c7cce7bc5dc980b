"""Read Arrow IPC files, which include Feather version 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from cedar.core.boundary import canonical_types, checked_column
from cedar.core.columns import Column, TensorType
from cedar.core.errors import SourceError
from cedar.core.limits import MemoryReservation
from cedar.datasets.base import Chunk, Split, numbered_rows, once, selected
from cedar.datasets.files_io import (
    File,
    check_unchanged,
    compression_of,
    concurrently,
    open_file,
    open_local,
    open_stored,
    reading,
)
from cedar.datasets.filesource import FileSource, Paths, as_names, as_paths
from cedar.datasets.parquet_schema import Types, check_same
from cedar.datasets.to_arrow import same_tensors, tensor_types, with_tensors

_ROWS = 65_536  # maximum rows of a split that holds more than one record batch


@dataclass(frozen=True)
class Footer:
    """An IPC file's metadata. ``batches`` is each record batch's row count; None for streams, which lack footers."""

    types: Types
    tensors: dict[str, TensorType]
    batches: tuple[int, ...] | None


@dataclass(frozen=True, repr=False)
class ArrowSource(FileSource):
    """IPC files with the same schema. A split is a run of record batches with at most 65,536 rows in total."""

    reader: ClassVar[str] = "read_arrow"
    second_read_cost_bytes: ClassVar[int] = 512 << 10  # overhead of a second read of a split
    suffixes: ClassVar[tuple[str, ...] | None] = (".arrow", ".feather", ".ipc")

    @once
    def _footers(self) -> list[Footer]:
        footers = concurrently(_read_footer, self.listing.files)
        for file, footer in zip(self.listing, footers, strict=True):
            check_same(footers[0].types, footer.types, self.listing[0], file)
        return footers

    def sound_splits(self) -> list[Split]:
        splits = []
        for ordinal, (file, footer) in enumerate(zip(self.listing, self._footers, strict=True)):
            if footer.batches is None:
                splits.append(Split(ordinal, bytes=file.size, streaming=True))
                continue
            share = (file.size or 0) / max(1, sum(footer.batches))
            for first, start, rows in _runs(footer.batches):
                splits.append(Split(ordinal, start, start + rows, rows, int(share * rows), first))
        return splits

    row_keys = staticmethod(numbered_rows)

    def read(self, split: Split) -> Iterator[Chunk]:
        file = self.listing[split.file]
        names = list(self.schema())
        batches = self._stream(file) if split.streaming else self._random(file, split)
        while True:
            with reading(file.url, f"record batch {split.part}"):
                batch = next(batches, None)
                if batch is None:
                    return
                chunk = _checked(batch, names, self._tensors, file.url)
                reservation = MemoryReservation.of_task(file.url, file.limits)
                reservation.take(batch.nbytes, f"a record batch of {batch.num_rows:,} rows")
            yield chunk
            reservation.give(batch.nbytes)

    def _random(self, file: File, split: Split) -> Iterator[Any]:
        check_unchanged(file)
        with ExitStack() as stack:
            opened = pa.ipc.open_file(stack.enter_context(_open(file)), options=self._options(file))
            row, part = split.start, split.part
            while split.stop is not None and row < split.stop:
                batch = opened.get_batch(part)
                row, part = row + batch.num_rows, part + 1
                yield batch

    def _stream(self, file: File) -> Iterator[Any]:
        with open_file(file) as stream:
            yield from pa.ipc.open_stream(stream, options=self._options(file))
        check_unchanged(file)

    def _options(self, file: File) -> Any:
        names = list(self._footers[self.listing.files.index(file)].types)
        wanted = sorted(names.index(n) for n in self.schema())
        return pa.ipc.IpcReadOptions(use_threads=False, included_fields=wanted)

    @once
    def _tensors(self) -> dict[str, TensorType]:
        return same_tensors(footer.tensors for footer in self._footers)

    def schema(self) -> Types:
        return selected(self._footers[0].types | self._tensors, self.columns, self.describe())

    @property
    def reads_columns_separately(self) -> bool:
        """Return whether columns can be read in separate passes; streams can only be read from the beginning."""
        return all(footer.batches is not None for footer in self._footers)

    def digest(self) -> str:
        return self.listing.digest([f.batches for f in self._footers])


def _open(file: File) -> Any:
    # Do not memory-map the file: the process would crash if another process truncated the file during reading.
    return open_local(file) if file.remote is None else open_stored(file)


def _read_footer(file: File) -> Footer:
    with reading(file.url, "schema"):
        if compression_of(file) is not None:
            return _stream_footer(file)
        check_unchanged(file)
        with _open(file) as stream:
            magic = stream.read(6)
            if magic == b"ARROW1":
                stream.seek(0)
                return _file_footer(file, stream)
        if magic[:4] == b"FEA1":
            raise SourceError(
                f"{file.url}: Feather version 1 is not supported", fix="write it again with pyarrow.feather"
            )
        if magic[:4] != b"\xff\xff\xff\xff":
            raise SourceError(f"{file.url}: is not an Arrow IPC file", fix="check the path, or use another reader")
        return _stream_footer(file)


def _file_footer(file: File, stream: Any) -> Footer:
    opened = pa.ipc.open_file(stream)
    types, tensors = _types(opened.schema, file)
    narrow = min(range(len(types)), key=lambda i: _width(opened.schema.field(i).type), default=None)
    if narrow is not None:
        stream.seek(0)  # count rows by decoding only the narrowest column
        opened = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(use_threads=False, included_fields=[narrow]))
    return Footer(types, tensors, tuple(opened.get_batch(i).num_rows for i in range(opened.num_record_batches)))


def _stream_footer(file: File) -> Footer:
    with open_file(file) as stream, pa.ipc.open_stream(stream) as opened:
        return Footer(*_types(opened.schema, file), None)


def _types(schema: Any, file: File) -> tuple[Types, dict[str, TensorType]]:
    types = canonical_types(schema, file.url, SourceError)
    return types, tensor_types(schema, types)


def _width(kind: pa.DataType) -> int:
    try:
        return int(kind.bit_width)
    except ValueError:
        return 1 << 20


def _runs(batches: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (first batch, first row, rows) for runs of batches with at most 65,536 rows, or a single larger batch."""
    start = rows = first = 0
    for i, count in enumerate(batches):
        if rows and rows + count > _ROWS:
            yield first, start, rows
            start, rows = start + rows, 0
        if rows == 0:
            first = i
        rows += count
    if rows:
        yield first, start, rows


def _checked(batch: Any, names: Sequence[str], tensors: dict[str, TensorType], where: str) -> Chunk:
    columns: dict[str, Column] = {}
    for name in names:
        columns[name] = column = checked_column(batch.column(name))
        if len(column) != batch.num_rows:
            raise ValueError(f"column {name!r} has {len(column)} rows, its record batch says {batch.num_rows}")
    return Chunk(with_tensors(columns, tensors, where), length=batch.num_rows)


def read_arrow(paths: Paths, *, columns: Sequence[str] | None = None) -> ArrowSource:
    """Return the source that ``cedar.read_arrow`` uses."""
    return ArrowSource(as_paths(paths, "read_arrow"), columns=as_names(columns, "columns", "read_arrow"))
