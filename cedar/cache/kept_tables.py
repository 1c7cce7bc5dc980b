"""Kept tables: the results of passes over data, in files that workers, ranks and later runs share.

Each table is an entry of the user's store, and its name is a digest of everything that the table depends on. If that
cannot be identified, the table is saved in a temporary folder until the process ends.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import cache

import pyarrow as pa

from cedar.core.errors import WorkerError
from cedar.operators.surveys import StoredTable
from cedar.store.arrow import table_body, table_of
from cedar.store.folder import Folder
from cedar.store.keep import load, save, user_place
from cedar.store.ownership import remove_tree, temporary_folder
from cedar.store.place import name_of

_KIND = "tables"


def kept_table(key: str | None, make: Callable[[], pa.Table]) -> StoredTable:
    """Return the table of this key. If it does not exist, one process computes it and others on the machine wait.

    Raises:
        WorkerError: the table cannot be written anywhere.
    """
    name, table = name_of(_KIND, key or os.urandom(16).hex()), None
    for place in (None if key is None else user_place(), _temporary_store(os.getpid())):
        if place is None:
            continue
        with place.alone(name):
            if load(place, name, table_of) is not None:
                return StoredTable(place.path(name))
            table = make() if table is None else table
            if save(place, name, table_body(table), expected=table.nbytes):
                return StoredTable(place.path(name))
    raise WorkerError(
        "a table for lookups cannot be written to the temporary folder", fix="make room there, or set TMPDIR to another"
    )


@cache
def _temporary_store(pid: int) -> Folder:
    folder = temporary_folder(_KIND)
    atexit.register(_remove, folder, pid)
    return Folder(folder)


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not remove the parent's folder
        remove_tree(folder, _KIND)
