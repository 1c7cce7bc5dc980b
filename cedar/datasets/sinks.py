"""Sinks: where rows go. Parquet is streamed with bounded memory, and no file is seen before it is whole."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cedar.core.block import Block
from cedar.core.errors import CedarError, PipelineError, SourceError, missing_column, user_site
from cedar.core.redact import redact, redacted
from cedar.datasets.hive import folder_of
from cedar.datasets.storage import Storage
from cedar.datasets.to_arrow import arrow_batch, same_schema, to_arrow_table

__all__ = ["to_arrow_table", "write_parquet"]

_GROUP_BYTES = 64 << 20  # what a row group aims at
_GROUP_ROWS = 65_536  # and its most rows, unless asked for
_FILE_BYTES = 512 << 20  # a file that has grown so large is followed by another
_HELD_BYTES = 256 << 20  # what partitions may hold back to fill their row groups
_OPEN_FILES = 32


def write_parquet(
    blocks: Iterable[Block],
    url: str | os.PathLike[str],
    *,
    partition_by: str | Sequence[str] | None = None,
    row_group_rows: int | None = None,
    rows_per_file: int | None = None,
) -> list[str]:
    """Write blocks as Parquet files; returns their URLs.

    Args:
        blocks: of the same columns.
        url: a directory; or one file, where it ends in ``.parquet``.
        partition_by: columns that become folders (``date=2024-01-01/``) instead of columns of the files.
        row_group_rows: rows of a row group; by default about 64 MiB, 65,536 rows at most.
        rows_per_file: by default a new file begins after 512 MiB.

    Raises:
        PipelineError: there are data files already, a column of Python objects, a column to partition by that is
            not there.
        SourceError: a file cannot be written.

    Example:
        >>> import numpy as np, pyarrow as pa
        >>> from cedar.core.cursor import Keys
        >>> block = Block({"x": pa.array([1, 2])}, Keys(np.arange(2)))
        >>> [url.rpartition("/")[2] for url in write_parquet([block], "out")]
        ['part-00000.parquet']
    """
    names = [partition_by] if isinstance(partition_by, str) else list(partition_by or ())
    for what, value in (("row_group_rows", row_group_rows), ("rows_per_file", rows_per_file)):
        if value is not None and value < 1:
            raise PipelineError(f"write_parquet({what}={value}): at least 1", site=user_site())
    storage = Storage.at(url, ".parquet")
    if storage.single and names:
        raise PipelineError(
            f"write_parquet: partition_by={names} needs a directory, not the file {storage.shown!r}", site=user_site()
        )
    with storage, _Writers(storage, rows_per_file) as writers:
        groups = _row_groups(_batches(blocks), row_group_rows)
        for folder, table in _partitioned(groups, names) if names else (("", table) for table in groups):
            with _writing(storage):
                writers.write(folder, table)
    return storage.urls()


def _batches(blocks: Iterable[Block]) -> Iterator[Any]:
    schema = None
    for block in blocks:
        batch = arrow_batch(block)
        if schema is None:
            schema = batch.schema
            if not schema.names:
                raise PipelineError("write_parquet: there is no column to write")
            for field in schema:
                _check_storable(field.name, field.type)
        same_schema(schema, batch.schema)
        yield batch


def _check_storable(name: str, kind: pa.DataType) -> None:
    """Parquet has no type for some of Arrow's."""
    inner = [kind]
    while inner:
        each = inner.pop()
        if pa.types.is_interval(each) or (pa.types.is_struct(each) and not each.num_fields):
            what = "intervals" if pa.types.is_interval(each) else "structs without fields"
            raise PipelineError(
                f"write_parquet: column {name!r} is {kind}, and Parquet has no {what}",
                fix=f"map it to something else, or drop({name!r})",
            )
        inner += [each.field(i).type for i in range(each.num_fields)]


def _row_groups(batches: Iterator[Any], rows: int | None) -> Iterator[Any]:
    """Tables of exactly ``rows`` rows, the last one of fewer; one empty table where there are no rows."""
    held: list[Any] = []
    count = 0
    written = False
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if rows is None and count >= 64:
            rows = _group_rows(pa.Table.from_batches(held).slice(0, 64))
        while rows is not None and count >= rows:
            table = pa.Table.from_batches(held)
            yield table.slice(0, rows)
            written = True
            count -= rows
            held = table.slice(rows).to_batches()
    if count or (held and not written):
        yield pa.Table.from_batches(held)


def _group_rows(sample: Any) -> int:
    """A power of two of rows that take about 64 MiB, judged by the first 64."""
    wanted = _GROUP_BYTES / max(1.0, sample.nbytes / sample.num_rows)
    return int(min(_GROUP_ROWS, max(16, 1 << max(0, int(wanted).bit_length() - 1))))


# ---- partitions ----------------------------------------------------------------------------------------------------


def _partitioned(tables: Iterator[Any], names: list[str]) -> Iterator[tuple[str, Any]]:
    """Tables apart by folder; each is held back until it fills a row group or too much is held."""
    held: OrderedDict[str, list[Any]] = OrderedDict()
    sizes: dict[str, list[int]] = {}
    wanted = None
    for table in tables:
        wanted = table.num_rows if wanted is None else wanted
        for folder, part in _split_by(table, names):
            held.setdefault(folder, []).append(part)
            size = sizes.setdefault(folder, [0, 0])
            size[0] += part.num_rows
            size[1] += part.nbytes
            if size[0] >= wanted:
                del sizes[folder]
                yield folder, pa.concat_tables(held.pop(folder))
        while sum(s[1] for s in sizes.values()) > _HELD_BYTES:
            folder = max(sizes, key=lambda f: sizes[f][1])
            del sizes[folder]
            yield folder, pa.concat_tables(held.pop(folder))
    for folder, parts in held.items():
        yield folder, pa.concat_tables(parts)


def _split_by(table: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        _check_partition(table, name, names)
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for name in names:
        encoded = pc.dictionary_encode(table.column(name).combine_chunks(), null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        _, codes = np.unique(codes * len(encoded.dictionary) + encoded.indices.to_numpy(), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    table = table.take(pa.array(order))
    cuts = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), table.num_rows]
    columns = table.drop_columns(names)
    for start, stop in pairwise(cuts):
        if start < stop:
            values = [_text(table.column(name)[start].as_py()) for name in names]
            # The copy lets go of the other partitions' rows.
            yield folder_of(names, values), columns.slice(start, stop - start).take(pa.array(np.arange(stop - start)))


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _check_partition(table: Any, name: str, names: list[str]) -> None:
    if name not in table.column_names:
        raise missing_column(name, table.column_names, "write_parquet(partition_by=...)")
    kind = table.schema.field(name).type
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_large_binary(kind):
        raise PipelineError(
            f"write_parquet: cannot partition by {name!r} of type {kind}", fix="partition by whole numbers or strings"
        )
    if len(names) == table.num_columns:
        raise PipelineError("write_parquet: partition_by leaves no column to write")


# ---- files ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _writing(storage: Storage) -> Iterator[None]:
    try:
        yield
    except CedarError:
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        what = f"write_parquet: Parquet cannot hold a column as it is: {redact(str(error))}"
        raise PipelineError(what, fix="cast that column, or drop it") from redacted(error)
    except Exception as error:  # noqa: BLE001 - whatever a filesystem or an encoder throws
        cause = redacted(error)
        raise SourceError(
            f"cannot write to {storage.shown!r}: {redact(str(error))}", fix="check space and permissions"
        ) from cause


def _drop(stream: Any) -> None:
    getattr(stream, "drop", stream.close)()


@dataclass
class _Part:
    stream: Any
    writer: Any
    rows: int = 0

    def close(self) -> None:
        self.writer.close()
        self.stream.close()

    def drop(self) -> None:
        """Close what is not wanted any more; other storage gets nothing of it."""
        self.writer.close()
        _drop(self.stream)


@dataclass
class _Writers:
    """At most 32 open files, one per folder; the one not written to for longest is finished first."""

    storage: Storage
    rows_per_file: int | None
    _open: OrderedDict[str, _Part] = field(default_factory=OrderedDict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def write(self, folder: str, table: Any) -> None:
        start = 0
        while start < table.num_rows or not table.num_rows:
            part = self._part(folder, table.schema)
            room = table.num_rows if self.rows_per_file is None else self.rows_per_file - part.rows
            piece = table.slice(start, room)
            part.writer.write_table(piece, row_group_size=max(1, piece.num_rows))
            part.rows += piece.num_rows
            if part.rows == self.rows_per_file or (self.rows_per_file is None and part.stream.tell() >= _FILE_BYTES):
                self._open.pop(folder).close()
            start += piece.num_rows
            if not table.num_rows:
                break

    def _part(self, folder: str, schema: Any) -> _Part:
        if folder in self._open:
            self._open.move_to_end(folder)
            return self._open[folder]
        if len(self._open) >= _OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        number = self._numbers.get(folder, 0)
        self._numbers[folder] = number + 1
        stream = self.storage.create(f"{folder}/part-{number:05d}.parquet" if folder else f"part-{number:05d}.parquet")
        try:
            writer = pq.ParquetWriter(stream, schema, write_page_checksum=True)
        except BaseException:
            _drop(stream)
            raise
        self._open[folder] = _Part(stream, writer)
        return self._open[folder]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in self._open.values():
            if error is None:
                with _writing(self.storage):
                    part.close()
            else:
                with contextlib.suppress(Exception):  # the error that brought us here matters more
                    part.drop()
