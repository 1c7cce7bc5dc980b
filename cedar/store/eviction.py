"""Which entries to evict to make room for a new one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class EntryInfo:
    """An existing entry: its name, its group (same plan and same state of the data), its bytes, and its last use."""

    name: str
    group: str
    nbytes: int
    used: float


def leaving(entries: Iterable[EntryInfo], need: int, budget: int, group: str, since: float) -> list[EntryInfo] | None:
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
    return _least_recent([e for e in entries if e.group != group and e.used < since], _excess(entries, budget) + need)


def surplus(entries: Iterable[EntryInfo], budget: int) -> list[EntryInfo]:
    """Return the least recently used entries to remove if the total exceeds the budget, which may have been lowered."""
    return _least_recent(entries, _excess(entries, budget)) or []


def _excess(entries: Iterable[EntryInfo], budget: int) -> int:
    return sum(e.nbytes for e in entries) - budget


def _least_recent(entries: Iterable[EntryInfo], excess: int) -> list[EntryInfo] | None:
    """Return the least recently used entries with a total of at least ``over`` bytes; None if all have less."""
    evicted: list[EntryInfo] = []
    for entry in sorted(entries, key=lambda e: e.used):
        if excess <= 0:
            break
        evicted.append(entry)
        excess -= entry.nbytes
    return evicted if excess <= 0 else None


class PassTimes:
    """The start times of each group's passes over its splits. A new pass starts when a split is visited again."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}
        self._starts: dict[str, tuple[float, float]] = {}  # start times of the previous and the current pass

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
