"""Keys of operators, by which the optimizer finds equal operators to merge."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Hashable
from typing import Any


class Mergeable:
    """A row operator whose fields determine its results; equal ones with the same input are computed only once."""

    def merge_key(self) -> Hashable:
        """Return a key, which is equal for operators that compute the same."""
        return by_content(self)

    def computes(self) -> Hashable | None:
        """Return a key that identifies the computation regardless of the names of output columns; None if unknown."""
        return None


def by_content(operator: Any, but: Container[str] = ()) -> Hashable:
    """Return a key of a dataclass: expressions compare by content, functions by identity, constants by type and value.

    Args:
        but: the names of fields to leave out of the key.
    """
    return type(operator), tuple(
        _key(getattr(operator, f.name)) for f in dataclasses.fields(operator) if f.name not in but
    )


def _key(value: Any) -> Hashable:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_key(getattr(value, f.name)) for f in dataclasses.fields(value))
    if hasattr(value, "meta") and hasattr(value.meta, "serialize"):
        return value.meta.serialize(format="binary")  # type: ignore[no-any-return]
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, str | int | float | bool | None):
        return type(value), repr(value)
    return id(value)
