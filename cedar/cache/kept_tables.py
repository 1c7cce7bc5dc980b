"""Kept tables: the results of passes over data, in files that workers, ranks and later runs share.

Each is an Arrow file in a folder of its own in the user's cache folder, named by a key of everything that it depends
on. A table without a key is in a temporary folder until the process ends. The least recently used are removed first.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from functools import cache

import pyarrow as pa

from cedar.cache.fingerprints import Describer, fingerprint
from cedar.core.digests import digest_of
from cedar.core.skip import Skip
from cedar.datasets.base import Read
from cedar.datasets.kept_file import alone
from cedar.operators.stored import StoredTable
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.store.eviction import EntryInfo, surplus
from cedar.store.ownership import is_owned, make_owned, remove_tree, temporary_folder
from cedar.store.private_folder import private_folder
from cedar.store.whole_files import temporary_name

KIND = "tables 1"
_FOLDER, _NAME = "tables", "table.arrow"
_BUDGET = 8 << 30  # bytes, of all tables of the user

_log = logging.getLogger("cedar")


def key_of(node: Node, on_error: Skip | None, *asked: object) -> str | None:
    """Identifies the rows of a node under a policy, and what is asked of them; None if a part cannot be identified."""
    record = Describer()(fingerprint(node, node))
    sources = [each.operator.source for each in graph.sources(node) if isinstance(each.operator, Read)]
    identities = [source.identity() if hasattr(source, "identity") else None for source in sources]
    if record.unknown or any(identity is None for identity in identities):
        return None
    return digest_of([record.key(), record.several, identities, repr(on_error), *map(repr, asked)])[:32]


def kept_table(key: str | None, make: Callable[[], pa.Table]) -> StoredTable:
    """The table of this key. One process makes it if it does not exist; others on the machine wait for that."""
    folder = None if key is None else private_folder(_FOLDER)
    if folder is None or key is None:
        return StoredTable(_written(make(), os.path.join(_temporary(), f"{os.urandom(8).hex()}.arrow")))
    own = os.path.join(folder, key)
    path = os.path.join(own, _NAME)
    try:
        make_owned(own, KIND)
    except OSError as error:
        _log.warning("the table %s cannot be kept: %s", path, error)
        return kept_table(None, make)
    with alone(path):
        if _whole(path):
            with contextlib.suppress(OSError):  # the time of its last use
                os.utime(path)
        else:
            _written(make(), path)
    _evict(folder, own)
    return StoredTable(path)


def _whole(path: str) -> bool:
    try:
        with pa.memory_map(path) as source:
            pa.ipc.open_file(source)
    except (OSError, pa.ArrowException):
        return False
    return True


def _written(table: pa.Table, path: str) -> str:
    fresh = temporary_name(path)
    with pa.OSFile(fresh, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    os.replace(fresh, path)
    return path


def _evict(folder: str, used: str) -> None:
    """Remove the least recently used tables while all exceed the budget; never the one in use."""
    for old in surplus(_entries(folder), _BUDGET):
        if old.name != used:
            remove_tree(old.name, KIND)


def _entries(folder: str) -> Iterable[EntryInfo]:
    for each in os.scandir(folder):
        with contextlib.suppress(OSError):
            if is_owned(each.path, KIND):
                status = os.stat(os.path.join(each.path, _NAME))
                yield EntryInfo(each.path, "", status.st_size, status.st_mtime)


@cache
def _of_process(pid: int) -> str:
    folder = temporary_folder(KIND.partition(" ")[0])
    atexit.register(_remove, folder, pid)
    return folder


def _temporary() -> str:
    return _of_process(os.getpid())


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child leaves what is the parent's
        remove_tree(folder, KIND.partition(" ")[0])
