"""A submitted call: its parcel, its tries on the cluster, and the future that receives the result."""

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
from cedar.cluster.dask.remote import CodeRef, Parcel, RemoteCall
from cedar.executors.worker.main import unsendable_error
from cedar.tasks.code import Code


class Meter:
    """Totals of a run's results, and the results that were fetched but not consumed yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live_results: dict[int, tuple[weakref.ref[Any], int]] = {}  # live results and their bytes, by id
        self._waiters = 0
        self.waiting = 0.0  # seconds that the consumer waited for results
        self.busy = 0.0  # seconds that workers spent on calls
        self.rows = 0

    @contextmanager
    def waited(self) -> Iterator[None]:
        """Measure the time that the consumer waits for a result."""
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
    def starving(self) -> bool:
        """Whether the consumer waits for a result, or no fetched results are left."""
        return self._waiters > 0 or not self._live_results

    def arrived(self, result: Any, nbytes: int, seconds: float) -> None:
        """Count a fetched result and the worker's seconds. A result counts as consumed when its object is freed."""
        number = id(result)
        try:
            reference = weakref.ref(result, lambda _: self._live_results.pop(number, None))
        except TypeError:  # numbers and strings have no weak references
            return
        with self._lock:
            self._live_results[number] = (reference, nbytes)
            self.busy += seconds
            self.rows += sum(block.slots for block in getattr(result, "blocks", ()))

    @property
    def buffered(self) -> int:
        """The number of fetched results that were not consumed yet."""
        return len(self._live_results)

    @property
    def bytes(self) -> int:
        """The total bytes of fetched results that were not consumed yet."""
        return sum(nbytes for _, nbytes in list(self._live_results.values()))


@dataclass(frozen=True)
class DaskCall:
    """A try of a call: Dask's future, and the asyncio task that waits for this future and fetches the result."""

    future: Any
    following: asyncio.Future[None]


@dataclass(eq=False)
class ClusterTask:
    """A submitted call.

    Args:
        number: position of the call in the order of submission.
        delivery: the future that the caller got.
        make: function that packs the call; called for each try.
        before: the shared result that the call takes as input, if any.
    """

    number: int
    delivery: Future[Any]
    make: Callable[[], PackedCall]
    before: SharedResult | None = None
    urgent: bool = False  # whether the call has priority over others
    tries: list[DaskCall] = field(default_factory=list)
    sent: int = 0  # number of tries sent so far

    @property
    def over(self) -> bool:
        """Whether the caller's future is done."""
        return self.delivery.done()


@dataclass(frozen=True)
class PackedCall:
    """A packed call, and the code that it needs."""

    parcel: Parcel
    code: tuple[Code, ...]


def pack(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], folder: str | None) -> PackedCall:
    """Pack a call without its code, which is sent separately.

    Raises:
        WorkerError: the call cannot be pickled; the error names the column, if one is to blame.
    """
    code = tuple(a for a in args if isinstance(a, Code))
    slots = tuple(CodeRef(a.key, a.path) if isinstance(a, Code) else a for a in args)
    try:
        return PackedCall(Parcel.of(RemoteCall(fn, slots, kwargs, folder)), code)
    except Exception as error:
        rows = next((a for a in args if hasattr(a, "blocks")), None)
        raise unsendable_error(rows, "a task", error) from error
