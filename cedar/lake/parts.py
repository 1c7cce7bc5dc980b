"""The files that a writer has in progress, one per folder, and the splitting of rows into partition folders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cedar.core.errors import PipelineError, missing_column
from cedar.datasets.hive import folder_of
from cedar.datasets.storage import AppendedFile, Storage, writing
from cedar.datasets.sums import SUFFIX
from cedar.lake.formats import Assembly, Format

_FOLDERS = (pt.is_integer, pt.is_boolean, pt.is_string, pt.is_large_string, pt.is_date32, pt.is_null)
FILE_BYTES = 512 << 20  # bytes after which a new file begins
_FIX_RERUN = "free space, or check the storage and its permissions; then rerun: completed files are kept"


@dataclass(frozen=True)
class Part:
    """A complete file.

    Args:
        name: path below the destination folder.
        rows: number of rows.
        bytes: size of the file.
        temporary: name in the same folder until the file is renamed.
    """

    name: str
    rows: int
    bytes: int
    temporary: str


@dataclass
class _Open:
    name: str
    file: AppendedFile
    assembly: Assembly
    rows: int = 0


@dataclass
class PartFiles:
    """Assembles files from encoded pieces.

    Args:
        name: returns the name of a file for its number.
        rows_per_file: maximum rows; None limits files by size.
        number: the number of the next file.
    """

    storage: Storage
    format: Format
    name: Callable[[int], str]
    rows_per_file: int | None = None
    number: int = 0
    done: list[Part] = field(default_factory=list)  # since the last call of ``take_done``
    _open: dict[str, _Open] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Return the bytes of all files since the last call of ``take_done``."""
        open_ = sum(part.file.size + part.assembly.pending_bytes for part in self._open.values())
        return sum(part.bytes for part in self.done) + open_

    @property
    def rows(self) -> int:
        """Return the rows of the files in progress."""
        return sum(part.rows for part in self._open.values())

    @property
    def has_open_files(self) -> bool:
        """Return whether any file is in progress."""
        return bool(self._open)

    def add(self, folder: str, rows: int, piece: Any) -> None:
        """Append a piece to a folder's file; start a new file after a full one.

        Raises:
            SourceError: the file cannot be written.
        """
        most = self.rows_per_file
        part = self._open.get(folder)
        if part is not None and most is not None and part.rows + rows > most:
            self._end(folder)
            part = None
        if part is None:
            part = self._open[folder] = self._begin(folder)
        with self._writing(part.name):
            part.assembly.add(piece)
            part.file.flush()
        part.rows += rows
        full = part.file.size >= FILE_BYTES or part.assembly.full
        if full or (most is not None and part.rows >= most):
            self._end(folder)

    def _begin(self, folder: str) -> _Open:
        name = self.name(self.number)
        name = f"{folder}/{name}" if folder else name
        self.number += 1
        with self._writing(name):
            file = self.storage.create(name)
            return _Open(name, file, self.format.assembly(file.write))

    def _end(self, folder: str) -> None:
        part = self._open[folder]
        with self._writing(part.name):
            part.assembly.end()
            part.file.end()
            if part.assembly.sums:  # listed and renamed first, so that readers of the file always find them
                self._write_checksums(part.name + SUFFIX, part.assembly.sums)
        del self._open[folder]
        self.done.append(Part(part.name, part.rows, part.file.size, part.file.path.rpartition("/")[2]))

    def _write_checksums(self, name: str, content: Any) -> None:
        file = self.storage.create(name)
        file.write(content)
        file.end()
        self.done.append(Part(name, 0, file.size, file.path.rpartition("/")[2]))

    def end(self) -> None:
        """Finish all files."""
        for folder in list(self._open):
            self._end(folder)

    def take_done(self) -> list[Part]:
        """Return the files completed since the last call."""
        done, self.done = self.done, []
        return done

    def drop(self) -> None:
        """Delete all files that ``take_done`` has not returned."""
        for open_ in self._open.values():
            with contextlib.suppress(Exception):  # the original error matters more
                open_.file.drop()
            open_.assembly.drop()
        self._open.clear()
        for part in self.take_done():
            with contextlib.suppress(Exception):
                self.storage.remote.fs.rm_file(self.storage.temporary(part.name, part.temporary))

    def _writing(self, name: str) -> contextlib.AbstractContextManager[None]:
        return writing(self.storage.show(f"{self.storage.root}/{name}"), fix=_FIX_RERUN)


# ---- folders ---------------------------------------------------------------------------------------------------------


def split_by(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield each partition folder (``k=1/n=a``) with its rows in order, without the partition columns.

    Raises:
        PipelineError: a column cannot be used for partitioning.
    """
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
    columns = table.drop_columns(list(names))
    for start, stop in pairwise(cuts):
        if start < stop:
            values = [table.column(name)[start].as_py() for name in names]
            yield folder_of(list(names), values), columns.slice(start, stop - start)


def _check_partition(table: pa.Table, name: str, names: Sequence[str]) -> None:
    if name not in table.column_names:
        raise missing_column(name, table.column_names, "write(partition_by=...)")
    if not name:  # readers do not recognize a folder "=2" as a column
        raise PipelineError("write: cannot partition by a column without a name", fix="rename the column first")
    if name[0] in "._":  # readers skip hidden folders
        raise PipelineError(
            f"write: cannot partition by {name!r}: folders whose names begin with {name[0]!r} are hidden from readers",
            fix=f"rename the column first, such as to {name.lstrip('._') or 'part'!r}",
        )
    kind = table.schema.field(name).type
    if not any(allowed(kind) for allowed in _FOLDERS):  # readers would return other types as strings
        raise PipelineError(
            f"write: cannot partition by {name!r} of type {kind}",
            fix=f"partition by integers, strings, booleans or dates: with_columns(...) with "
            f"col({name!r}).dt.date() or col({name!r}).cast(str)",
        )
    if len(names) == table.num_columns:
        raise PipelineError("write: partition_by leaves no column to write")
