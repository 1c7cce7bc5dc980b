"""Forks: what a process that was forked after cedar was used cannot do, and who does it in its place.

A forked process has one thread. polars' threads are not there, and whatever waits for them waits forever; a pool of
threads takes work that nothing does. So such a process has what needs polars done by fresh processes of its own.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
START = 'start the process by "spawn" or "forkserver", or fork it before cedar or polars is used'

_lost = False
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_fresh: list[Callable[..., Any]] = []


def lost() -> bool:
    """This process was forked from one that had polars: it has none that works."""
    return _lost


def by(call: Callable[..., Any]) -> None:
    """``call(fn, *args)`` calls a function in a fresh process."""
    _fresh[:] = [call]


def elsewhere(fn: Callable[P, T]) -> Callable[P, T]:
    """A function that uses polars, and so is called in a fresh process where this one has none that works."""

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if _lost:
            return _fresh[0](called, *args, **kwargs)  # type: ignore[no-any-return]
        return fn(*args, **kwargs)

    return called


class Lock:
    """A re-entrant lock that a forked process has again, any code that held it, and that a pickle leaves behind."""

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


def _after_fork() -> None:
    global _lost  # noqa: PLW0603 - it is the process that has lost something
    _lost = _lost or "polars" in sys.modules
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_after_fork)
