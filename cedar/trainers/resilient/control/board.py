"""What workers and supervisors tell each other: a few keys in a store that lives in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from cedar.trainers.resilient.schedule import Worker


class Store(Protocol):
    """The part of torch's stores that is used."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, wanted: str, /) -> bytes: ...


@dataclass(frozen=True)
class Epoch:
    """A generation of workers.

    Args:
        number: counts from 1.
        members: who is alive.
        joins: those of them that get their state from a peer.
        restore: None: go on; a checkpoint's path: everybody loads it; empty: everybody begins anew.
        line: the generation of the last restore: what was told before it does not count.
        detected: when the lead heard of the failure that began it, ``time.time()``; 0 without a failure.
    """

    number: int
    members: tuple[Worker, ...]
    joins: tuple[Worker, ...] = ()
    restore: str | None = None
    line: int = 1
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
        return int(self.store.add("generation", 0))

    def begin(self, epoch: Epoch) -> None:
        """Begin a generation; only the lead does."""
        self.store.set(f"epoch/{epoch.number}", json.dumps(asdict(epoch)))
        self.store.add("generation", 1)

    def epoch(self, number: int) -> Epoch:
        plain = json.loads(self.store.get(f"epoch/{number}"))
        plain["members"] = tuple(Worker(*worker) for worker in plain["members"])
        plain["joins"] = tuple(Worker(*worker) for worker in plain["joins"])
        return Epoch(**plain)

    # ---- values by name ----------------------------------------------------------------------------------------------

    def put(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def take(self, key: str) -> Any | None:
        """None while it is not there."""
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def first(self, key: str, value: Any) -> Any:
        """Write unless there is something: the first writer wins; what is there then."""
        return json.loads(self.store.compare_set(key, "", json.dumps(value)))

    def count(self, key: str, more: int = 1) -> int:
        return int(self.store.add(key, more))

    # ---- a mailbox of the lead ---------------------------------------------------------------------------------------

    def report(self, what: str, **more: Any) -> None:
        """Tell the lead."""
        number = self.count("reports")
        self.put(f"report/{number}", {"what": what, **more})

    def reports(self, seen: int) -> list[Mapping[str, Any]]:
        """All after the ``seen`` first ones that are whole."""
        found = []
        for number in range(seen + 1, self.count("reports", 0) + 1):
            plain = self.take(f"report/{number}")
            if plain is None:
                break
            found.append(plain)
        return found
