"""The whole state of an object, even if its class overrides attribute access."""

from __future__ import annotations

import struct
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

BASES: dict[type, Callable[[Any], Any]] = {  # for each built-in type, a function that extracts its part of an instance
    object: lambda _v: None, int: lambda v: int.__index__(v) + 0, float: float.__repr__, complex: complex.__repr__,
    str: str.__str__, bytes: lambda v: bytes.__getitem__(v, slice(None)), list: lambda v: [*list.__iter__(v)],
    tuple: lambda v: (*tuple.__iter__(v),), set: lambda v: frozenset(set.__iter__(v)),
    frozenset: lambda v: frozenset(frozenset.__iter__(v)), dict: lambda v: dict(dict.items(v)),
    np.ndarray: lambda v: np.ndarray.view(v, np.ndarray),
}  # fmt: skip


def is_python_class(kind: type) -> bool:
    return bool(kind.__flags__ >> 9 & 1)


def c_base(kind: type) -> type | None:
    """Return the built-in type that, with slots and ``__dict__``, has an instance's whole state; None if unsure.

    A class in C that adds a field makes its instances larger, so the sizes are compared.
    """
    base = next(each for each in kind.__mro__ if each in BASES)
    if kind is base:
        return base
    own, word = [each for each in kind.__mro__ if each not in base.__mro__], struct.calcsize("P")
    slots = sum(isinstance(v, types.MemberDescriptorType) for each in own for v in vars(each).values())
    behind = kind.__dictoffset__ == -word and kind.__itemsize__ > 0  # ``__dict__`` is stored after the items
    slots += kind.__weakrefoffset__ > 0 and base.__weakrefoffset__ == 0
    slots += (kind.__dictoffset__ > 0 or behind) and base.__dictoffset__ == 0
    heap = all(is_python_class(each) or each.__basicsize__ == object.__basicsize__ for each in own)
    size = base.__basicsize__ + word * slots
    return base if heap and kind.__basicsize__ == size and kind.__itemsize__ == base.__itemsize__ else None


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the slots and the ``__dict__`` of an object, even if its class overrides attribute access."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if name == "__dict__" and isinstance(member, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                found |= member.__get__(value, type(value))
            elif "__slots__" in vars(kind) and isinstance(member, types.MemberDescriptorType):
                with suppress(AttributeError):  # the slot is not set
                    found.setdefault(name, member.__get__(value, type(value)))
    return found
