"""Read Vortex files. A split is a run of a file's chunks. Zone maps exclude splits without matching rows.

The format has no checksums. If there is a file ``name.vortex.crc`` next to a file, cedar checks what it reads against
the checksums in it (see ``sums``). cedar reads the bytes from any storage and passes them to Vortex's decoder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
import pyarrow.types as pt

from cedar.core.boundary import as_column, canonical_types, checked_column
from cedar.core.columns import Column
from cedar.core.errors import SourceError
from cedar.core.limits import MemoryReservation
from cedar.core.packages import library, plain_errors
from cedar.datasets.base import Chunk, Split, numbered_rows, once, selected
from cedar.datasets.files_io import File, check_unchanged, concurrently, reading
from cedar.datasets.filesource import FileSource, Paths, as_flag, as_names, as_paths
from cedar.datasets.listing import Listing, list_files
from cedar.datasets.parquet_schema import Types, check_same
from cedar.datasets.sums import SUFFIX, Sums, block_range
from cedar.operators.expression_nodes import columns_of
from cedar.operators.expression_steps import never_fails

if TYPE_CHECKING:
    import polars as pl

_ROWS = 65_536  # maximum rows per split


@dataclass(frozen=True)
class VortexFooter:
    """The metadata of a file.

    Args:
        types: the types of the file's columns.
        chunks: (first row, last row + 1) of each chunk of the file.
        sums: whether the checksum file exists.
    """

    types: Types
    chunks: tuple[tuple[int, int], ...]
    sums: bool


class _OpenFiles:
    """Footers, which cannot be pickled, and checksums of files that this process has read, by file number."""

    def __init__(self) -> None:
        self.footers: dict[int, Any] = {}
        self.sums: dict[int, Sums] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _OpenFiles, ()


@dataclass(frozen=True, repr=False)
class VortexSource(FileSource):
    """Vortex files that share one schema.

    Args:
        verify: True: a file without checksums is an error; False: checksums are ignored; None: checksums are checked if
            they exist.
    """

    verify: bool | None = None
    reader: ClassVar[str] = "read_vortex"
    second_read_cost_bytes: ClassVar[int] = 512 << 10  # a second read of a split costs as much as decoding these bytes
    suffixes: ClassVar[tuple[str, ...] | None] = (".vortex",)
    reads_columns_separately: ClassVar[bool] = True  # reading one column does not read others

    @once
    def listing(self) -> Listing:
        files = list_files(self.paths, self.suffixes, self.storage_options).files
        return Listing(tuple(file for file in files if not file.path.endswith(f".vortex{SUFFIX}")))

    @once
    def _footers(self) -> list[VortexFooter]:
        library("vortex", "vortex", self.reader)
        files, opened = self.listing.files, self._opened  # evaluated here, since ``once`` would block the threads
        footers = concurrently(lambda n: _footer(files[n], opened, n, self.verify), range(len(files)))
        for file, footer in zip(files, footers, strict=True):
            check_same(footers[0].types, footer.types, files[0], file)
        return footers

    @once
    def _opened(self) -> _OpenFiles:
        return _OpenFiles()

    def _file(self, number: int) -> AbstractContextManager[Any]:
        """Return an open ``vortex.VortexFile``."""
        verify = self._footers[number].sums or False  # as determined when footers were read
        return _open_vortex(self.listing[number], self._opened, number, verify)

    def sound_splits(self) -> list[Split]:
        splits = []
        for number, (file, footer) in enumerate(zip(self.listing, self._footers, strict=True)):
            share = (file.size or 0) / max(1, footer.chunks[-1][1] if footer.chunks else 0)
            for part, (start, stop) in enumerate(_runs(footer.chunks)):
                splits.append(Split(number, start, stop, stop - start, int(share * (stop - start)), part))
        return splits

    row_keys = staticmethod(numbered_rows)

    def read(self, split: Split) -> Iterator[Chunk]:
        file, types = self.listing[split.file], self.schema()
        stop = split.start if split.stop is None else split.stop
        if not types:
            yield Chunk({}, length=stop - split.start)
            return
        kind = pa.struct(list(types.items()))
        column = as_column if self._footers[split.file].sums else checked_column
        reservation, count = MemoryReservation.of_task(file.url, file.limits), 0
        with self._file(split.file) as opened:
            arrays = self._scan(file, opened, list(types), split.start, stop)
            done = False
            while not done:
                with reading(file.url, f"rows {split.start:,} to {stop:,}"), plain_errors():
                    array = next(arrays, None)
                    done = array is None
                    # Request canonical types, so that columns need no conversion.
                    structs = None if array is None else array.to_arrow_array(arrow_type=kind, combine_chunks=True)
                    columns: dict[str, Column] = {}
                    if structs is not None:
                        reservation.take(structs.nbytes, f"a chunk of {len(structs):,} rows")
                        columns = dict(zip(types, map(column, structs.flatten()), strict=True))
                        count += len(structs)
                    if done and count != stop - split.start:
                        raise ValueError(f"there are {count:,} rows, its footer says {stop - split.start:,}")
                if structs is not None:
                    yield Chunk(columns, length=len(structs))
                    reservation.give(structs.nbytes)

    def _scan(self, file: File, opened: Any, names: list[str], start: int, stop: int) -> Iterator[Any]:
        with reading(file.url), plain_errors():
            return iter(opened.to_repeated_scan(names).execute(row_range=(start, stop)))

    def schema(self) -> Types:
        return selected(self._footers[0].types, self.columns, self.describe())

    def prune(self, split: Split, predicate: pl.Expr) -> bool:
        """Return True if no row of the split satisfies the parts of the predicate that Vortex supports.

        Vortex looks for one matching row: first in zone maps, then in the columns that the predicate reads.
        """
        asked = _translate(_TypedPredicate(predicate, tuple(self._footers[0].types.items())))
        if asked is None:
            return False
        file, rows = self.listing[split.file], (split.start, split.stop)
        with (
            self._file(split.file) as opened,
            reading(file.url, f"rows {split.start:,} to {split.stop:,}"),
            plain_errors(),
        ):
            scan = opened.to_repeated_scan([], expr=asked, limit=1).execute(row_range=rows)
            return not any(len(array) for array in scan)

    def digest(self) -> str:
        return self.listing.digest([footer.chunks for footer in self._footers])


def _footer(file: File, opened: _OpenFiles, number: int, verify: bool | None) -> VortexFooter:
    with _open_vortex(file, opened, number, verify) as vortex_file, reading(file.url, "footer"), plain_errors():
        if not isinstance(vortex_file.dtype, library("vortex", "vortex", "read_vortex").StructDType):
            raise TypeError(f"it holds values of {vortex_file.dtype}, not columns")
        schema = vortex_file.dtype.to_arrow_schema()
        chunks = tuple((int(start), int(stop)) for start, stop in vortex_file.splits())
    return VortexFooter(canonical_types(schema, file.url, SourceError), chunks, number in opened.sums)


@contextmanager
def _open_vortex(file: File, opened: _OpenFiles, number: int, verify: bool | None) -> Iterator[Any]:
    """Open a ``vortex.VortexFile`` whose bytes cedar reads. ``verify`` is the source's argument."""
    vortex = library("vortex", "vortex", "read_vortex")
    check_unchanged(file)
    if verify is not False and number not in opened.sums:
        sums = _read_sums(file)
        if sums is not None:
            opened.sums[number] = sums
        elif verify:
            raise SourceError(
                f"{file.url}: has no checksums next to it, but verify=True needs them",
                fix="if the files are known to be intact, write checksums: cedar.datasets.sums.write_sums",
            )
    with _VortexBytes(file, opened.sums.get(number)) as reader:
        with reading(file.url), reader.original_errors(), plain_errors():
            vortex_file = vortex.open_readable(reader, footer=opened.footers.get(number), without_segment_cache=True)
            opened.footers[number] = vortex_file.footer
        with reader.original_errors():
            yield vortex_file


def _runs(chunks: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield runs of chunks with at most 65,536 rows in total. Larger chunks are cut."""
    start = stop = 0
    for _, end in chunks:
        if stop > start and end - start > _ROWS:
            yield start, stop
            start = stop
        stop = end
        while stop - start > _ROWS:
            yield start, start + _ROWS
            start += _ROWS
    if stop > start:
        yield start, stop


# ---- bytes -----------------------------------------------------------------------------------------------------------


class _VortexBytes:
    """The file object that Vortex reads in its own threads. It verifies checksums if they exist."""

    def __init__(self, file: File, sums: Sums | None) -> None:
        self._file, self._sums = file, sums
        self._error: SourceError | None = None
        self._local = -1
        self._size = file.size or 0

    def __enter__(self) -> Self:
        file = self._file
        with reading(file.url):
            if file.remote is None:
                self._local = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    stat = os.fstat(self._local)
                    check_unchanged(file, stat)
                except BaseException:
                    self.__exit__()
                    raise
                self._size = stat.st_size
            elif file.size is None:
                remote = file.remote
                self._size = int(remote.call(file.path, lambda: remote.fs.info(file.path))["size"])
        return self

    def __exit__(self, *_: object) -> None:
        if self._local >= 0:
            os.close(self._local)
            self._local = -1

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> Any:
        try:
            if self._sums is None:
                return self._bytes(offset, offset + length)
            start, stop = block_range(offset, offset + length, self._size)
            data = self._bytes(start, stop)
            self._sums.check(data, start)
            return memoryview(data)[offset - start : offset - start + length]
        except SourceError as error:
            self._error = error
            raise

    def _bytes(self, start: int, stop: int) -> bytes:
        file = self._file
        if file.remote is not None:
            return file.remote.fetch(file.path, start, stop, self._size)
        with reading(file.url):
            data = os.pread(self._local, stop - start, start)
            while len(data) < stop - start:  # one call returns at most 2 GiB
                more = os.pread(self._local, stop - start - len(data), start + len(data))
                if not more:
                    raise EOFError("the file ends early")
                data += more
            return data

    @contextmanager
    def original_errors(self) -> Iterator[None]:
        """Raise the original read error instead of the error that Vortex makes from it."""
        try:
            yield
        except Exception as error:
            if self._error is None or error is self._error:
                raise
            raise self._error from None


def _read_sums(file: File) -> Sums | None:
    remote, path = file.remote, f"{file.path}{SUFFIX}"
    with reading(f"{file.url}{SUFFIX}"):
        try:
            if remote is not None:
                data = bytes(remote.call(path, lambda: remote.fs.cat_file(path)))
            else:
                with open(path, "rb") as stream:
                    data = stream.read()
        except FileNotFoundError:
            return None
        return Sums.parse(file.url, file.size, data)


# ---- predicates ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _TypedPredicate:
    """A predicate with column types, used as a cache key. Keys are equal only for the same expression object."""

    predicate: pl.Expr
    types: tuple[tuple[str, Any], ...]

    def __hash__(self) -> int:
        return hash((id(self.predicate), self.types))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TypedPredicate) and self.predicate is other.predicate and self.types == other.types


@lru_cache(maxsize=256)
def _translate(asked: _TypedPredicate) -> Any:
    """Return a Vortex expression that the predicate implies; None if there is none, or if it may fail.

    It only uses columns for which comparisons in Vortex and polars agree. They differ for NaN.
    """
    vortex, translate = (library(name, "vortex", "read_vortex") for name in ("vortex", "vortex.polars_"))
    types = dict(asked.types)
    reads = columns_of(asked.predicate)
    known = {name: kind for name, kind in types.items() if _compares_alike(kind)}
    if reads is None or not known.keys() & reads or not never_fails(asked.predicate, types):
        return None
    scope = pa.table({name: pa.array([], kind) for name, kind in known.items()})
    with plain_errors():
        return translate.decompose_predicate(asked.predicate, vortex.array(scope))[0]


def _compares_alike(kind: pa.DataType) -> bool:
    return bool(
        pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind)
        or pt.is_date32(kind)
    )  # fmt: skip


def read_vortex(paths: Paths, *, columns: Sequence[str] | None = None, verify: bool | None = None) -> VortexSource:
    """Return the source that ``cedar.read_vortex`` uses."""
    verify = None if verify is None else as_flag(verify, "verify", "read_vortex")
    return VortexSource(as_paths(paths, "read_vortex"), verify, columns=as_names(columns, "columns", "read_vortex"))
