"""Support for processes that are forked after cedar was used: fresh processes for polars, locks, Arrow's allocator.

A forked process has only one thread. polars' threads are missing, so code that waits for them waits forever, and a
copied thread pool accepts work that never runs. A forked process therefore runs polars functions in a fresh process.
Another thread may have held a lock of Arrow's allocator at the fork, so Arrow allocates with malloc from then on.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")
START = 'start the process by "spawn" or "forkserver", or fork it before cedar or polars is used'

_polars_lost = False
_other_threads = False  # whether other threads ran at the last fork
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_fresh_process_calls: list[Callable[..., Any]] = []


def lost() -> bool:
    """Whether this process was forked from one that had loaded polars, so that polars' threads are missing here."""
    return _polars_lost


def by(call: Callable[..., Any]) -> None:
    """Set the function that calls others in a fresh process: ``call(fn, *args)``."""
    _fresh_process_calls[:] = [call]


def in_fresh_process_after_fork(fn: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that uses polars so that it runs in a fresh process if polars cannot work in this one."""

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if _polars_lost:
            return _fresh_process_calls[0](called, *args, **kwargs)  # type: ignore[no-any-return]
        return fn(*args, **kwargs)

    return called


class Lock:
    """A re-entrant lock that starts unlocked in a forked process and in an unpickled copy."""

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()


def _before_fork() -> None:
    global _other_threads  # noqa: PLW0603 - the state belongs to the process
    _other_threads = threading.active_count() > 1


def _after_fork() -> None:
    global _polars_lost  # noqa: PLW0603 - the state belongs to the process
    _polars_lost = _polars_lost or "polars" in sys.modules
    if _other_threads:
        pa.set_memory_pool(pa.system_memory_pool())
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
