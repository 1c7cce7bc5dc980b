"""Write Lance data sets. Ranks write files separately; when all are complete, one commit makes them a data set."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from cedar.core.errors import CedarError, PipelineError
from cedar.core.packages import library, plain_errors
from cedar.core.printable import StorageOptions
from cedar.core.remote import is_remote
from cedar.datasets.storage import writing

FOLDER = "data"  # folder of the files below a data set
_VERSION = "2.1"  # file version, fixed because all files of a data set need the same one
_ALL = 1 << 62  # limit of rows and bytes per file, so that one call writes one file
_PLACES = ("s3", "gs", "az", "abfss", "oss", "file")  # storage that Lance supports
_FEATURE = "write(format='lance')"


def check_place(url: str, options: StorageOptions | None = None) -> None:
    """Raise PipelineError if Lance cannot create a data set at a location, or if one already exists."""
    scheme = url.partition("://")[0]
    if is_remote(url) and scheme not in _PLACES:
        raise PipelineError(
            f"{_FEATURE}: Lance does not support {scheme}://",
            done="nothing was written",
            fix=f"write to a local folder, or to one of {', '.join(_PLACES[:-1])}; or in another format",
        )
    if exists(url, dict(options or {}) or None):
        raise PipelineError(
            f"{url!r} is a Lance data set already", done="nothing was written", fix="use a new location, or remove it"
        )


def exists(url: str, options: dict[str, Any] | None = None) -> bool:
    """Return whether a data set exists."""
    lance = library("lance", "lance", _FEATURE)
    with writing(url):
        try:
            with plain_errors():
                lance.dataset(url, storage_options=options)
        except ValueError as error:
            if "not found" in str(error).lower():
                return False
            raise
    return True


def write_file(rows: pa.RecordBatchReader, folder: str) -> str:
    """Write rows to one data set file in an existing folder, and return its path. Without rows, the file is empty."""
    fragments = _fragments(rows, folder)
    if not fragments:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as nothing:
            return nothing.name
    (fragment,) = fragments
    (file,) = fragment.files
    return os.path.join(folder, FOLDER, file.path)


def _fragments(rows: pa.RecordBatchReader, folder: str) -> list[Any]:
    library("lance", "lance", _FEATURE)
    how: dict[str, Any] = {"mode": "create", "data_storage_version": _VERSION}
    how |= {"max_rows_per_file": _ALL, "max_bytes_per_file": _ALL}
    made = library("lance.fragment", "lance", _FEATURE).write_fragments(rows, folder, **how)
    return [fragment for fragment in made if fragment.physical_rows]


@lru_cache(256)
def why_unsupported(name: str, kind: pa.DataType) -> str:
    """Return Lance's reason for rejecting a column; "" if Lance accepts the column."""
    try:
        with tempfile.TemporaryDirectory(prefix="cedar-written-") as folder, plain_errors():
            write_file(pa.table({name: pa.nulls(1, kind)}).to_reader(), folder)
    except CedarError:
        raise
    except Exception as error:  # noqa: BLE001 - Lance raises many types
        return str(error).partition(", /")[0]
    return ""


def commit(
    url: str, files: Sequence[tuple[str, int, int]], fields: pa.Schema, options: dict[str, Any] | None = None
) -> None:
    """Atomically create a data set from existing files in this order. Do nothing if the data set exists.

    Args:
        url: the data set.
        files: for each file, its name below the data set, rows and bytes.
        fields: the columns of all files.
        options: storage options for Lance.
    """
    lance, fragment = library("lance", "lance", _FEATURE), library("lance.fragment", "lance", _FEATURE)
    if exists(url, options):
        return
    with tempfile.TemporaryDirectory(prefix="cedar-written-") as folder:
        nothing = pa.table({field.name: pa.nulls(1, field.type) for field in fields}, schema=fields)
        (like,) = _fragments(nothing.to_reader(), folder)[0].files  # all files have the same structure
    fragments: list[Any] = []
    for name, rows, size in files:
        if rows:
            file = fragment.DataFile(
                name.removeprefix(f"{FOLDER}/"), like.fields, like.column_indices, like.file_major_version,
                like.file_minor_version, size,
            )  # fmt: skip
            fragments.append(fragment.FragmentMetadata(len(fragments), [file], rows))
    with plain_errors():
        lance.LanceDataset.commit(url, lance.LanceOperation.Overwrite(fields, fragments), storage_options=options)
