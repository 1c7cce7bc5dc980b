"""Workers and supervisors communicate through keys in the run's store; this module gets and sets them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.protocol import Key
from cedar.trainers.resilient.schedule import Worker

T = TypeVar("T")


class Store(Protocol):
    """A key-value store with the methods of ``control.store.Values``, in this process or behind a connection."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of ``Values``."""


@dataclass(frozen=True)
class Epoch:
    """A generation: the workers that train together until the next failure, restore, join or move."""

    number: int  # counts from 1
    members: tuple[Worker, ...]
    joins: tuple[Worker, ...] = ()  # new members, which get their state from a peer
    # None: continue training; a path: every worker loads this checkpoint; empty: every worker starts from step 0
    restore: str | None = None
    # stages that have lost all their workers; only their new workers load the checkpoint, and redo the steps after it
    # from the messages that other stages have logged
    lost: tuple[int, ...] = ()
    leaves: tuple[Worker, ...] = ()  # workers that end because they have moved to another position
    line: int = 1  # generation in which all stages were last restored; earlier reports are ignored
    plans: int = 0  # version of the precomputed plans to use
    detected: float = 0.0  # when a supervisor detected the failure that caused this generation; 0: no failure

    def dead(self, places: Iterable[Worker]) -> frozenset[Worker]:
        """Return the positions in the grid that have no worker."""
        return frozenset(places) - set(self.members)


class Board:
    """Typed access to the keys of a run's store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def generation(self) -> int:
        """Return the number of the newest generation; 0 before the first."""
        return self.increment(keys.GENERATION(), 0)

    def begin(self, epoch: Epoch) -> None:
        """Begin a generation; only the coordinator calls this."""
        self.put(keys.EPOCH(epoch.number), asdict(epoch))
        self.increment(keys.GENERATION())

    def epoch(self, number: int) -> Epoch:
        plain = self.get(keys.EPOCH(number))
        assert plain is not None, "a generation is announced before it begins"
        workers = {name: tuple(Worker(*worker) for worker in plain[name]) for name in ("members", "joins", "leaves")}
        return Epoch(**plain | workers | {"lost": tuple(plain["lost"])})

    def put(self, key: Key[T], value: T) -> None:
        self.store.call("put", key, json.dumps(value))

    def get(self, key: Key[T]) -> T | None:
        """Return the value of a key, or None if it is not set."""
        values = self.get_all([key])
        return None if values is None else values[0]

    def get_all(self, wanted: Sequence[Key[T]]) -> list[T] | None:
        """Return the values of all keys in one request, or None if any is not set."""
        strings = self.store.call("get", list(wanted))
        return None if strings is None else [json.loads(text) for text in strings]

    def put_if_absent(self, key: Key[T], value: T) -> T:
        """Set a key unless it is already set, and return its value: the first writer wins."""
        winner: T = json.loads(self.store.call("put_if_absent", key, json.dumps(value)))
        return winner

    def increment(self, key: Key[int], more: int = 1) -> int:
        return int(self.store.call("increment", key, more))

    def delete(self, *gone: str) -> None:
        """Delete keys. Keys that are not deleted stay in the store for the whole run."""
        self.store.call("delete", list(gone))

    # ---- the coordinator's mailbox -----------------------------------------------------------------------------------

    def report(self, kind: str, **more: Any) -> None:
        """Send a report to the coordinator."""
        number = self.increment(keys.REPORTS())
        self.put(keys.REPORT(number), {"what": kind, **more})


class Mailbox:
    """Reads the reports to the coordinator, each once.

    A worker reserves a report number and then writes the report. If it is killed in between, the report never appears;
    later reports are read nevertheless. ``patience``: seconds after which the mailbox stops looking for it.
    """

    def __init__(self, board: Board, patience: float) -> None:
        self.board, self.patience = board, patience
        self._seen = 0
        self._unread: dict[int, float] = {}

    def read_new(self, now: float) -> list[Mapping[str, Any]]:
        """Return the reports since the last call. ``now``: time of a monotonic clock."""
        newest = self.board.increment(keys.REPORTS(), 0)
        self._unread |= dict.fromkeys(range(self._seen + 1, newest + 1), now)
        self._seen = newest
        reports: list[Mapping[str, Any]] = []
        for number, since in sorted(self._unread.items()):
            plain = self.board.get(keys.REPORT(number))
            if plain is not None:
                reports.append(plain)
                self.board.delete(keys.REPORT(number))
            if plain is not None or now - since > self.patience:
                del self._unread[number]
        return reports
