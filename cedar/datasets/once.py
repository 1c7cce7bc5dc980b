"""A cached property that is computed once, also when several threads ask at a time."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self, TypeVar, overload

from cedar.core.forks import Lock

_T = TypeVar("_T")


class once(cached_property[_T]):  # noqa: N801 - used as a decorator, next to cached_property
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
