"""Cache entries in memory. They never change: runs get read-only views of ndarrays and copies of other columns."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column, copied, read_only
from cedar.core.groups import own_each
from cedar.store.place import EntryInfo, PassTimes, leaving


class Memory:
    """Stores at most ``budget`` bytes. The least recently used entries are evicted first, if ``leaving`` allows it."""

    def __init__(self, budget: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._entries: dict[str, tuple[EntryInfo, list[Block]]] = {}
        self._passes = PassTimes()
        self._lock = threading.Lock()
        self._room = budget  # the current limit in bytes, at most the budget
        self.evicted = 0

    def get(self, group: str, name: str) -> list[Block] | None:
        """Return the blocks of an entry. The caller may change those of their arrays that are writable.

        ndarrays are read-only views, which ``writeable`` copies before they are delivered. Other columns are copied,
        since tensors that share Arrow's memory are writable.
        """
        with self._lock:
            now = self._clock()
            self._passes.visit(group, name, now)
            kept = self._entries.get(name)
            if kept is None:
                return None
            entry, blocks = kept
            self._entries[name] = (EntryInfo(name, group, entry.nbytes, now), blocks)
        given = []
        for block in blocks:
            arrays = {name: read_only(column) for name, column in block.columns.items() if _is_plain(column)}
            others = {name: column for name, column in block.columns.items() if name not in arrays}
            columns = arrays | own_each(others, _copy_column)
            given.append(block.only_columns({name: columns[name] for name in block.columns}))
        return given

    def holds(self, name: str) -> bool:
        return name in self._entries

    @property
    def nbytes(self) -> int:
        """Return the bytes of all entries."""
        with self._lock:
            return sum(entry.nbytes for entry, _ in self._entries.values())

    def limit(self, room: int) -> None:
        """Limit the entries to ``room`` bytes from now on, or to the budget if it is smaller.

        The most recently used entries are evicted first, because passes are cyclic and need these entries last.
        """
        with self._lock:
            self._room = min(room, self._budget)
            latest = sorted((entry for entry, _ in self._entries.values()), key=lambda entry: entry.used, reverse=True)
            over = sum(entry.nbytes for entry in latest) - self._room
            for entry in latest:
                if over <= 0:
                    break
                del self._entries[entry.name]
                self.evicted += 1
                over -= entry.nbytes

    def put(self, group: str, name: str, blocks: list[Block]) -> int:
        """Save an entry and return its bytes; 0 if there is no room, or an object cannot be copied."""
        size = sum(b.nbytes for b in blocks)
        with self._lock:
            if self._to_evict(group, name, size) is None:
                return 0
        try:
            kept = [block.only_columns(own_each(block.columns, _copy_column)) for block in blocks]
        except Exception:  # noqa: BLE001 - copying a user's object may raise anything
            return 0
        with self._lock:
            evicted_entries = self._to_evict(group, name, size)
            if evicted_entries is None:  # meanwhile, other threads have filled the space
                return 0
            for entry in evicted_entries:
                del self._entries[entry.name]
            self._entries[name] = (EntryInfo(name, group, size, self._clock()), kept)
            self.evicted += len(evicted_entries)
        return size

    def _to_evict(self, group: str, name: str, size: int) -> list[EntryInfo] | None:
        others = [entry for entry, _ in self._entries.values() if entry.name != name]
        return leaving(others, size, self._room, group, self._passes.since(group))


def _is_plain(column: Column) -> bool:
    return isinstance(column, np.ndarray) and not column.dtype.hasobject


def _copy_column(column: Column) -> Column:
    """Copy a column; of a slice, only its rows."""
    if isinstance(column, pa.Array):
        return pa.concat_arrays([column, column.slice(0, 0)])  # a single array would not be copied
    if _is_plain(column):
        return copied(column)
    own = np.empty_like(column)
    for i, value in enumerate(column.flat):
        own.flat[i] = copy.deepcopy(value)
    return own
