"""What a submitted call is on its way: its parcel, the futures that may bring its result, and the one that gets it."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cedar.cluster.dask.kept import SharedResult
from cedar.cluster.dask.remote import Parcel, RemoteCall, Slot
from cedar.executors.worker.main import unsendable
from cedar.tasks.code import Code


class Meter:
    """What a run's results add up to, and what of them lies here and was not taken yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: dict[int, tuple[weakref.ref[Any], int]] = {}  # results that something still holds, with their bytes
        self._waiters = 0
        self.waiting = 0.0  # seconds that the consumer waited
        self.busy = 0.0  # seconds of workers
        self.rows = 0

    @contextmanager
    def waited(self) -> Iterator[None]:
        """Around what the consumer does to wait for a result."""
        start = time.perf_counter()
        with self._lock:
            self._waiters += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1
                self.waiting += time.perf_counter() - start

    @property
    def hungry(self) -> bool:
        """The consumer waits right now, or has nothing here."""
        return self._waiters > 0 or not self._here

    def arrived(self, result: Any, nbytes: int, seconds: float) -> None:
        """A result that took a worker so many seconds; any code that takes it, takes it apart and drops it."""
        number = id(result)
        try:
            reference = weakref.ref(result, lambda _: self._here.pop(number, None))
        except TypeError:  # a number, or text
            return
        with self._lock:
            self._here[number] = (reference, nbytes)
            self.busy += seconds
            self.rows += sum(block.slots for block in getattr(result, "blocks", ()))

    @property
    def buffered(self) -> int:
        """Results that wait here to be taken."""
        return len(self._here)

    @property
    def bytes(self) -> int:
        """Of those."""
        return sum(nbytes for _, nbytes in list(self._here.values()))


@dataclass(frozen=True)
class DaskCall:
    """A call that was given to the cluster: Dask's future, and what waits for it and fetches its result."""

    future: Any
    following: asyncio.Future[None]


@dataclass(eq=False)
class ClusterTask:
    """A submitted call.

    Args:
        number: in the order of submission.
        delivery: what the caller holds.
        make: the remote call of a try: another one where a worker is silent.
        before: a result that other jobs may have, too, and that the call works on.
    """

    number: int
    delivery: Future[Any]
    make: Callable[[], PackedCall]
    before: SharedResult | None = None
    urgent: bool = False  # it goes before others
    tries: list[DaskCall] = field(default_factory=list)
    sent: int = 0  # how many tries there were

    @property
    def over(self) -> bool:
        """Nothing waits for it any more."""
        return self.delivery.done()


@dataclass(frozen=True)
class PackedCall:
    """A call as it travels, and the code that it needs."""

    parcel: Parcel
    code: tuple[Code, ...]


def pack(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], folder: str | None) -> PackedCall:
    """A call without its code, which is sent by itself.

    Raises:
        WorkerError: it cannot be pickled; names the column where it is one.
    """
    code = tuple(a for a in args if isinstance(a, Code))
    slots = tuple(Slot(a.key, a.path) if isinstance(a, Code) else a for a in args)
    try:
        return PackedCall(Parcel.of(RemoteCall(fn, slots, kwargs, folder)), code)
    except Exception as error:
        rows = next((a for a in args if hasattr(a, "blocks")), None)
        raise unsendable(rows, "a task", error) from error
