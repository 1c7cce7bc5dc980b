"""File formats for writing. Tasks encode rows as pieces, and the writer assembles pieces to files.

Tasks encode pieces concurrently, since pieces are independent. The writer builds files from pieces without decoding
rows.
"""

from __future__ import annotations

import io
import re
import tarfile
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cedar.core.errors import PipelineError
from cedar.core.packages import library, plain_errors
from cedar.core.printable import StorageOptions
from cedar.datasets.parquet_footer import MAGIC, MAX_ROW_GROUPS, RowGroups
from cedar.datasets.sums import RunningChecksums
from cedar.lake import lance_table
from cedar.lake.layouts import AIMS, SMALL, Layout, Layouts, nullable_schema

_KEY = re.compile(r"(?!\./)(?:[^/\0]+/)*[^./\0][^./\0]*", re.DOTALL)  # key names that read_tar reads back unchanged


class Assembly(ABC):
    """A file that is assembled from pieces.

    Args:
        write: appends bytes to the file.
    """

    full = False  # if True, no further piece may be added
    pending_bytes = 0  # bytes not yet written
    sums = b""  # contents of the checksum file to write at the end: see ``cedar.datasets.sums``

    def __init__(self, write: Callable[[Any], int]) -> None:
        self.write = write

    @abstractmethod
    def add(self, piece: Any) -> None:
        """Append a piece, the output of ``Format.encode``."""

    def end(self) -> None:
        """Write the end of the file."""

    def drop(self) -> None:
        """Release resources after the file was finished or abandoned."""


class Format(ABC):
    """A file format."""

    name: str
    suffix: str
    aims: tuple[str, ...] = ("fast",)  # supported layouts, see ``Layouts.aim``
    layouts: Layouts | None = None  # the layout chosen from a job's first rows
    folder = ""  # folder for the files, below the destination
    joined = False  # whether ``join`` combines the files of all ranks into one data set

    def for_job(self, aim: str, place: str, known: Layout | None = None, fields: Any = None) -> Format:
        """Return the format configured for one job. The arguments are the same as for ``Layouts``."""
        return self

    def with_job_schema(self, table: pa.Table) -> pa.Table:
        """Return the same rows with the schema of this job's files."""
        return table

    def refitted(self, piece: Any, fields: Any) -> Any:
        """Convert an encoded piece to the schema ``fields``."""
        return piece

    @abstractmethod
    def encode(self, table: pa.Table) -> Any:
        """Encode rows as bytes.

        Raises:
            PipelineError: the format cannot store a column's values.
        """

    @abstractmethod
    def assembly(self, write: Callable[[Any], int]) -> Assembly:
        """Start a new file."""

    def join(
        self, url: str, files: Sequence[tuple[str, int, int]], fields: pa.Schema, options: StorageOptions | None
    ) -> None:
        """Combine files into one data set. ``files`` has each file's name below the folder, rows and bytes."""

    def check(self, schema: pa.Schema) -> None:
        """Raise PipelineError for a column that the format cannot store."""
        for field in schema:
            if why := self._why_unsupported(field.type):
                raise PipelineError(
                    f"write(format={self.name!r}): column {field.name!r} is {field.type}, and {why}",
                    fix=f"map it to something else, or drop({field.name!r})",
                )

    def _why_unsupported(self, kind: pa.DataType) -> str:
        """Return why the format cannot store a type or a type nested in it; "" if it can."""
        return next(filter(None, (self._why_unsupported(kind.field(i).type) for i in range(kind.num_fields))), "")


# ---- Parquet ---------------------------------------------------------------------------------------------------------


class _ParquetFile(Assembly):
    def __init__(self, write: Callable[[Any], int]) -> None:
        super().__init__(write)
        self._groups = RowGroups()
        self._at = write(MAGIC)

    def add(self, piece: Any) -> None:
        self._at += self.write(self._groups.add(piece, self._at))
        self.full = len(self._groups) >= MAX_ROW_GROUPS

    def end(self) -> None:
        self.write(self._groups.footer())


class Parquet(Format):
    """Parquet: each piece is a row group, and pages have checksums."""

    name, suffix = "parquet", ".parquet"
    aims = AIMS

    def __init__(self, layouts: Layouts | None = None) -> None:
        self.layouts = layouts

    def for_job(self, aim: str, place: str, known: Layout | None = None, fields: Any = None) -> Format:
        return Parquet(Layouts(aim, place, known, fields))

    def with_job_schema(self, table: pa.Table) -> pa.Table:
        return self.layouts.with_job_schema(table) if self.layouts is not None else table

    def refitted(self, piece: Any, fields: Any) -> Any:
        return self.encode(pq.read_table(pa.BufferReader(piece)).cast(fields))

    def encode(self, table: pa.Table, rows: int | None = None) -> Any:
        """Encode rows as a file with row groups of ``rows`` rows, by default a single one."""
        sink = pa.BufferOutputStream()
        try:
            how = self.layouts.options(table) if self.layouts is not None else {}
            pq.write_table(table, sink, row_group_size=rows or max(1, table.num_rows), write_page_checksum=True, **how)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise PipelineError(
                f"Parquet cannot store a column: {error}", fix="cast that column, or drop it"
            ) from error
        return sink.getvalue()

    def assembly(self, write: Callable[[Any], int]) -> Assembly:
        return _ParquetFile(write)

    def _why_unsupported(self, kind: pa.DataType) -> str:
        if pa.types.is_interval(kind):
            return "Parquet has no intervals"
        if pa.types.is_struct(kind) and not kind.num_fields:
            return "Parquet has no structs without fields"
        return super()._why_unsupported(kind)


# ---- Arrow -----------------------------------------------------------------------------------------------------------


class _ArrowFile(Assembly):
    def __init__(self, write: Callable[[Any], int], layouts: Layouts | None = None) -> None:
        super().__init__(write)
        self._layouts = layouts
        self._writer: Any = None

    def add(self, piece: Any) -> None:
        with pa.ipc.open_stream(pa.py_buffer(piece)) as stream:
            table = stream.read_all()
        if self._writer is None:
            how = None if self._layouts is None else self._layouts.file_compression(_choose_compression, table)
            options = pa.ipc.IpcWriteOptions(compression=how)
            self._writer = pa.ipc.new_file(pa.PythonFile(_Sink(self.write), "w"), table.schema, options=options)
        self._writer.write_table(table)

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Sink(io.RawIOBase):
    """A writable file object for pyarrow that calls ``write``."""

    def __init__(self, write: Callable[[Any], int]) -> None:
        super().__init__()
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._write(data)


def _choose_compression(table: pa.Table) -> str:
    """Return "lz4", which is faster to read, unless zstd makes the data much smaller."""
    sizes = {}
    for name in ("lz4", "zstd"):
        sink = pa.MockOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=name)) as stream:
            stream.write_table(table.slice(0, 8192))
        sizes[name] = sink.size()
    return "lz4" if sizes["lz4"] <= SMALL * sizes["zstd"] else "zstd"


class Arrow(Format):
    """Arrow IPC: each piece is a record batch. Except with layout "small", it is uncompressed, for memory maps."""

    name, suffix = "arrow", ".arrow"
    aims: tuple[str, ...] = ("fast", "small")

    def __init__(self, layouts: Layouts | None = None) -> None:
        self.layouts = layouts

    def for_job(self, aim: str, place: str, known: Layout | None = None, fields: Any = None) -> Format:
        return Arrow(Layouts(aim, place, known, fields) if aim == "small" else None)

    def encode(self, table: pa.Table) -> Any:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        return sink.getvalue()

    def assembly(self, write: Callable[[Any], int]) -> Assembly:
        return _ArrowFile(write, self.layouts)


# ---- Vortex and Lance ------------------------------------------------------------------------------------------------

_MAX_ARROW_BYTES = 512 << 20  # Arrow bytes per file, the file size of other formats
_COPY_BYTES = 16 << 20


class _BufferedFile(Assembly):
    """Collects pieces in a temporary local file. The library needs all values, so it writes the file at the end."""

    def __init__(self, write: Callable[[Any], int]) -> None:
        super().__init__(write)
        self._pieces = tempfile.TemporaryFile(prefix="cedar-written-")  # noqa: SIM115 - closed by ``drop``
        self._starts: list[int] = []

    def add(self, piece: Any) -> None:
        self._starts.append(self.pending_bytes)
        self.pending_bytes += self._pieces.write(piece)
        self.full = self.pending_bytes >= _MAX_ARROW_BYTES

    def end(self) -> None:
        with tempfile.TemporaryDirectory(prefix="cedar-written-") as folder, plain_errors():
            with pa.ipc.open_stream(self._piece(0)) as first:
                schema = first.schema
            path = self._write_file(pa.RecordBatchReader.from_batches(schema, self._batches()), folder)
            with pa.memory_map(path) as file:  # the map stays valid while buffers of it exist
                while data := file.read_buffer(_COPY_BYTES):
                    self._on_bytes_written(data)
                    self.write(data)
        self.drop()

    @abstractmethod
    def _write_file(self, rows: pa.RecordBatchReader, folder: str) -> str:
        """Let the library write the file into a folder, and return its path."""

    def _on_bytes_written(self, data: Any) -> None:
        """Receive the bytes of the finished file, in order."""

    def _piece(self, start: int) -> Any:
        self._pieces.seek(start)
        return self._pieces

    def _batches(self) -> Iterator[Any]:
        for start in self._starts:
            with pa.ipc.open_stream(self._piece(start)) as stream:
                yield from stream

    def drop(self) -> None:
        self.pending_bytes = 0
        self._pieces.close()


class _VortexFile(_BufferedFile):
    def __init__(self, write: Callable[[Any], int]) -> None:
        super().__init__(write)
        self._summing = RunningChecksums()

    def end(self) -> None:
        super().end()
        self.sums = self._summing.text()

    def _write_file(self, rows: pa.RecordBatchReader, folder: str) -> str:
        library("vortex", "vortex", "write(format='vortex')").io.write(rows, f"{folder}/file")
        return f"{folder}/file"

    def _on_bytes_written(self, data: Any) -> None:
        self._summing.add(data)


class Vortex(Arrow):
    """Vortex: pieces are Arrow rows. The file is compressed after its last piece has arrived, and has checksums."""

    name, suffix = "vortex", ".vortex"
    aims: tuple[str, ...] = ("fast",)

    def for_job(self, aim: str, place: str, known: Layout | None = None, fields: Any = None) -> Format:
        return self

    def assembly(self, write: Callable[[Any], int]) -> Assembly:
        return _VortexFile(write)

    def _why_unsupported(self, kind: pa.DataType) -> str:
        vortex = library("vortex", "vortex", "write(format='vortex')")
        try:
            with plain_errors():
                vortex.array(pa.table({"x": pa.nulls(1, kind)}))
        except Exception as error:  # noqa: BLE001 - Vortex raises many types
            return f"Vortex has no such values: {error}"
        return ""


class _LanceFile(_BufferedFile):
    def _write_file(self, rows: pa.RecordBatchReader, folder: str) -> str:
        return lance_table.write_file(rows, folder)


class Lance(Vortex):
    """Lance: like Vortex, without checksums. When all files are written, the files of all ranks become one data set."""

    name, suffix = "lance", ".lance"
    folder = lance_table.FOLDER
    joined = True

    def with_job_schema(self, table: pa.Table) -> pa.Table:
        return table.cast(nullable_schema(table.schema))  # all files of a data set need the same nullability

    def assembly(self, write: Callable[[Any], int]) -> Assembly:
        return _LanceFile(write)

    def join(
        self, url: str, files: Sequence[tuple[str, int, int]], fields: pa.Schema, options: StorageOptions | None
    ) -> None:
        lance_table.commit(url, files, fields, dict(options or {}) or None)

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            if why := lance_table.why_unsupported(field.name, field.type):
                raise PipelineError(
                    f"write(format='lance'): column {field.name!r} is {field.type}, and Lance refuses it: {why}",
                    fix=f"rename it, map it to something else, or drop({field.name!r})",
                )


# ---- lines and archives ----------------------------------------------------------------------------------------------


class _Bytes(Assembly):
    """Concatenates pieces, and appends fixed bytes at the end."""

    def __init__(self, write: Callable[[Any], int], last: bytes = b"") -> None:
        super().__init__(write)
        self._last = last

    def add(self, piece: Any) -> None:
        self.write(piece)

    def end(self) -> None:
        if self._last:
            self.write(self._last)


class _TarFile(_Bytes):
    """A tar shard; it rejects a sample name that occurs twice."""

    def __init__(self, write: Callable[[Any], int]) -> None:
        super().__init__(write, b"\0" * (2 * tarfile.BLOCKSIZE))
        self._keys: set[str] = set()

    def add(self, piece: Any) -> None:
        with tarfile.open(fileobj=io.BytesIO(piece)) as tar:
            keys = {_KEY.match(member.name)[0] for member in tar}  # type: ignore[index] # ``encode`` checked them
        if twice := sorted(keys & self._keys):
            raise _bad_key(twice[0], "occurs twice")
        self._keys |= keys
        super().add(piece)


class Jsonl(Format):
    """JSON lines: each row is a line."""

    name, suffix = "jsonl", ".jsonl"

    def encode(self, table: pa.Table) -> Any:
        import polars as pl

        for name, column in zip(table.column_names, table.columns, strict=True):
            if not all(map(_finite, column.chunks)):
                raise PipelineError(
                    f"write(format='jsonl'): column {name!r} has a NaN or an infinite number, and JSON has none",
                    fix="fill or filter them first, or write Parquet",
                )
        sink = io.BytesIO()
        frame = pl.from_arrow(table.rename_columns([str(i) for i in range(table.num_columns)]))  # polars renames ""
        assert isinstance(frame, pl.DataFrame)
        frame.columns = table.column_names
        frame.write_ndjson(sink)
        return sink.getbuffer()

    def assembly(self, write: Callable[[Any], int]) -> Assembly:
        return _Bytes(write)

    def _why_unsupported(self, kind: pa.DataType) -> str:
        types = pa.types
        checks = [types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_string]
        checks += [types.is_large_string, types.is_null, types.is_struct]
        checks += [types.is_list, types.is_large_list, types.is_fixed_size_list]
        if not any(is_kind(kind) for is_kind in checks):
            return "JSON has no such values"
        return super()._why_unsupported(kind)


def _finite(values: pa.Array) -> bool:
    kind = values.type
    if pa.types.is_floating(kind):
        return pc.all(pc.is_finite(values)).as_py() is not False
    if pa.types.is_struct(kind):
        return all(map(_finite, values.flatten()))
    return _finite(values.flatten()) if kind.num_fields else True


class Tar(Format):
    """Tar: each row is a sample of a webdataset shard. Column ``key`` is its name; other columns are member files."""

    name, suffix = "tar", ".tar"

    def check(self, schema: pa.Schema) -> None:
        super().check(schema)
        if "key" not in schema.names or not _is_text(schema.field("key").type):
            raise PipelineError(
                "write(format='tar') takes the names of samples from a column 'key' of strings",
                fix="map a column into 'key', such as a file name without its extension",
            )
        for name in schema.names:
            if name != name.lower() or not name or "/" in name or "\0" in name or name.startswith("."):
                raise PipelineError(
                    f"write(format='tar'): {name!r} cannot be an extension of members",
                    fix="rename it, such as to 'jpg'",
                )
        if len(schema.names) < 2:
            raise PipelineError("write(format='tar'): there is no column to write next to 'key'")

    def encode(self, table: pa.Table) -> Any:
        names = [name for name in table.column_names if name != "key"]
        keys = table.column("key").to_pylist()
        _check_keys(keys)
        for name in names:
            if table.column(name).null_count:
                raise PipelineError(
                    f"write(format='tar'): column {name!r} has a null, and a sample needs every member",
                    fix=f"fill_null or filter it, or drop({name!r})",
                )
        sink = io.BytesIO()
        columns = [table.column(name).to_pylist() for name in names]
        for key, *values in zip(keys, *columns, strict=True):
            for name, value in zip(names, values, strict=True):
                data = value if isinstance(value, bytes) else str(value).encode()
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(data)
                sink.write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
                sink.write(data)
                sink.write(b"\0" * (-len(data) % tarfile.BLOCKSIZE))
        return sink.getbuffer()

    def assembly(self, write: Callable[[Any], int]) -> Assembly:
        return _TarFile(write)

    def _why_unsupported(self, kind: pa.DataType) -> str:
        fits = _is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_integer(kind)
        return "" if fits else "members are bytes, strings or integers"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _check_keys(keys: list[Any]) -> None:
    seen = set()
    for key in keys:
        if key in seen:
            raise _bad_key(key, "occurs twice")
        if key is None or not _KEY.fullmatch(key) or ".." in key.split("/"):
            raise _bad_key(key, "cannot name a sample: it must not contain dots or NUL, except in folders")
        seen.add(key)


def _bad_key(key: Any, why: str) -> PipelineError:
    return PipelineError(f"write(format='tar'): key {key!r} {why}", fix="map another name into 'key'")


FORMATS: dict[str, Format] = {each.name: each for each in (Parquet(), Arrow(), Vortex(), Lance(), Jsonl(), Tar())}
