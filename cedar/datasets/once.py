"""A cached property that is computed once, also when several threads ask at a time."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any, Self, TypeVar, overload

_T = TypeVar("_T")


class Lock:
    """A re-entrant lock that a pickle leaves behind: each process has its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()


class once(cached_property[_T]):  # noqa: N801 - used as a decorator, beside cached_property
    """``functools.cached_property`` under a lock of the instance; what is cached travels in pickles."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> _T: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | _T:
        if instance is None:
            return self
        with instance.__dict__.setdefault("_once", Lock()):
            return super().__get__(instance, owner)
