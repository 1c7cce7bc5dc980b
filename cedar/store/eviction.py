"""Which entries make room for a new one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class EntryInfo:
    """An entry that is there: its name, its group (one plan on one state of the data), bytes, and last use."""

    name: str
    group: str
    nbytes: int
    used: float


def leaving(entries: Iterable[EntryInfo], need: int, budget: int, group: str, since: float) -> list[EntryInfo] | None:
    """The entries to remove so that ``need`` more bytes fit; None if there are too few that may go.

    The least recently used go first. An entry never drives out one of its own group, nor one that was used after
    ``since``: an epoch reads its splits round and round, and in a loop over more than fits, the least recently used
    entry is the very one that is needed next.

    Args:
        entries: all that are there.
        need: bytes of the new entry.
        budget: bytes that all may have.
        group: of the new entry.
        since: when the pass before the present one began.
    """
    return _oldest([e for e in entries if e.group != group and e.used < since], _over(entries, budget) + need)


def surplus(entries: Iterable[EntryInfo], budget: int) -> list[EntryInfo]:
    """The least recently used entries beyond a budget, which may have been lowered."""
    return _oldest(entries, _over(entries, budget)) or []


def _over(entries: Iterable[EntryInfo], budget: int) -> int:
    return sum(e.nbytes for e in entries) - budget


def _oldest(entries: Iterable[EntryInfo], over: int) -> list[EntryInfo] | None:
    """Entries of so many bytes; None if all have fewer."""
    gone: list[EntryInfo] = []
    for entry in sorted(entries, key=lambda e: e.used):
        if over <= 0:
            break
        gone.append(entry)
        over -= entry.nbytes
    return gone if over <= 0 else None


class PassTimes:
    """When the passes of each group over its splits began; a pass ends where a split comes again."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}
        self._starts: dict[str, tuple[float, float]] = {}  # the pass before, and the present one

    def visit(self, group: str, name: str, now: float) -> None:
        """An entry is looked for."""
        seen = self._seen.setdefault(group, set())
        if group not in self._starts:
            self._starts[group] = (now, now)
        elif name in seen:
            self._starts[group] = (self._starts[group][1], now)
            seen.clear()
        seen.add(name)

    def since(self, group: str) -> float:
        """When the pass before the present one of a group began; infinity for a group that makes no passes."""
        return self._starts.get(group, (math.inf, math.inf))[0]
