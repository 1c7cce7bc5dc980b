"""Store: the cache entries of one loader, in memory and in the directories and URLs that its ``cache()`` calls name."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import Column, copied, read_only
from cedar.core.groups import own_each
from cedar.core.printable import redact
from cedar.core.remote import find_place
from cedar.store.blocks import read_blocks, storable, versions, write_body
from cedar.store.entry import Damaged
from cedar.store.folder import Bucket, Folder
from cedar.store.place import EntryInfo, PassTimes, Place, leaving

# ---- entries in memory -----------------------------------------------------------------------------------------------


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
        """Save an entry and return its bytes; 0 if it does not fit, or a value cannot be copied."""
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


# ---- all caches of a run ---------------------------------------------------------------------------------------------


_log = logging.getLogger("cedar")
MEMORY_BYTES = 2 << 30  # default maximum per loader
RECORD = "-" + "0" * 16  # suffix of the name of a group's record: what its entries were computed from
_MAX_RECORDS = 64  # maximum number of records to compare
SECONDS_PER_BYTE = {"disk": 1e-9, "url": 2e-8}  # estimates of reading: 1 GB/s and 0.05 GB/s


def kind_of(where: str) -> str:
    """Return the kind of a ``cache()`` argument: ``memory``, ``disk`` or ``url``.

    Examples:
        >>> [kind_of(w) for w in ("auto", "kept", "file:///tmp/kept", "s3://bucket/kept")]
        ['memory', 'disk', 'disk', 'url']
    """
    if where in ("auto", "memory"):
        return "memory"
    return "url" if "://" in where and not where.startswith(("file://", "local://")) else "disk"


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
        self.digests: dict[Any, Any] = {}  # of operators; see ``fingerprints.record_of``
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
        evicted = self.memory.evicted + sum(place.evicted for place in self._places.values())
        dropped = [f"{n} {outcome}" for n, outcome in ((evicted, "evicted"), (self.rejected, "rejected")) if n]
        return [", ".join([counts, *dropped]), *self.notes]

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get(self, key: Key, where: str) -> list[Block] | None:
        """Return the blocks of an entry; None if there is no entry. The caller may change the arrays that are writable.

        Raises:
            PipelineError: ``where`` is a directory that others can write to.
        """
        memory = kind_of(where) == "memory"
        blocks = self.memory.get(key.group, key.name) if memory else self._load(key, where)
        if blocks and key.columns is not None:
            columns = key.columns
            lacking = any(b.columns and not set(columns) <= b.columns.keys() for b in blocks)
            blocks = (
                None
                if lacking
                else [b.only_columns({n: b.columns[n] for n in columns}) if b.columns else b for b in blocks]
            )
        with self._lock:
            self.hits += blocks is not None
            self.misses += blocks is None
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
                place.put(key.group + RECORD, lambda _: record, {})
        except OSError as error:
            self._unwritable.add(where)
            self._note(f"cache({where!r}) cannot be written, so no more is stored there: {error}")

    # ---- contents ----------------------------------------------------------------------------------------------------

    def place(self, where: str) -> Place:
        """Return the store of a directory or URL, after checking that it may be read.

        Raises:
            PipelineError: others can write to the directory, or no filesystem is installed for the URL.
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
        """Return the latest records of what entries were computed from, newest last, without damaged ones."""
        place = self.place(where)
        found = sorted((each for each in place.entries() if each.name.endswith(RECORD)), key=lambda each: each.used)
        records = []
        for each in found[-_MAX_RECORDS:]:
            with contextlib.suppress(OSError, Damaged):
                if (entry := place.get(each.name, {})) is not None:
                    records.append(entry.about)
        return records

    def _note(self, text: str, once: str = "") -> None:
        """Log a message once and add it to ``notes``. Messages that contain the same ``once`` count as equal."""
        text = redact(text)
        with self._lock:
            if text in self.notes or (once and any(once in note for note in self.notes)):
                return
            self.notes.append(text)
        _log.warning("%s", text)
