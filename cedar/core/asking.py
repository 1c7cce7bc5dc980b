"""Asking: on whose behalf requests to storage are created: what counts them, and what ends the waits between them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any


@dataclass
class Use:
    """Requests to storage: all of them, those of them that were retried, and the seconds waited in between."""

    requests: int = 0
    retries: int = 0
    waited: float = 0.0

    def add(self, other: Use) -> None:
        self.requests += other.requests
        self.retries += other.retries
        self.waited += other.waited


class Stop:
    """Ends waits between attempts; pickled, it is another one."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._under_way: dict[int, bytearray] = {}

    def set(self) -> None:
        self._event.set()
        for rows in list(self._under_way.values()):
            rows.clear()

    def enter(self, rows: bytearray) -> None:
        """Empty ``rows`` when it is set, which ends loops over them."""
        self._under_way[id(rows)] = rows
        if self._event.is_set():
            rows.clear()

    def leave(self, rows: bytearray) -> None:
        """They were gone through."""
        self._under_way.pop(id(rows), None)

    def wait(self, seconds: float) -> bool:
        """True at once when it is set, else False after so many seconds."""
        return self._event.wait(seconds)

    @property
    def over(self) -> bool:
        """It is set."""
        return self._event.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stop, ()


@dataclass(frozen=True)
class RequestOwner:
    """On whose behalf a request is created: what counts it, and what ends its waits."""

    use: Use | None = None
    stop: Stop | None = None

    @property
    def over(self) -> bool:
        """Nothing waits any more for what this thread works on."""
        return self.stop is not None and self.stop.over

    def check(self) -> None:
        """Between two rows: raises CancelledError once it is over."""
        if self.over:
            from concurrent.futures import CancelledError  # which takes a while to import, and a worker needs none

            raise CancelledError


_asker: ContextVar[RequestOwner] = ContextVar("cedar_storage_asker", default=RequestOwner())  # noqa: B039 - it is frozen


def asker() -> RequestOwner:
    """Of this thread; libraries may read a file in their own threads, so any code that opens one keeps it."""
    return _asker.get()


@contextmanager
def counting(use: Use) -> Iterator[Use]:
    """What this thread asks of storage meanwhile is counted in ``use``."""
    token = _asker.set(replace(_asker.get(), use=use))
    try:
        yield use
    finally:
        _asker.reset(token)


class StopScope:
    """Waits of this thread end when ``stop`` is set, until the end of the block."""

    __slots__ = ("_stop", "_token")

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        self._token = _asker.set(RequestOwner(_asker.get().use, self._stop))

    def __exit__(self, *_: object) -> None:
        _asker.reset(self._token)


class CancellableArguments:
    """The arguments of so many calls, which end at the next one once the run of this thread is over, at no cost of any.

    Examples:
        >>> with CancellableArguments([range(3), "abc"], 3) as arguments:
        ...     list(map(lambda i, letter: i * letter, *arguments))
        ['', 'b', 'cc']
    """

    __slots__ = ("_arguments", "_rows", "_stop")

    def __init__(self, arguments: Sequence[Iterable[Any]], n: int) -> None:
        self._arguments, self._stop = arguments, _asker.get().stop
        self._rows = bytearray(b"\1" * n if self._stop is not None else b"")

    def __enter__(self) -> Sequence[Iterable[Any]]:
        if self._stop is None:
            return self._arguments
        self._stop.enter(self._rows)
        first, *others = self._arguments
        return [compress(first, self._rows), *others]

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop.leave(self._rows)
