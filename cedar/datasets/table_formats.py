"""Detect Delta Lake, Iceberg and Hudi tables; only a table's log shows which of its files are current."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cedar.core.errors import CedarError, SourceError
from cedar.core.remote import Remote, kind_of
from cedar.datasets import walking

if TYPE_CHECKING:
    from cedar.datasets.listing import File

_LOGS = {  # folder with the table's log -> the kind of table, and how to read it
    "_delta_log": ("a Delta Lake table", "cedar.read_delta(uri)"),
    "metadata": ("an Iceberg table", "cedar.read_iceberg(catalog.load_table(name))"),
    ".hoodie": ("a Hudi table", "write its current rows to Parquet files with Spark first, and read those"),
}


def folders_of(files: Iterable[File]) -> dict[str, Remote | None]:
    """Return all folders above files, except HTTP, which has no folders; each may be a table."""
    folders: dict[str, Remote | None] = {}
    for folder, remote in {file.path.rpartition("/")[0]: file.remote for file in files}.items():
        above = os.path.realpath(folder) if remote is None else folder
        while above.strip("/") and above not in folders and not above.startswith("http"):
            folders[above] = remote
            above = above.rpartition("/")[0]
    return {folder: remote for folder, remote in folders.items() if "=" not in folder.rpartition("/")[2]}


def refuse_table(folder: str, remote: Remote | None) -> None:
    """Raise SourceError if a folder above listed files is a table."""
    for name, (kind, fix) in _LOGS.items():
        if _is_log(remote, f"{folder}/{name}"):
            raise SourceError(
                f"{folder if remote is None else remote.url(folder)} is {kind}: "
                f"read without {name}, its files give rows that were deleted or replaced",
                fix=f"read the table: {fix}; or list each file, to read exactly these files",
            )


def _is_log(remote: Remote | None, log: str) -> bool:
    try:
        if remote is not None and remote.call(log, lambda: kind_of(remote.fs, log)) != "directory":
            return False
        names: Any = os.listdir(log) if remote is None else walking.find(remote, log, 1)
    except CedarError:
        raise
    except Exception:  # noqa: BLE001 - the folder does not exist or cannot be listed
        return False
    return not log.endswith("/metadata") or any(n.endswith((".metadata.json", ".metadata.json.gz")) for n in names)
