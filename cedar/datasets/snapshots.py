"""Read snapshots of Delta Lake and Iceberg tables: find a snapshot's files in the table's log, and read these."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from cedar.core.errors import CedarError, SourceError, invalid_call, user_site
from cedar.core.packages import library
from cedar.core.printable import redact_url
from cedar.datasets.base import Versioned, once
from cedar.datasets.filesource import as_names, as_types
from cedar.datasets.listing import Listing, list_files
from cedar.datasets.parquet import ParquetSource

_OBJECT_STORE = {  # fsspec's name of an S3 option -> the name in object_store, the name in pyiceberg
    "key": ("AWS_ACCESS_KEY_ID", "s3.access-key-id"), "secret": ("AWS_SECRET_ACCESS_KEY", "s3.secret-access-key"),
    "token": ("AWS_SESSION_TOKEN", "s3.session-token"), "endpoint_url": ("AWS_ENDPOINT_URL", "s3.endpoint"),
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class SnapshotSource(ParquetSource, Versioned):
    """The Parquet files of one snapshot of a table.

    Args:
        root: location of the table; file names are relative to it.
        shown: the source's description for messages, including the snapshot's number.
        snapshot: number of the snapshot.
        reopen: a function that returns the source of another snapshot; None if the user chose this snapshot.
    """

    root: str = ""
    shown: str = ""
    snapshot: int = 0
    reopen: Callable[[int], SnapshotSource] | None = field(default=None, compare=False, repr=False)
    reader: ClassVar[str] = "read_delta"
    lenient: ClassVar[bool] = True

    @once
    def listing(self) -> Listing:
        listed = list_files(self.paths, None, self.storage_options)
        root = (self.root if "://" in self.root else os.path.abspath(self.root)).rstrip("/") + "/"
        named = (replace(file, name=_below(root, file)) for file in listed.files)
        return Listing(tuple(sorted(named, key=lambda file: file.name)))

    def describe(self) -> str:
        return self.shown

    def at(self, snapshot: int) -> SnapshotSource:
        assert self.reopen is not None
        other = self.reopen(snapshot)
        return replace(
            self,
            paths=other.paths,
            columns=other.columns,
            declared=other.declared,
            shown=other.shown,
            snapshot=snapshot,
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"reopen": None}  # workers do not change snapshots, and ``reopen`` may not pickle


def _below(root: str, file: Any) -> str:
    """Return the path of a file relative to the root."""
    for path in (file.path, file.url):
        if path.startswith(root):
            return str(path[len(root) :])
    return str(file.name)


def _options(options: Mapping[str, Any] | None, place: int) -> dict[str, str]:
    known = {name: value for name, value in (options or {}).items() if isinstance(value, str)}
    return known | {_OBJECT_STORE[name][place]: value for name, value in known.items() if name in _OBJECT_STORE}


def _source(
    files: list[str], schema: Any, columns: tuple[str, ...] | None, root: str, shown: str, snapshot: int, reopen: Any
) -> SnapshotSource:
    if not files:
        raise SourceError(f"{shown} has no rows", site=user_site(), fix="read another version of it")
    types = as_types(schema, "schema", "read_delta")
    columns = tuple(name for name, _ in types) if columns is None else columns
    return SnapshotSource(
        tuple(files), columns=columns, declared=types, root=root, shown=shown, snapshot=snapshot, reopen=reopen
    )


def read_delta(
    uri: Any, version: int | None, columns: Sequence[str] | None, options: Mapping[str, Any] | None
) -> SnapshotSource:
    """Return the source that ``cedar.read_delta`` uses."""
    deltalake = library("deltalake", "delta", "read_delta")
    columns = as_names(columns, "columns", "read_delta")
    if not isinstance(uri, str | os.PathLike):
        raise invalid_call(f"read_delta: uri must be a string or a path, not {uri!r:.60}")
    uri = os.fspath(uri)
    try:
        table = deltalake.DeltaTable(uri, version=version, storage_options=_options(options, 0) or None)
        shown = f"read_delta({redact_url(uri)}, version={table.version()})"
        mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        features = table.protocol().reader_features or []
        if mode != "none" or ("deletionVectors" in features and pa.table(table.deletion_vectors()).num_rows):
            which = "renamed columns" if mode != "none" else "deletion vectors"
            raise invalid_call(
                f"{shown}: the table has {which}, which its files alone do not represent",
                fix="rewrite the table without them (REORG TABLE ... APPLY (PURGE) for deletion vectors), or write it "
                "as Parquet with an engine that supports them, such as Spark",
            )
        files = sorted(_local_path(each) for each in table.file_uris())
        root, schema, number = _local_path(table.table_uri), pa.schema(table.schema()), table.version()
        partitions = [name for name in table.metadata().partition_columns if columns is None or name in columns]
        _check_folders(shown, files, root, partitions)
        reopen = (lambda other: read_delta(uri, other, columns, options)) if version is None else None
        return _source(files, schema, columns, root, shown, number, reopen)
    except CedarError:
        raise
    except Exception as error:
        raise SourceError(
            f"read_delta({redact_url(uri)}{'' if version is None else f', version={version}'}): {error}",
            site=user_site(),
            fix="check that the path is a Delta Lake table with this version",
        ) from error


def _check_folders(shown: str, files: Sequence[str], root: str, names: Sequence[str]) -> None:
    """Check that folder names contain the values of all partition columns, which Delta Lake does not require.

    Raises:
        PipelineError: a file's path lacks the value of a partition column.
    """
    for file in files if names else ():
        folders = {unquote(part.partition("=")[0]) for part in file.removeprefix(root).split("/")[:-1] if "=" in part}
        if missing := [name for name in names if name not in folders]:
            raise invalid_call(
                f"{shown}: the path of {redact_url(file)} has no folder {missing[0]}=..., and only the table's log has "
                "the value of this partition column",
                fix="read it into memory: cedar.from_arrow(deltalake.DeltaTable(uri).to_pyarrow_table())",
            )


def _local_path(uri: str) -> str:
    return unquote(urlsplit(uri).path) if uri.startswith("file://") else uri


def read_iceberg(
    table: Any, snapshot_id: int | None, columns: Sequence[str] | None, options: Mapping[str, Any] | None
) -> SnapshotSource:
    """Return the source that ``cedar.read_iceberg`` uses."""
    library("pyiceberg", "iceberg", "read_iceberg")
    columns = as_names(columns, "columns", "read_iceberg")
    if isinstance(table, str | os.PathLike):
        opened = library("pyiceberg.table", "iceberg", "read_iceberg").StaticTable
        table = opened.from_metadata(os.fspath(table), properties=_options(options, 1))
    if not hasattr(table, "scan") or not hasattr(table, "location"):
        fix = 'catalog.load_table("db.clicks"), or the path of a metadata file'
        raise invalid_call(f"read_iceberg takes a table of pyiceberg, not {table!r:.60}", fix=fix)
    root = str(table.location())
    try:
        snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else table.current_snapshot()
        if snapshot is None:
            which = "no current snapshot: it has no rows yet" if snapshot_id is None else f"no snapshot {snapshot_id}"
            raise SourceError(f"read_iceberg({redact_url(root)}): the table has {which}")
        number = int(snapshot.snapshot_id)
        shown = f"read_iceberg({redact_url(root)}, snapshot_id={number})"
        scan = table.scan(snapshot_id=number)
        tasks = list(scan.plan_files())
        _reject_unsupported(shown, table, scan, tasks)
        schema = library("pyiceberg.io.pyarrow", "iceberg", "read_iceberg").schema_to_pyarrow(scan.projection())
        schema = pa.schema([(field.name, field.type) for field in schema])  # removes the field ids
        files = [_local_path(task.file.file_path) for task in tasks]
        reopen = (lambda other: read_iceberg(table, other, columns, options)) if snapshot_id is None else None
        return _source(files, schema, columns, _local_path(root), shown, number, reopen)
    except CedarError as error:
        error.site = error.site or user_site()
        raise
    except Exception as error:
        raise SourceError(
            f"read_iceberg({redact_url(root)}): {error}", site=user_site(), fix="check the table and its storage"
        ) from error


def _reject_unsupported(shown: str, table: Any, scan: Any, tasks: list[Any]) -> None:
    names = {field.field_id: field.name for field in scan.projection().fields}
    renamed = any(names.get(f.field_id, f.name) != f.name for schema in table.schemas().values() for f in schema.fields)
    others = {str(task.file.file_format).rpartition(".")[2].lower() for task in tasks} - {"parquet"}
    if any(task.delete_files for task in tasks):
        why, fix = "stores deletes separately from its rows", "compact it (rewrite_data_files) first"
    elif renamed:
        why, fix = "has renamed columns, which older files have under other names", "rewrite its data files first"
    elif others:
        why, fix = f"has files of {', '.join(sorted(others))}", "rewrite them as Parquet first"
    else:
        return
    more = "or read it into memory: cedar.from_arrow(table.scan().to_arrow())"
    raise invalid_call(f"{shown}: the table {why}", fix=f"{fix}, {more}")
