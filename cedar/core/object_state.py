"""The state of an object, whatever its class says of it: what its C base holds, its slots and its ``__dict__``."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import collections
import copyreg
import functools
import gc
import hashlib
import struct
import sys
from collections.abc import Callable
from types import GetSetDescriptorType, MemberDescriptorType, SimpleNamespace
from typing import Any

import numpy as np

from cedar.core.references import is_library, version_of

_WORD = struct.calcsize("P")


def _items(base: Any) -> Callable[[Any], Any]:
    return lambda value: [part for pair in base.items(value) for part in pair]


_CONTENTS: dict[type, Callable[[Any], Any]] = {  # C bases, and what an instance holds besides attributes
    object: lambda _value: None,
    SimpleNamespace: lambda _value: None,
    int: lambda value: int.__index__(value) + 0,
    float: float.__repr__,
    complex: complex.__repr__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytes(memoryview(value)),
    list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: [*tuple.__iter__(value)],
    set: lambda value: frozenset(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: _items(dict),
    collections.OrderedDict: _items(collections.OrderedDict),
    collections.defaultdict: lambda value: [
        vars(collections.defaultdict)["default_factory"].__get__(value), *_items(dict)(value),
    ],
    collections.deque: lambda value: [
        vars(collections.deque)["maxlen"].__get__(value), *collections.deque.__iter__(value),
    ],
    np.ndarray: lambda value: np.ndarray.view(value, np.ndarray),
}  # fmt: skip


def base_of(kind: type) -> type | None:
    """The C type whose contents, with slots and ``__dict__``, are all that an instance holds; None: there may be more.

    Every C class that adds a field makes its instances larger; so the sizes must add up.

    Example:
        >>> base_of(type("Own", (dict,), {})), base_of(type(iter([])))
        (<class 'dict'>, None)
    """
    base = next(each for each in kind.__mro__ if each in _CONTENTS)
    if kind is base:
        return base
    size = base.__basicsize__ + _WORD * sum(1 for _ in _slots(kind, base))
    size += _WORD * (kind.__weakrefoffset__ > 0 and base.__weakrefoffset__ == 0)
    behind = kind.__dictoffset__ == -_WORD and kind.__itemsize__ > 0  # a dict behind the items
    size += _WORD * ((kind.__dictoffset__ > 0 or behind) and base.__dictoffset__ == 0)
    heap = all(each.__flags__ >> 9 & 1 or each.__basicsize__ == object.__basicsize__ for each in _own(kind, base))
    return base if heap and kind.__basicsize__ == size and kind.__itemsize__ == base.__itemsize__ else None


def contents(value: Any, base: type) -> Any:
    """What the C base of an instance holds, as plain containers and values."""
    return _CONTENTS[base](value)


def attributes(value: Any) -> dict[str, Any]:
    """The slots and the ``__dict__`` of an object, whatever its class makes of attributes."""
    kind = type(value)
    slots = {}
    for name, descriptor in _slots(kind, object):
        try:
            slots[name] = descriptor.__get__(value, kind)
        except AttributeError:  # not set
            continue
    return slots | own_dict(value)


def own_dict(value: Any) -> dict[str, Any]:
    """The ``__dict__`` of an object; empty where it has none."""
    for kind in type(value).__mro__:
        descriptor = vars(kind).get("__dict__")
        if isinstance(descriptor, (GetSetDescriptorType, MemberDescriptorType)):
            return dict(descriptor.__get__(value, type(value)))
    return {}


def _own(kind: type, base: type) -> list[type]:
    return [each for each in kind.__mro__ if each not in base.__mro__]


def _slots(kind: type, base: type) -> list[tuple[str, MemberDescriptorType]]:
    return [
        (name, member)
        for each in _own(kind, base)
        if "__slots__" in vars(each)
        for name, member in vars(each).items()
        if isinstance(member, MemberDescriptorType)
    ]


def registered(kind: type) -> frozenset[type]:
    """The classes that an abstract one takes for its own."""
    given = (reference() for reference in _abc._get_dump(kind)[0])
    return frozenset(each for each in given if each is not None)


# ---- what a class, or a name, says -----------------------------------------------------------------------------------


def full_name(value: Any) -> str:
    """The module and the name of a class or a function."""
    return f"{value.__module__}.{value.__qualname__}"


def by_identity(kind: type) -> bool:
    """Whether two equal instances are told apart where they are compared."""
    return kind is object or (getattr(kind, "__eq__", None) is object.__eq__ and kind.__flags__ >> 9 & 1 == 1)


def reduces(kind: type) -> bool:
    """It says itself what its copies are made from."""
    methods = ("__reduce__", "__reduce_ex__", "__getstate__")
    return kind in copyreg.dispatch_table or any(
        getattr(kind, each, None) is not getattr(object, each, None) for each in methods
    )


def named(value: Any) -> str | None:
    """The module and the name under which an installed package has exactly this object."""
    module, called = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(called, str) and is_library(module)):
        return None
    return f"{module}.{called} {version_of(module)}" if looked_up(sys.modules.get(module), called) is value else None


def looked_up(module: Any, dotted: str) -> Any:
    """What a module has under a dotted name; None where that is nothing."""
    try:
        return functools.reduce(getattr, dotted.split("."), module)
    except AttributeError:
        return None


def behind(proxy: Any) -> Any:
    """What a mapping proxy shows."""
    return gc.get_referents(proxy)[0]


def filled(cell: Any) -> bool:
    """Whether a cell holds a value, other than itself."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def hashed(*parts: Any) -> bytes:
    """The digest of texts and bytes, each with its length."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = memoryview(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
        state.update(raw.nbytes.to_bytes(8, "little"))
        state.update(raw)
    return state.digest()
