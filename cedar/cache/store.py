"""Store: the entries of one loader, in memory and in the places that its ``cache()`` name."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cedar.cache.bucket import Bucket
from cedar.cache.cost import kind_of, note_load
from cedar.cache.entries import storable
from cedar.cache.entry_reader import Damaged, read_entry
from cedar.cache.eviction import EntryInfo, PassTimes, leaving, surplus
from cedar.cache.fingerprints import Describer
from cedar.cache.folder import Folder
from cedar.cache.manifest import recall, remember
from cedar.cache.memory import Memory
from cedar.core.block import Block
from cedar.core.output_urls import find_place
from cedar.core.redact import redact

_log = logging.getLogger("cedar")
MEMORY_BYTES = 2 << 30  # that a loader keeps
_LISTING = 5.0  # seconds that a listing of a place is good for
_checked: dict[str, Any] = {}  # file name to the mark of the bytes whose checksum this process has found right


@dataclass(frozen=True)
class Key:
    """An entry: what was computed (the group) from which split.

    Args:
        group: of all entries of one sub-plan on one state of the data.
        split: which of them.
        ordinals: of the kept operators in this pipeline, ascending.
        columns: that are needed, in this order; None takes what is there.
    """

    group: str
    split: str
    ordinals: tuple[int, ...] = ()
    columns: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return f"{self.group}-{self.split}"


class Store:
    """Keeps entries up to a budget of bytes. Safe for threads; a directory serves several processes at a time.

    What cannot be kept is computed again: a place that cannot be written (read-only, full) is said once in the log and
    in ``notes``, and the run goes on.

    Args:
        budget: bytes in memory.
        disk: bytes per directory or URL; None for 16 GiB or 80% of what is free, whichever is less.
    """

    def __init__(self, budget: int = MEMORY_BYTES, disk: int | None = None) -> None:
        self._budget, self._disk = budget, disk
        self.sharers = 1  # processes that keep entries of their own, where all of them share the budget
        self.memory = Memory(budget)
        self.described = Describer()
        self._places: dict[str, Folder | Bucket] = {}
        self._listings: dict[str, tuple[float, dict[str, EntryInfo]]] = {}
        self._passes = PassTimes()
        self._closed: set[str] = set()  # places that could not be written
        self._remembered: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self.notes: list[str] = []
        self.hits = 0
        self.misses = 0
        self.stored_bytes = 0
        self.rejected = 0  # damaged entries, and those of other versions
        self._evicted = 0

    @staticmethod
    def within(most: int | None, memory: int | None = None, sharers: int = 1) -> Store:
        """A store that keeps at most so many bytes in each place; None leaves it to the defaults.

        Args:
            memory: of all processes together, of which half may be kept.
            sharers: how many they are.
        """
        kept = [MEMORY_BYTES, *([] if most is None else [most]), *([] if memory is None else [memory // 2])]
        store = Store(min(kept), most)
        store.sharers = sharers if memory is not None else 1
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._budget // self.sharers, self._disk)  # another process keeps its own

    def told(self) -> list[str]:
        """What a report says of the cache: nothing where there is none."""
        if not self.hits and not self.misses:
            return list(self.notes)
        counts = f"cache: {self.hits} hit(s), {self.misses} miss(es), {self.stored_bytes:,} bytes stored"
        dropped = [f"{n} {outcome}" for n, outcome in ((self.evictions, "evicted"), (self.rejected, "rejected")) if n]
        return [", ".join([counts, *dropped]), *self.notes]

    @property
    def evictions(self) -> int:
        return self._evicted + self.memory.evicted

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get(self, key: Key, where: str) -> list[Block] | None:
        """The blocks of an entry, whose arrays are the caller's; None where it is not kept.

        Raises:
            PipelineError: ``where`` is a directory that others can write.
        """
        start = time.perf_counter()
        kind = kind_of(where)
        blocks = self.memory.get(key.group, key.name) if kind == "memory" else self._load(key, where)
        blocks = blocks and _narrowed(blocks, key.columns)
        with self._lock:
            self.hits += blocks is not None
            self.misses += blocks is None
        if blocks:
            note_load(kind, sum(b.nbytes for b in blocks), time.perf_counter() - start)
        return blocks

    def _load(self, key: Key, where: str) -> list[Block] | None:
        place = self.place(where)
        with self._lock:
            self._passes.visit(key.group, key.name, time.time())
        try:
            loaded = place.load(key.name)
            if loaded is None:
                return None
            raw, mark = loaded
            known = mark is not None and _checked.get(key.name) == mark
            stored = read_entry(raw, key.name, key.ordinals, known)
        except Damaged as error:
            self._reject(place, key, where, str(error))
            return None
        except OSError as error:
            self._note(f"cache({where!r}) cannot be read: {error}", once=f"cache({where!r}) cannot be read")
            return None
        if mark is not None:
            if len(_checked) > 1 << 16:
                _checked.clear()
            _checked[key.name] = mark
        return stored.blocks

    def _reject(self, place: Folder | Bucket, key: Key, where: str, why: str) -> None:
        place.remove(key.name)
        with self._lock:
            self.rejected += 1
        self._note(f"cache({where!r}): an entry is not used and will be computed again: {why}", once=why)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def put(self, key: Key, where: str, blocks: list[Block], record: dict[str, Any] | None = None) -> None:
        """Keep the blocks of a split, where there is room.

        Args:
            key: its columns are those of the blocks.
            where: as ``cache(where)`` takes it.
            blocks: stay the caller's.
            record: for the manifest of the place.
        """
        if any(b.columns and key.columns is not None and tuple(b.columns) != key.columns for b in blocks):
            self._note(f"cache({where!r}) keeps nothing: other columns came out than the operators declare")
            return
        if kind_of(where) != "memory":
            why = storable(blocks)
            if not why:
                self._save(key, where, blocks, record)
                return
            self._note(f"cache({where!r}) keeps rows in memory: {why}")
        size = self.memory.put(key.group, key.name, blocks)
        if not size and any(b.slots for b in blocks):
            self._note(f"cache({where!r}): what does not fit into {self._budget:,} bytes of memory is computed again")
        self.stored_bytes += size

    def _save(self, key: Key, where: str, blocks: list[Block], record: dict[str, Any] | None) -> None:
        if where in self._closed:
            return
        place = self.place(where)
        try:
            size = 0
            room = partial(self._make_room, place, where, key)
            if room(sum(b.nbytes for b in blocks)):  # or it would be written in vain
                size = place.save(key.name, blocks, key.ordinals, room)
            if not size:
                self._note(f"cache({where!r}) is full: what does not fit is computed again")
                return
            with self._lock:
                self.stored_bytes += size
                self._listings[where][1][key.name] = EntryInfo(key.name, key.group, size, time.time())
            self._remember(place, where, key.group, record)
        except OSError as error:
            self._closed.add(where)
            self._note(f"cache({where!r}) cannot be written, so nothing more is kept there: {error}")

    def _remember(self, place: Folder | Bucket, where: str, group: str, record: dict[str, Any] | None) -> None:
        if record is None or (where, group) in self._remembered:
            return
        with self._lock:
            self._remembered.add((where, group))
            remember(place, record)

    def _make_room(self, place: Folder | Bucket, where: str, key: Key, size: int) -> bool:
        with self._lock:
            for fresh in (False, True):  # others may have made room, or used an entry, since it was listed
                listed = self._listed(place, where, fresh)
                others = [entry for entry in listed.values() if entry.name != key.name]
                taken = sum(e.nbytes for e in others)
                budget = self._disk if self._disk is not None else place.budget(taken)
                if taken + size <= budget:
                    return True
            over = surplus(others, budget)
            left = [e for e in others if e not in over]
            more = leaving(left, size, budget, key.group, self._passes.since(key.group))
            for entry in [*over, *(more or ())]:
                place.remove(entry.name)
                del listed[entry.name]
                self._evicted += 1
            return more is not None

    def _listed(self, place: Folder | Bucket, where: str, fresh: bool) -> dict[str, EntryInfo]:
        when, listed = self._listings.get(where, (0.0, {}))
        if fresh or time.monotonic() - when > _LISTING or where not in self._listings:
            listed = {entry.name: entry for entry in place.entries()}
            self._listings[where] = (time.monotonic(), listed)
        return listed

    # ---- what is there -----------------------------------------------------------------------------------------------

    def place(self, where: str) -> Folder | Bucket:
        """The directory or URL, which may be read.

        Raises:
            PipelineError: others can write the directory, or no filesystem is there for the URL.
        """
        place = self._places.get(where)
        if place is None:
            fs, path = find_place(where, "cache")
            place = Folder(path, where) if kind_of(where) == "disk" else Bucket(fs, path)
            place.check()
            self._places[where] = place
        return place

    def kept(self, names: Sequence[str], where: str) -> int:
        """How many of the entries are there."""
        if kind_of(where) == "memory":
            return sum(self.memory.holds(name) for name in names)
        present = {entry.name for entry in self.place(where).entries()}
        return sum(name in present for name in names)

    def records(self, where: str) -> list[dict[str, Any]]:
        """What the entries of a place were made from."""
        return recall(self.place(where))

    def _note(self, text: str, once: str = "") -> None:
        """Say something once in the log, and keep it for reports; ``once`` is what makes it another message."""
        text = redact(text)
        with self._lock:
            if text in self.notes or (once and any(once in note for note in self.notes)):
                return
            self.notes.append(text)
        _log.warning("%s", text)


def _narrowed(blocks: list[Block], columns: tuple[str, ...] | None) -> list[Block] | None:
    """The blocks with these columns; None where one of them was not kept."""
    if columns is None:
        return blocks
    if any(b.columns and not set(columns) <= b.columns.keys() for b in blocks):
        return None
    return [b.only_columns({n: b.columns[n] for n in columns}) if b.columns else b for b in blocks]
