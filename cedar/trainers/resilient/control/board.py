"""What workers and supervisors tell each other: a few keys in a store that lives in a process of its own."""

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
    """The part of torch's stores that is used."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, wanted: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...


@dataclass(frozen=True)
class Epoch:
    """A generation of workers.

    Args:
        number: counts from 1.
        members: who is alive.
        joins: those of them that get their state from a peer.
        restore: None: go on; a checkpoint's path: everybody loads it; empty: everybody begins anew.
        lost: stages that have lost all their workers: only they restore, and do the steps since then again with what
            others have logged.
        leaves: workers that have gone to other places, and end now.
        line: the generation of the last restore of all: what was told before it does not count.
        plans: which version of the plans made ahead is used.
        detected: when the lead heard of the failure that began it, ``time.time()``; 0 without a failure.
    """

    number: int
    members: tuple[Worker, ...]
    joins: tuple[Worker, ...] = ()
    restore: str | None = None
    lost: tuple[int, ...] = ()
    leaves: tuple[Worker, ...] = ()
    line: int = 1
    plans: int = 0
    detected: float = 0.0

    def dead(self, places: Iterable[Worker]) -> frozenset[Worker]:
        """The places that nobody fills."""
        return frozenset(places) - set(self.members)


class Board:
    """Keys in a store.

    Args:
        store: any of torch's.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # ---- generations -------------------------------------------------------------------------------------------------

    def generation(self) -> int:
        """The newest; 0 before the first."""
        return int(self.store.add(keys.GENERATION(), 0))

    def begin(self, epoch: Epoch) -> None:
        """Begin a generation; only the lead does."""
        self.store.set(keys.EPOCH(epoch.number), json.dumps(asdict(epoch)))
        self.store.add(keys.GENERATION(), 1)

    def epoch(self, number: int) -> Epoch:
        plain = json.loads(self.store.get(keys.EPOCH(number)))
        plain["members"] = tuple(Worker(*worker) for worker in plain["members"])
        plain["joins"] = tuple(Worker(*worker) for worker in plain["joins"])
        plain["leaves"] = tuple(Worker(*worker) for worker in plain["leaves"])
        plain["lost"] = tuple(plain["lost"])
        return Epoch(**plain)

    # ---- values by name ----------------------------------------------------------------------------------------------

    def put(self, key: Key[T], value: T) -> None:
        self.store.set(key, json.dumps(value))

    def take(self, key: Key[T]) -> T | None:
        """None while it is not there."""
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def take_all(self, wanted: Sequence[Key[T]]) -> list[T] | None:
        """All of these, in two questions however many they are; None while one is not there."""
        names: list[str] = list(wanted)
        return [json.loads(value) for value in self.store.multi_get(names)] if self.store.check(names) else None

    def first(self, key: Key[T], value: T) -> T:
        """Write unless there is something: the first writer wins; what is there then."""
        found: T = json.loads(self.store.compare_set(key, "", json.dumps(value)))
        return found

    def count(self, key: Key[int], more: int = 1) -> int:
        return int(self.store.add(key, more))

    def forget(self, *gone: str) -> None:
        """Nobody asks for these any more: a store keeps what it is told for as long as a run takes."""
        for key in gone:
            self.store.delete_key(key)

    # ---- a mailbox of the lead ---------------------------------------------------------------------------------------

    def report(self, what: str, **more: Any) -> None:
        """Tell the lead."""
        number = self.count(keys.REPORTS())
        self.put(keys.REPORT(number), {"what": what, **more})


class Mailbox:
    """What was reported to the lead, each report once.

    A worker that is killed right before it writes leaves a number without a report. Those after it do not wait for it.

    Args:
        board: shared by all.
        patience: seconds after which nothing comes any more under such a number.
    """

    def __init__(self, board: Board, patience: float) -> None:
        self.board, self.patience = board, patience
        self._seen = 0
        self._holes: dict[int, float] = {}

    def new(self, now: float) -> list[Mapping[str, Any]]:
        """What has come since the last call.

        Args:
            now: by a clock that only goes forward.
        """
        newest = self.board.count(keys.REPORTS(), 0)
        self._holes |= dict.fromkeys(range(self._seen + 1, newest + 1), now)
        self._seen = newest
        found: list[Mapping[str, Any]] = []
        for number, since in sorted(self._holes.items()):
            plain = self.board.take(keys.REPORT(number))
            if plain is not None:
                found.append(plain)
                self.board.forget(keys.REPORT(number))
            if plain is not None or now - since > self.patience:
                del self._holes[number]
        return found
