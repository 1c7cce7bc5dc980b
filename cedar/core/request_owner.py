"""The owner of storage requests: the counter to which they are added, and the event that ends waits for retries."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import compress
from typing import Any


@dataclass
class Use:
    """The number of storage requests, the retries among them, and the seconds waited between attempts."""

    requests: int = 0
    retries: int = 0
    waited: float = 0.0

    def add(self, other: Use) -> None:
        self.requests += other.requests
        self.retries += other.retries
        self.waited += other.waited


class Stop:
    """An event that ends the waits between attempts. Unpickling it gives a new, unset event."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._active_rows: dict[int, bytearray] = {}

    def set(self) -> None:
        self._event.set()
        for rows in list(self._active_rows.values()):
            rows.clear()

    def enter(self, rows: bytearray) -> None:
        """Clear ``rows`` when the event is set, so that a loop over ``rows`` ends."""
        self._active_rows[id(rows)] = rows
        if self._event.is_set():
            rows.clear()

    def leave(self, rows: bytearray) -> None:
        """Stop tracking ``rows``: the loop over them has ended."""
        self._active_rows.pop(id(rows), None)

    def wait(self, seconds: float) -> bool:
        """Return True once the event is set, or False after ``seconds``."""
        return self._event.wait(seconds)

    @property
    def over(self) -> bool:
        """Whether the event is set."""
        return self._event.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stop, ()


@dataclass(frozen=True)
class RequestOwner:
    """Who sends a request: the counter that it is added to, and the event that ends its waits."""

    use: Use | None = None
    stop: Stop | None = None

    @property
    def over(self) -> bool:
        """Whether the run that this thread works for has been cancelled."""
        return self.stop is not None and self.stop.over

    def check(self) -> None:
        """Raise CancelledError if the run has been cancelled. Readers call this between two rows."""
        if self.over:
            from concurrent.futures import CancelledError  # slow to import, and workers do not need it

            raise CancelledError


_owner: ContextVar[RequestOwner] = ContextVar("cedar_storage_asker", default=RequestOwner())  # noqa: B039 - frozen


def request_owner() -> RequestOwner:
    """Return the owner of this thread's requests. Files store it, since libraries may read them in other threads."""
    return _owner.get()


class OwnedRequests:
    """In this ``with`` block, this thread's requests are counted in ``use``, and setting ``stop`` ends its waits."""

    __slots__ = ("_stop", "_token", "_use")

    def __init__(self, use: Use | None = None, stop: Stop | None = None) -> None:
        self._use, self._stop = use, stop

    def __enter__(self) -> None:
        outer = _owner.get()
        self._token = _owner.set(RequestOwner(self._use or outer.use, self._stop or outer.stop))

    def __exit__(self, *_: object) -> None:
        _owner.reset(self._token)


class CancellableArguments:
    """Iterates over the arguments of ``n`` calls, and ends early once the run is cancelled, at no cost per call.

    Examples:
        >>> with CancellableArguments([range(3), "abc"], 3) as arguments:
        ...     list(map(lambda i, letter: i * letter, *arguments))
        ['', 'b', 'cc']
    """

    __slots__ = ("_arguments", "_rows", "_stop")

    def __init__(self, arguments: Sequence[Iterable[Any]], n: int) -> None:
        self._arguments, self._stop = arguments, _owner.get().stop
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
