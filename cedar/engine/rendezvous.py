"""Rendezvous of all ranks: each rank sends a message, and rank 0 sends one outcome, computed from them, to all ranks.

The store may still contain keys of an earlier rendezvous or of a dead rank. Therefore each rank sends a new random id,
and rank 0 asks every rank to confirm that id. Once all ranks have confirmed, rank 0 computes the outcome. If a message
with another id appears meanwhile, it asks again. A dead rank never confirms, so stale messages have no effect.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from cedar.core.errors import Site, WorkerError
from cedar.core.packages import extension
from cedar.executors.choose import names_cluster

_PAUSES = (0.0001, 0.02)  # initial and maximum seconds between two polls, for up to _FEW_RANKS ranks
_FEW_RANKS = 50  # larger worlds poll less often, so as not to slow down rank 0, which reads all messages
PATIENCE = 600.0  # seconds to wait for the slowest rank if loader(timeout=) is not given
Combine: TypeAlias = Callable[[list[Any], Callable[[], None]], Any]


class Rendezvous:
    """One rank's participation in a rendezvous.

    Args:
        words: the key-value store that all ranks use.
        name: prefix of all keys, the same on all ranks.
        rank, world: this rank, and the number of ranks.
        timeout: seconds to wait for the slowest rank.
        site: the user's line, for errors.
        late: returns the error for missing ranks after so many seconds; None uses the error of ``reshard()``.
        stopped: returns True to stop waiting.
    """

    def __init__(
        self, words: KeyValueStore, name: str, rank: int, world: int, timeout: float | None, site: Site | None,
        late: Callable[[list[int], float], WorkerError] | None = None, stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._words, self._name, self._rank, self._world, self._site = words, name, rank, world, site
        self._timeout = timeout or PATIENCE
        self._late, self._stopped = late or self._late_to_reshard, stopped
        self._id = uuid.uuid4().hex[:16]

    def outcome(self, mine: Any, make: Combine) -> tuple[str, Any]:
        """Return the unique name of this rendezvous, and the outcome that rank 0 computed from all messages.

        Args:
            mine: this rank's message, JSON-serializable.
            make: computes the JSON-serializable outcome from the list of messages, ordered by rank. During long work
                it calls its second argument regularly, so that the other ranks keep waiting.

        Raises:
            WorkerError: a rank did not join in time, or the ranks cannot communicate.
        """
        with talk(self._site):
            if self._rank != 0:
                return self._take_part(mine)
            meeting, messages = self._collect(mine)
        at_work = iter(range(1 << 62))

        def keep_alive() -> None:
            with talk(self._site):
                self._words.set(f"{self._name}/{meeting}/at", str(next(at_work)))

        result = make(messages, keep_alive)
        with talk(self._site):
            self._words.set(f"{self._name}/{meeting}/outcome", json.dumps(result))
            self._words.drop(f"{self._name}/{meeting}/at")
            for rank in range(1, self._world):
                self._words.drop(f"{self._name}/{meeting}/here/{rank}")
        return meeting, result

    def _collect(self, mine: Any) -> tuple[str, list[Any]]:
        """On rank 0: ask all other ranks to confirm; return the name of the rendezvous, and all messages."""
        came: dict[int, dict[str, Any]] = {}
        meeting, asked = "", False
        here: set[int] = set()
        polling = Polling(self._timeout, self._world, self._stopped)
        while len(here) < self._world - 1:
            for rank in range(1, self._world):
                text = self._words.get(f"{self._name}/hello/{rank}")
                hello = None if text is None else json.loads(text)
                if hello is None or hello["world"] != self._world:
                    asked = came.pop(rank, None) is None and asked
                elif rank not in came or came[rank]["id"] != hello["id"]:
                    came[rank], asked = hello, False
            if len(came) == self._world - 1 and not asked:
                meeting, asked, here = uuid.uuid4().hex[:16], True, set()
                for rank, hello in came.items():
                    self._words.set(f"{self._name}/asked/{rank}", f"{hello['id']} {meeting}")
            if asked:
                here |= {r for r in came if r not in here and self._words.get(f"{self._name}/{meeting}/here/{r}")}
            if len(here) < self._world - 1 and not polling.again():
                missing = [r for r in range(1, self._world) if r not in (here if asked else came)]
                raise self._late(missing, self._timeout)
        return meeting or uuid.uuid4().hex[:16], [mine, *(came[rank]["word"] for rank in range(1, self._world))]

    def _take_part(self, mine: Any) -> tuple[str, Any]:
        """On other ranks: send this rank's message, confirm when asked, and wait for the outcome."""
        hello, asked = f"{self._name}/hello/{self._rank}", f"{self._name}/asked/{self._rank}"
        self._words.set(hello, json.dumps({"id": self._id, "world": self._world, "word": mine}))
        meeting, at = "", None
        polling = Polling(self._timeout, self._world, self._stopped)
        while True:
            # Read "asked" first: if it already belongs to rank 0's next rendezvous, this outcome is certainly stored.
            me, _, named = (self._words.get(asked) or "").partition(" ")
            text = self._words.get(f"{self._name}/{meeting}/outcome") if meeting else None
            if text is not None:
                self._words.drop(hello)
                self._words.drop(asked)
                return meeting, json.loads(text)
            if me == self._id and named != meeting:
                meeting = named
                self._words.set(f"{self._name}/{meeting}/here/{self._rank}", "here")
                polling = Polling(self._timeout, self._world, self._stopped)
            elif meeting and (word := self._words.get(f"{self._name}/{meeting}/at")) != at:
                at, polling = word, Polling(self._timeout, self._world, self._stopped)
            if not polling.again():
                asked_before = me == self._id
                others = [r for r in range(1, self._world) if self._words.get(f"{self._name}/hello/{r}") is None]
                self._words.drop(hello)
                raise self._late(others if asked_before else [0, *others], self._timeout)

    def _late_to_reshard(self, missing: list[int], seconds: float) -> WorkerError:
        return WorkerError(
            f"rank(s) {', '.join(map(str, missing)) or 'unknown'} of {self._world} did not call reshard() within "
            f"{seconds:g} s",
            site=self._site,
            done="nothing was redistributed: this rank keeps its position",
            fix="all ranks of the new world call reshard() at the same step, each with its own rank and the same "
            "world; call it again with the ranks that exist, or raise loader(timeout=)",
        )


class Polling:
    """Sleeps between polls, with growing pauses; ``again`` returns False after ``timeout``, or once ``stopped()``."""

    def __init__(self, timeout: float, world: int, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._until, longer = time.monotonic() + timeout, max(1.0, world / _FEW_RANKS)
        self._pause, self._longest = longer * _PAUSES[0], longer * _PAUSES[1]

    def again(self) -> bool:
        if time.monotonic() > self._until or self._stopped():
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)
        return True


@contextmanager
def talk(site: Site | None, done: str | None = None) -> Iterator[None]:
    """Turn errors of an unreachable store or folder into WorkerError."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # stores of torch raise RuntimeError
        raise WorkerError(
            f"this rank cannot communicate with the others: {error}",
            site=site,
            done=done,
            fix="check the log of the process that holds the store of torch.distributed, or the folder or "
            "service given as agree=",
        ) from error


# ---- key-value stores ------------------------------------------------------------------------------------------------


class KeyValueStore(ABC):
    """A key-value store shared by all ranks."""

    @abstractmethod
    def set(self, name: str, word: str) -> None:
        """Store a value under a key, replacing an earlier value."""

    @abstractmethod
    def get(self, name: str) -> str | None:
        """Return the value of a key; None if the key is not set."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Delete a key if it exists."""


class TorchKeyValues(KeyValueStore):
    """Keys and values in a store of torch.distributed."""

    _NONE = "\0"  # value that represents a missing key

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, name: str, word: str) -> None:
        self._store.set(name, word)

    def get(self, name: str) -> str | None:
        # The store's ``get`` blocks on a missing key, and a key seen by ``check`` may be deleted before ``get`` runs.
        word = self._store.compare_set(name, self._NONE, self._NONE).decode()  # returns the value and changes nothing
        return None if word == self._NONE else word

    def drop(self, name: str) -> None:
        self._store.delete_key(name)


class FolderKeyValues(KeyValueStore):
    """Keys and values in a folder: one file for each key, written atomically."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _path(self, name: str) -> Path:
        return self._folder / name.replace("/", "-")

    def set(self, name: str, word: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f".{uuid.uuid4().hex}"
        new.write_text(word, encoding="utf-8")
        os.replace(new, self._path(name))

    def get(self, name: str) -> str | None:
        try:
            return self._path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def drop(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)


def key_value_store_at(place: Any) -> KeyValueStore:
    """Return a key-value store in ``place``: a folder, a store of torch.distributed, or a service.

    Raises:
        CedarError: the service is invalid or does not answer.
    """
    if names_cluster(place):
        return extension("cluster.service.meeting").ServiceKeyValues(place)  # type: ignore[no-any-return]
    return FolderKeyValues(place) if isinstance(place, str) else TorchKeyValues(place)
