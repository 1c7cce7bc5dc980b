"""Entries in memory. They share nothing with the rows of a run, which functions and trainers may write into."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from cedar import buffers
from cedar.block import Block
from cedar.columns import Column
from cedar.execution.keeping.evicting import Held, Passes, leaving
from cedar.groups.column import own_each


class Memory:
    """Entries up to ``budget`` bytes; the least recently used go first, where they may (see ``leaving``)."""

    def __init__(self, budget: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._entries: dict[str, tuple[Held, list[Block]]] = {}
        self._passes = Passes()
        self._lock = threading.Lock()
        self.evicted = 0

    def get(self, group: str, name: str) -> list[Block] | None:
        """The blocks of an entry, which are the caller's."""
        with self._lock:
            now = self._clock()
            self._passes.visit(group, name, now)
            found = self._entries.get(name)
            if found is None:
                return None
            held, blocks = found
            self._entries[name] = (Held(name, group, held.nbytes, now), blocks)
        return _copied(blocks)

    def holds(self, name: str) -> bool:
        return name in self._entries

    def put(self, group: str, name: str, blocks: list[Block]) -> int:
        """Bytes kept; 0 where there is no room, or an object cannot be copied."""
        size = sum(b.nbytes for b in blocks)
        with self._lock:
            if self._leaving(group, name, size) is None:
                return 0
        try:
            kept = _copied(blocks)
        except Exception:  # noqa: BLE001 - whatever the copy of a user's object raises
            return 0
        with self._lock:
            gone = self._leaving(group, name, size)
            if gone is None:  # others took the room meanwhile
                return 0
            for held in gone:
                del self._entries[held.name]
            self._entries[name] = (Held(name, group, size, self._clock()), kept)
            self.evicted += len(gone)
        return size

    def _leaving(self, group: str, name: str, size: int) -> list[Held] | None:
        others = [held for held, _ in self._entries.values() if held.name != name]
        return leaving(others, size, self._budget, group, self._passes.since(group))


def _copied(blocks: list[Block]) -> list[Block]:
    return [b.only_columns(own_each(b.columns, _own)) for b in blocks]


def _own(column: Column) -> Column:
    """A copy of the rows alone: a tensor made of a batch may be written, and then so is the memory that it shares."""
    if isinstance(column, pa.Array):
        return pa.concat_arrays([column, column.slice(0, 0)])  # two, for one alone is not copied
    if not column.dtype.hasobject:
        made = buffers.empty(column.shape, column.dtype)  # an entry is copied in every epoch
        np.copyto(made, column)
        return made
    own = np.empty_like(column)
    for i, value in enumerate(column.flat):
        own.flat[i] = copy.deepcopy(value)
    return own
