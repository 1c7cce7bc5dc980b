"""Store: the cache entries of one loader, in memory and in the directories and URLs that its ``cache()`` calls name."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cedar.cache.cost import kind_of, note_load
from cedar.cache.entries import storable, versions, write_body
from cedar.cache.entry_reader import read_blocks
from cedar.cache.fingerprints import Describer
from cedar.cache.memory import Memory
from cedar.cache.reasons import recall, remember
from cedar.core.block import Block
from cedar.core.output_urls import find_place
from cedar.core.redact import redact
from cedar.store.bucket import Bucket
from cedar.store.entry import Damaged
from cedar.store.folder import Folder
from cedar.store.place import Place

_log = logging.getLogger("cedar")
MEMORY_BYTES = 2 << 30  # default maximum per loader


@dataclass(frozen=True)
class Key:
    """Identifies an entry: the computation (the group) and the split.

    Args:
        group: identifies a part of a pipeline on one state of the data.
        split: identifies the split.
        ordinals: the cached operators in this pipeline, ascending.
        columns: the required columns, in this order; None for all columns of the entry.
    """

    group: str
    split: str
    ordinals: tuple[int, ...] = ()
    columns: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return f"{self.group}-{self.split}"


class Store:
    """Stores entries up to a limit of bytes. Safe for threads; several processes may share a directory.

    Results that cannot be stored are recomputed when needed. If a directory cannot be written to (read-only, full), the
    store reports that once in the log and in ``notes``, and the run continues.

    Args:
        budget: maximum bytes in memory.
        disk: maximum bytes per directory or URL; None means the smaller of 16 GiB and 80% of the free space.
    """

    def __init__(self, budget: int = MEMORY_BYTES, disk: int | None = None) -> None:
        self._budget, self._disk = budget, disk
        self.sharers = 1  # number of processes that divide the budget; each has separate entries
        self.memory = Memory(budget)
        self.described = Describer()
        self._places: dict[str, Place] = {}
        self._unwritable: set[str] = set()  # directories and URLs that could not be written to
        self._remembered: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self.notes: list[str] = []
        self.hits = 0
        self.misses = 0
        self.stored_bytes = 0
        self.rejected = 0  # entries that are damaged or of other versions

    @staticmethod
    def within(most: int | None, memory: int | None = None, sharers: int = 1) -> Store:
        """Return a store with at most ``most`` bytes in memory and per directory or URL; None uses the defaults.

        Args:
            memory: total memory of all processes in bytes; entries use at most half of it.
            sharers: the number of these processes.
        """
        kept = [MEMORY_BYTES, *([] if most is None else [most]), *([] if memory is None else [memory // 2])]
        store = Store(min(kept), most)
        store.sharers = sharers if memory is not None else 1
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._budget // self.sharers, self._disk)  # another process has separate entries

    def describe(self) -> list[str]:
        """Return the lines of a report about the cache; empty if it was not used."""
        if not self.hits and not self.misses:
            return list(self.notes)
        counts = f"cache: {self.hits} hit(s), {self.misses} miss(es), {self.stored_bytes:,} bytes stored"
        dropped = [f"{n} {outcome}" for n, outcome in ((self.evictions, "evicted"), (self.rejected, "rejected")) if n]
        return [", ".join([counts, *dropped]), *self.notes]

    @property
    def evictions(self) -> int:
        return self.memory.evicted + sum(place.evicted for place in self._places.values())

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get(self, key: Key, where: str) -> list[Block] | None:
        """Return the blocks of an entry; None if there is no entry. The caller may change the arrays that are writable.

        Raises:
            PipelineError: ``where`` is a directory that others can write to.
        """
        start = time.perf_counter()
        kind = kind_of(where)
        blocks = self.memory.get(key.group, key.name) if kind == "memory" else self._load(key, where)
        blocks = blocks and _select_columns(blocks, key.columns)
        with self._lock:
            self.hits += blocks is not None
            self.misses += blocks is None
        if blocks:
            note_load(kind, sum(b.nbytes for b in blocks), time.perf_counter() - start)
        return blocks

    def _load(self, key: Key, where: str) -> list[Block] | None:
        place = self.place(where)
        place.visit(key.name)
        try:
            entry = place.get(key.name, versions())
            return None if entry is None else read_blocks(entry, key.ordinals)
        except Damaged as error:
            place.remove(key.name)
            with self._lock:
                self.rejected += 1
            self._note(f"cache({where!r}): an entry cannot be used and will be recomputed: {error}", once=str(error))
        except OSError as error:
            self._note(f"cache({where!r}) cannot be read: {error}", once=f"cache({where!r}) cannot be read")
        return None

    # ---- writing -----------------------------------------------------------------------------------------------------

    def put(self, key: Key, where: str, blocks: list[Block], record: dict[str, Any] | None = None) -> None:
        """Store the blocks of a split if there is room.

        Args:
            key: the key; its columns must be those of the blocks.
            where: the argument of ``cache(where)``.
            blocks: the blocks; the caller may still change them afterward.
            record: what the entry was computed from.
        """
        if any(b.columns and key.columns is not None and tuple(b.columns) != key.columns for b in blocks):
            self._note(f"cache({where!r}) stores nothing: the operators returned other columns than they declare")
            return
        if kind_of(where) != "memory":
            why = storable(blocks)
            if not why:
                self._save(key, where, blocks, record)
                return
            self._note(f"cache({where!r}) stores rows in memory: {why}")
        size = self.memory.put(key.group, key.name, blocks)
        if not size and any(b.slots for b in blocks):
            self._note(f"cache({where!r}): rows beyond {self._budget:,} bytes of memory are computed again")
        self.stored_bytes += size

    def _save(self, key: Key, where: str, blocks: list[Block], record: dict[str, Any] | None) -> None:
        if where in self._unwritable:
            return
        place = self.place(where)
        try:
            expected = sum(b.nbytes for b in blocks)
            size = place.put(key.name, lambda sink: write_body(blocks, sink, key.ordinals), versions(), expected)
            if not size:
                self._note(f"cache({where!r}) is full: further rows are computed again in every epoch")
                return
            with self._lock:
                self.stored_bytes += size
                known = record is None or (where, key.group) in self._remembered
                self._remembered.add((where, key.group))
            if record is not None and not known:
                remember(place, record)
        except OSError as error:
            self._unwritable.add(where)
            self._note(f"cache({where!r}) cannot be written, so no more is stored there: {error}")

    # ---- contents ----------------------------------------------------------------------------------------------------

    def place(self, where: str) -> Place:
        """Return the store of a directory or URL, after checking that it may be read.

        Raises:
            PipelineError: others can write to the directory, or there is no filesystem for the URL.
        """
        place = self._places.get(where)
        if place is None:
            fs, path = find_place(where, "cache")
            shown = f"cache({where!r})"
            place = Folder(path, shown, self._disk) if kind_of(where) == "disk" else Bucket(fs, path, self._disk)
            place.check()
            self._places[where] = place
        return place

    def kept(self, names: Sequence[str], where: str) -> int:
        """Return how many entries of these names exist."""
        if kind_of(where) == "memory":
            return sum(self.memory.holds(name) for name in names)
        present = {entry.name for entry in self.place(where).entries()}
        return sum(name in present for name in names)

    def records(self, where: str) -> list[dict[str, Any]]:
        """Return the records of what the entries of a directory or URL were computed from."""
        return recall(self.place(where))

    def _note(self, text: str, once: str = "") -> None:
        """Log a message once and add it to ``notes``. Messages that contain the same ``once`` count as equal."""
        text = redact(text)
        with self._lock:
            if text in self.notes or (once and any(once in note for note in self.notes)):
                return
            self.notes.append(text)
        _log.warning("%s", text)


def _select_columns(blocks: list[Block], columns: tuple[str, ...] | None) -> list[Block] | None:
    """Return the blocks with only these columns; None if the entry lacks one of them."""
    if columns is None:
        return blocks
    if any(b.columns and not set(columns) <= b.columns.keys() for b in blocks):
        return None
    return [b.only_columns({n: b.columns[n] for n in columns}) if b.columns else b for b in blocks]
