"""A cached property that is computed only once, even if several threads access it concurrently."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self, TypeVar, overload

from cedar.core.forks import Lock

_T = TypeVar("_T")


class once(cached_property[_T]):  # noqa: N801 - used as a decorator, next to cached_property
    """``functools.cached_property`` with a lock per instance; pickling an instance includes its cached values."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> _T: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | _T:
        if instance is None:
            return self
        with instance.__dict__.setdefault("_once", Lock()):
            return super().__get__(instance, owner)
