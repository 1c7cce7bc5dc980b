"""A place where entries are: a folder, or a URL. What is common to both: checks, room, locks, and the last use."""

from __future__ import annotations

import contextlib
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from cedar.core.forks import Lock
from cedar.store.entry import FORMAT, Damaged, Entry, OtherVersion, Versions, Write, opened
from cedar.store.eviction import EntryInfo, PassTimes, leaving, surplus

KIND = f"store {FORMAT}"
INSIDE = f".cedar-store-{FORMAT}"  # hidden: no reader takes what is in it for data
SUFFIX = ".arrow"
NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.arrow")
BYTES = 16 << 30  # of all entries of a place, at most, if no limit is given
_LISTING = 5.0  # seconds that a listing of a place is good for
_checked: dict[str, Any] = {}  # name to the mark of the bytes whose checksum this process has found right


def name_of(group: Any, entry: Any) -> str:
    """The name of an entry: digests of what it has in common with others, and of what is its own; both as JSON.

    Examples:
        >>> name_of("machine", ["x86"]).partition("-")[0] == name_of("machine", ["arm"]).partition("-")[0]
        True
    """
    return "-".join(sha256(json.dumps(part).encode()).hexdigest()[:16] for part in (group, entry))


class Place(ABC):
    """Entries in a marked folder of their own. Safe for threads; several processes may use it at a time.

    Args:
        shown: what messages call it.
        limit: bytes of all entries; None leaves it to the place.
        least: bytes that an entry counts for at least, so that small ones do not become too many.
    """

    def __init__(self, shown: str, limit: int | None = None, least: int = 0) -> None:
        self.shown = shown
        self._limit, self._least = limit, least
        self._passes = PassTimes()
        self._listed: dict[str, EntryInfo] = {}
        self._listed_at = -_LISTING
        self._lock = Lock()
        self.evicted = 0
        self.refuses = False  # it could not be written, which was logged

    # ---- what a place can do -----------------------------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Raises PipelineError if the place must not be used."""

    @abstractmethod
    def entries(self) -> list[EntryInfo]:
        """What is there."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an entry that cedar wrote; those who read it continue."""

    @abstractmethod
    def alone(self, name: str) -> contextlib.AbstractContextManager[None]:
        """One process at a time makes an entry, as far as the place has locks."""

    @abstractmethod
    def _load(self, name: str) -> tuple[Any, Any] | None:
        """The bytes of an entry, and a mark that differs after every change of them; None if it does not exist."""

    @abstractmethod
    def _save(self, name: str, write: Write, versions: Versions, room: Callable[[int], bool]) -> int:
        """Write an entry if there is room for its bytes, and return them; else 0. Raises OSError."""

    @abstractmethod
    def _budget(self, taken: int) -> int:
        """The bytes that entries may have when the user gave no number; ``taken`` are in use already."""

    # ---- what all places do ------------------------------------------------------------------------------------------

    def get(self, name: str, versions: Versions) -> Entry | None:
        """An entry; None if it does not exist. Its checksum is computed once per process.

        Raises:
            Damaged: it cannot be used, and was removed, unless another version wrote it.
            OSError: it cannot be read.
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
        """A pass over the entries of a group looks for this one; entries of the pass are not evicted for each other."""
        with self._lock:
            self._passes.visit(_group(name), name, time.time())

    def put(self, name: str, write: Write, versions: Versions, expected: int = 0) -> int:
        """Keep an entry if there is room; the bytes that it has, or 0.

        Args:
            name: as ``name_of`` makes them.
            write: the body.
            versions: that it can be read by.
            expected: bytes; if there is no room for so many, nothing is written.

        Raises:
            OSError: it cannot be written.
        """
        room = partial(self._make_room, name)
        size = self._save(name, write, versions, room) if room(expected) else 0
        if size:
            with self._lock:
                self._listed[name] = self._info(name, size, time.time())
        return size

    def _make_room(self, name: str, size: int) -> bool:
        with self._lock:
            for fresh in (False, True):  # others may have made room, or used an entry, since it was listed
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
