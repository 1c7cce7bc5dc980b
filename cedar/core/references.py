"""References: the names outside of a function that its code uses."""

from __future__ import annotations

import builtins
import dis
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

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
    codes = list(_nested(fn.__code__))
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


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _imported(fn: FunctionType, name: str, level: int, wanted: Iterable[str]) -> dict[str, Any]:
    """Return the values that an import statement inside a function binds; Unloaded for modules not loaded yet."""
    name = importlib.util.resolve_name("." * level + name, fn.__globals__.get("__package__")) if level else name
    if is_library(name) or name not in sys.modules:
        return {f"import {name}": sys.modules.get(name, Unloaded(name))}
    inside = {f"{name}.{each}": vars(sys.modules[name]).get(each, Unloaded(f"{name}.{each}")) for each in wanted}
    tops = {name.partition(".")[0], name}  # `import a.b` binds a
    return {f"import {n}": v for n, v in (inside or {each: sys.modules[each] for each in tops}).items()}
