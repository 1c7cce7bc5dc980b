"""The base class of stores in a folder or at a URL: it checks and evicts entries, and records their last use."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

from cedar.core.process import Lock
from cedar.store.entry import FORMAT, Damaged, Entry, OtherVersion, Versions, Write, opened

KIND = f"store {FORMAT}"
INSIDE = f".cedar-store-{FORMAT}"  # a hidden folder, which readers of data skip
SUFFIX = ".arrow"
NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.arrow")
BYTES = 16 << 30  # default maximum of the bytes of all entries
_LISTING = 5.0  # seconds for which the list of entries is reused
_checked: dict[str, Any] = {}  # by entry name: the value from ``_load`` for which the checksum was verified


def name_of(group: Any, entry: Any) -> str:
    """Return the name of an entry: digests of the group's parameters and of the entry's own parameters, both JSON.

    Examples:
        >>> name_of("machine", ["x86"]).partition("-")[0] == name_of("machine", ["arm"]).partition("-")[0]
        True
    """
    return "-".join(sha256(json.dumps(part).encode()).hexdigest()[:16] for part in (group, entry))


# ---- eviction --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EntryInfo:
    """An existing entry: its name, its group (same plan and same state of the data), its bytes, and its last use."""

    name: str
    group: str
    nbytes: int
    used: float


def leaving(entries: Sequence[EntryInfo], need: int, budget: int, group: str, since: float) -> list[EntryInfo] | None:
    """Return the entries to remove so that ``need`` more bytes fit; None if too few entries may be removed.

    The least recently used entries are removed first, but never one of the new entry's group or one that was used after
    ``since``. Epochs read their splits cyclically, so within a group, the least recently used entry is needed next.

    Args:
        entries: all existing entries.
        need: bytes of the new entry.
        budget: maximum bytes of all entries.
        group: the group of the new entry.
        since: the time at which the group's previous pass over its splits started.
    """
    return _least_recent(
        [e for e in entries if e.group != group and e.used < since], sum(e.nbytes for e in entries) + need - budget
    )


def surplus(entries: Sequence[EntryInfo], budget: int) -> list[EntryInfo]:
    """Return the least recently used entries to remove if the total exceeds the budget, which may have been lowered."""
    return _least_recent(entries, sum(e.nbytes for e in entries) - budget) or []


def _least_recent(entries: Iterable[EntryInfo], excess: int) -> list[EntryInfo] | None:
    """Return the least recently used entries with a total of at least ``excess`` bytes; None if all have less."""
    evicted: list[EntryInfo] = []
    for entry in sorted(entries, key=lambda e: e.used):
        if excess <= 0:
            break
        evicted.append(entry)
        excess -= entry.nbytes
    return evicted if excess <= 0 else None


@dataclass
class PassTimes:
    """The start times of each group's passes over its splits. A new pass starts when a split is visited again."""

    _seen: dict[str, set[str]] = field(default_factory=dict)
    _starts: dict[str, tuple[float, float]] = field(default_factory=dict)  # of the previous and the current pass

    def visit(self, group: str, name: str, now: float) -> None:
        """Record that an entry is looked up."""
        seen = self._seen.setdefault(group, set())
        if group not in self._starts:
            self._starts[group] = (now, now)
        elif name in seen:
            self._starts[group] = (self._starts[group][1], now)
            seen.clear()
        seen.add(name)

    def since(self, group: str) -> float:
        """Return when the previous pass of a group started; infinity for a group that was never visited."""
        return self._starts.get(group, (math.inf, math.inf))[0]


# ---- places ----------------------------------------------------------------------------------------------------------


class Place(ABC):
    """A store whose entries are in a marked folder. Several threads and processes may use it at the same time.

    Args:
        shown: how messages name it.
        limit: maximum bytes of all entries; None means the default of the subclass.
        least: minimum bytes that each entry counts as, which limits the number of small entries.
    """

    def __init__(self, shown: str, limit: int | None = None, least: int = 0) -> None:
        self.shown = shown
        self._limit, self._least = limit, least
        self._passes = PassTimes()
        self._listed: dict[str, EntryInfo] = {}
        self._listed_at = -_LISTING
        self._lock = Lock()
        self.evicted = 0
        self.refuses = False  # whether a write has failed and was logged

    # ---- defined by subclasses ---------------------------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Raise PipelineError if the store must not be used."""

    @abstractmethod
    def entries(self) -> list[EntryInfo]:
        """Return the existing entries."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an entry that cedar wrote. Processes that have it open can still read it."""

    @abstractmethod
    def alone(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Let one process at a time run the ``with`` block for an entry, if the store has locks."""

    @abstractmethod
    def _load(self, name: str) -> tuple[Any, Any] | None:
        """Return the bytes of an entry, and a value that changes if they change; None if the entry does not exist."""

    @abstractmethod
    def _save(self, name: str, write: Write, versions: Versions, room: Callable[[int], bool]) -> int:
        """Write an entry and return its size; 0 if ``room`` rejects that size. Raises OSError."""

    @abstractmethod
    def _budget(self, taken: int) -> int:
        """Return the default limit for all entries in bytes, given that ``taken`` bytes are in use."""

    # ---- common to all stores ----------------------------------------------------------------------------------------

    def get(self, name: str, versions: Versions) -> Entry | None:
        """Return an entry; None if it does not exist. Its checksum is verified once per process.

        Raises:
            Damaged: the entry cannot be used. It was removed, unless another version wrote it.
            OSError: the entry cannot be read.
        """
        loaded = self._load(name)
        if loaded is None:
            return None
        raw, mark = loaded
        try:
            entry = opened(raw, name, versions, mark is not None and _checked.get(name) == mark)
        except OtherVersion:
            raise
        except Damaged:
            self.remove(name)
            raise
        if mark is not None:
            if len(_checked) > 1 << 16:
                _checked.clear()
            _checked[name] = mark
        return entry

    def _info(self, name: str, size: int, used: float) -> EntryInfo:
        return EntryInfo(name, _group(name), max(size, self._least), used)

    def visit(self, name: str) -> None:
        """Record that a pass over a group's entries uses this entry. Entries of one pass do not evict each other."""
        with self._lock:
            self._passes.visit(_group(name), name, time.time())

    def put(self, name: str, write: Write, versions: Versions, expected: int = 0) -> int:
        """Save an entry if there is room; return its bytes, or 0.

        Args:
            name: a name from ``name_of``.
            write: writes the body.
            versions: the versions that may read it.
            expected: estimated bytes of the entry; nothing is written if they do not fit.

        Raises:
            OSError: the entry cannot be written.
        """
        room = partial(self._make_room, name)
        size = self._save(name, write, versions, room) if room(expected) else 0
        if size:
            with self._lock:
                self._listed[name] = self._info(name, size, time.time())
        return size

    def _make_room(self, name: str, size: int) -> bool:
        with self._lock:
            for fresh in (False, True):  # other processes may have changed entries since the last listing
                if fresh or time.monotonic() - self._listed_at > _LISTING:
                    self._listed = {entry.name: entry for entry in self.entries()}
                    self._listed_at = time.monotonic()
                others = [entry for entry in self._listed.values() if entry.name != name]
                taken = sum(entry.nbytes for entry in others)
                budget = self._limit if self._limit is not None else self._budget(taken)
                if taken + size <= budget:
                    return True
            over = surplus(others, budget)
            since = self._passes.since(_group(name))
            group = "" if since == float("inf") else _group(name)
            more = leaving([e for e in others if e not in over], size, budget, group, since)
            for entry in [*over, *(more or ())]:
                self.remove(entry.name)
                del self._listed[entry.name]
                self.evicted += 1
            return more is not None


def _group(name: str) -> str:
    return name.partition("-")[0]
