"""What workers and supervisors tell each other: a few keys in the run's store."""

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
    """Where values are: those of ``control.store``, here or behind a connection."""

    def ask(self, method: str, *arguments: Any) -> Any:
        """Do what this method of ``Values`` does."""


@dataclass(frozen=True)
class Epoch:
    """A generation of workers."""

    number: int  # counts from 1
    members: tuple[Worker, ...]
    joins: tuple[Worker, ...] = ()  # those of them that get their state from a peer
    # None: continue; a checkpoint's path: every worker loads it; empty: every worker starts again
    restore: str | None = None
    # stages that have lost all their workers: only they restore, and do the steps since then again with what others
    # have logged
    lost: tuple[int, ...] = ()
    leaves: tuple[Worker, ...] = ()  # workers that have gone to other places, and end now
    line: int = 1  # the generation of the last restore of all: earlier reports do not count
    plans: int = 0  # which version of the plans made ahead is used
    detected: float = 0.0  # when the lead heard of the failure that began it, ``time.time()``; 0 without a failure

    def dead(self, places: Iterable[Worker]) -> frozenset[Worker]:
        """The places that nothing fills."""
        return frozenset(places) - set(self.members)


class Board:
    """Keys in a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def generation(self) -> int:
        """The newest; 0 before the first."""
        return self.count(keys.GENERATION(), 0)

    def begin(self, epoch: Epoch) -> None:
        """Begin a generation; only the lead does."""
        self.put(keys.EPOCH(epoch.number), asdict(epoch))
        self.count(keys.GENERATION())

    def epoch(self, number: int) -> Epoch:
        plain = self.take(keys.EPOCH(number))
        assert plain is not None, "a generation is announced before it begins"
        workers = {name: tuple(Worker(*worker) for worker in plain[name]) for name in ("members", "joins", "leaves")}
        return Epoch(**plain | workers | {"lost": tuple(plain["lost"])})

    def put(self, key: Key[T], value: T) -> None:
        self.store.ask("put", key, json.dumps(value))

    def take(self, key: Key[T]) -> T | None:
        """None while it is not there."""
        values = self.take_all([key])
        return None if values is None else values[0]

    def take_all(self, wanted: Sequence[Key[T]]) -> list[T] | None:
        """All of these, in one question; None while one is not there."""
        strings = self.store.ask("take", list(wanted))
        return None if strings is None else [json.loads(text) for text in strings]

    def first(self, key: Key[T], value: T) -> T:
        """Write unless there is something: the first writer wins; what is there then."""
        winner: T = json.loads(self.store.ask("first", key, json.dumps(value)))
        return winner

    def count(self, key: Key[int], more: int = 1) -> int:
        return int(self.store.ask("count", key, more))

    def forget(self, *gone: str) -> None:
        """Nothing asks for these any more: a store keeps its entries for the whole run."""
        self.store.ask("forget", list(gone))

    # ---- a mailbox of the lead ---------------------------------------------------------------------------------------

    def report(self, kind: str, **more: Any) -> None:
        """Tell the lead."""
        number = self.count(keys.REPORTS())
        self.put(keys.REPORT(number), {"what": kind, **more})


class Mailbox:
    """What was reported to the lead, each report once.

    A worker that is killed right before it writes leaves a number without a report. Those after it do not wait for it.
    ``patience``: seconds after which nothing comes any more under such a number.
    """

    def __init__(self, board: Board, patience: float) -> None:
        self.board, self.patience = board, patience
        self._seen = 0
        self._holes: dict[int, float] = {}

    def new(self, now: float) -> list[Mapping[str, Any]]:
        """What has come since the last call. ``now``: by a clock that only goes forward."""
        newest = self.board.count(keys.REPORTS(), 0)
        self._holes |= dict.fromkeys(range(self._seen + 1, newest + 1), now)
        self._seen = newest
        reports: list[Mapping[str, Any]] = []
        for number, since in sorted(self._holes.items()):
            plain = self.board.take(keys.REPORT(number))
            if plain is not None:
                reports.append(plain)
                self.board.forget(keys.REPORT(number))
            if plain is not None or now - since > self.patience:
                del self._holes[number]
        return reports
