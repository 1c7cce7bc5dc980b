"""Which entries make room for a new one."""

from __future__ import annotations

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
    """The entries to remove so that ``need`` more bytes fit; None where they are not to be had.

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
    oldest = sorted(entries, key=lambda e: e.used)
    over = sum(e.nbytes for e in oldest) + need - budget
    gone: list[EntryInfo] = []
    for entry in oldest:
        if over <= 0:
            break
        if entry.group != group and entry.used < since:
            gone.append(entry)
            over -= entry.nbytes
    return gone if over <= 0 else None


def surplus(entries: Iterable[EntryInfo], budget: int) -> list[EntryInfo]:
    """The least recently used entries beyond a budget, which somebody may have lowered."""
    oldest = sorted(entries, key=lambda e: e.used)
    over = sum(e.nbytes for e in oldest) - budget
    gone: list[EntryInfo] = []
    for entry in oldest:
        if over <= 0:
            break
        gone.append(entry)
        over -= entry.nbytes
    return gone


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
        """When the pass before the present one of a group began."""
        return self._starts.get(group, (0.0, 0.0))[0]
