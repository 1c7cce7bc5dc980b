"""What a function or an object consists of: the names that its code uses, and its whole state.

The names are those outside of the function. The state is read even if the class overrides attribute access.
"""

from __future__ import annotations

import builtins
import dis
import importlib.util
import struct
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from cedar.core.packages import is_library

LATE = "looks up names or code only when it is called"
DYNAMIC = frozenset({
    "builtins.__import__", "builtins.eval", "builtins.exec", "builtins.globals", "importlib.import_module",
    "importlib.__import__", "os.environ", "os.getenv", "sys.modules", "sys.argv", "sys._getframe",
    "inspect.currentframe", "inspect.stack", "runpy.run_module", "runpy.run_path",
})  # fmt: skip


@dataclass(frozen=True)
class Unloaded:
    """A module that a function imports when it is called, and that is not loaded yet."""

    name: str


def references(fn: FunctionType) -> tuple[dict[str, Any], list[str]]:
    """Return the global and imported values that a function and its nested functions use, and the names not found."""
    values: dict[str, Any] = {}
    unknown: list[str] = []
    codes = list(nested(fn.__code__))
    names = {name for code in codes for name in code.co_names}
    for code in codes:
        steps = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
        for place, step in enumerate(steps):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                name, value = step.argval, fn.__globals__.get(step.argval, step)
                if value is step:
                    value = getattr(builtins, name, step)
                    if value is step and step.opname == "LOAD_GLOBAL":  # otherwise a class body may define the name
                        unknown.append(f"global.{name}: the name is not defined yet")
                    known = issubclass(type(value), (BuiltinFunctionType, type)) and is_library(value.__module__)
                    if value is step or (known and f"builtins.{name}" not in DYNAMIC):
                        continue
                for after in steps[place + 1 :]:
                    if after.opname not in ("LOAD_ATTR", "LOAD_METHOD") or not issubclass(type(value), ModuleType):
                        break
                    found = vars(value).get(after.argval, step)
                    if found is step or (is_library(value.__name__) and not isinstance(found, ModuleType)):
                        break  # use the whole module: it belongs to a package, or creates attributes on access
                    name, value = f"{name}.{after.argval}", found
                values[f"global {name}"] = value
            elif step.opname == "IMPORT_NAME":
                level, wanted = (each.argval for each in steps[place - 2 : place])
                values |= _imported(fn, step.argval, level, wanted or ())
    for module in {v.__name__ for v in values.values() if issubclass(type(v), ModuleType)}:
        late = [name for name in names if f"{module}.{name}" in DYNAMIC]
        unknown += [f"global.{module}.{name}: {LATE}" for name in sorted(late)]
    return values, unknown


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of all functions nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def _imported(fn: FunctionType, name: str, level: int, wanted: Iterable[str]) -> dict[str, Any]:
    """Return the values that an import statement inside a function binds; Unloaded for modules not loaded yet."""
    name = importlib.util.resolve_name("." * level + name, fn.__globals__.get("__package__")) if level else name
    if is_library(name) or name not in sys.modules:
        return {f"import {name}": sys.modules.get(name, Unloaded(name))}
    inside = {f"{name}.{each}": vars(sys.modules[name]).get(each, Unloaded(f"{name}.{each}")) for each in wanted}
    tops = {name.partition(".")[0], name}  # `import a.b` binds a
    return {f"import {n}": v for n, v in (inside or {each: sys.modules[each] for each in tops}).items()}


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
