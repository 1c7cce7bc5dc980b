"""What a function refers to outside itself, and which packages are installed rather than the user's own."""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_STDLIB = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
DYNAMIC = frozenset({  # what finds other code or state by names that only a call tells
    "builtins.__import__", "builtins.eval", "builtins.exec", "builtins.globals",
    "importlib.import_module", "importlib.__import__", "os.environ", "os.getenv", "sys.modules", "sys._getframe",
    "inspect.currentframe", "inspect.stack", "runpy.run_module", "runpy.run_path",
})  # fmt: skip


@dataclass
class References:
    """What the code of a function, nested functions included, names outside itself.

    Args:
        values: by ``global name``, ``global module.name`` and ``import name``.
        unknown: what cannot be told before a call, and why.
        read: names of attributes that the code reads.
        counted: names of attributes that it only counts in: ``fn.calls += 1``, whose value goes nowhere else.
    """

    values: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)


def references(fn: FunctionType) -> References:
    """What a function names. A module of the user's own stands for those of its attributes that the code loads from it.

    Example:
        >>> limit = 3
        >>> sorted(references(lambda x: min(x, len(sys.argv))).values)
        ['global sys']
    """
    refs = References()
    codes = list(_nested(fn.__code__))
    names = {name for code in codes for name in code.co_names}
    for code in codes:
        instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
        for place, instruction in enumerate(instructions):
            rest = instructions[place + 1 :]
            if instruction.opname in _GLOBALS:
                _global(fn, instruction, rest, refs)
            elif instruction.opname == "IMPORT_NAME":
                _import(fn, instructions[max(0, place - 2) : place], instruction.argval, names, refs)
            elif instruction.opname in _ATTRIBUTES:
                counts = _counts(instructions, place)
                (refs.counted if counts else refs.read).add(instruction.argval)
    if names & {"getattr", "vars", "__dict__"}:  # it may read what it counts in under another name
        refs.read |= refs.counted
    refs.counted -= refs.read
    return refs


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _counts(instructions: Sequence[dis.Instruction], place: int) -> bool:
    """Whether the attribute that is loaded here is only added to, by a constant."""
    around = instructions[place - 1 : place + 5] if place else []
    names = [i.opname for i in around]
    return (
        names == ["COPY", "LOAD_ATTR", "LOAD_CONST", "BINARY_OP", "SWAP", "STORE_ATTR"]
        and around[1].argval == around[5].argval
        and around[3].argrepr.endswith("=")
    )


def _global(fn: FunctionType, load: dis.Instruction, rest: Sequence[dis.Instruction], refs: References) -> None:
    name = load.argval
    if name not in fn.__globals__:
        value = getattr(builtins, name, refs)
        if value is refs:
            if load.opname == "LOAD_GLOBAL":  # other loads may find it in the body of a class
                refs.unknown.append(f"global.{name}: nothing has that name yet")
        elif f"builtins.{name}" in DYNAMIC:
            refs.unknown.append(f"global.{name}: finds names or code only when it is called")
        elif isinstance(value, FunctionType):  # put there by somebody
            refs.values[f"global {name}"] = value
        return
    value, label = fn.__globals__[name], name
    for attribute in rest:
        if attribute.opname not in _ATTRIBUTES or not isinstance(value, ModuleType):
            break
        if f"{value.__name__}.{attribute.argval}" in DYNAMIC:
            refs.unknown.append(f"global.{label}.{attribute.argval}: finds names or code only when it is called")
        if is_library(value.__name__):
            if not isinstance(vars(value).get(attribute.argval), ModuleType):
                break
            value = vars(value)[attribute.argval]
            continue
        if attribute.argval not in vars(value):
            break  # a module that makes attributes when they are asked for: it counts as a whole
        label, value = f"{label}.{attribute.argval}", vars(value)[attribute.argval]
    refs.values[f"global {label}"] = fn.__globals__[name] if label == name else value


def _import(fn: FunctionType, before: Sequence[dis.Instruction], name: str, names: set[str], refs: References) -> None:
    """An import inside the function: of a library by its version, of the user's own by what it brings."""
    level, wanted = (i.argval for i in before) if len(before) == 2 else (0, None)
    if isinstance(level, int) and level:
        name = importlib.util.resolve_name("." * level + name, fn.__globals__.get("__package__") or "")
    if is_library(name):
        refs.values[f"import {name}"] = version_of(name)
        if any(known.rpartition(".")[0] == name and known.rpartition(".")[2] in names for known in DYNAMIC):
            refs.unknown.append(f"import.{name}: finds names or code only when it is called")
        return
    if name not in sys.modules:
        refs.unknown.append(f"import.{name}: not imported yet; an import at the top of the file is seen")
        return
    if not wanted:  # `import a.b` binds a
        top = name.partition(".")[0]
        refs.values |= {f"import {each}": sys.modules[each] for each in {top, name} if each in sys.modules}
        return
    for attribute in wanted:
        label = f"{name}.{attribute}"
        value = vars(sys.modules[name]).get(attribute, sys.modules.get(label, refs))
        if value is refs:
            refs.unknown.append(f"import.{label}: is not there yet")
        else:
            refs.values[f"import {label}"] = value


# ---- whose code it is ------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def is_library(module: str, file: str | None = None) -> bool:
    """Whether a module (or the code in a file) is installed: of Python, of a package with a version, or of this one.

    A file of the user's own that has a name of the standard library's is the user's own.
    """
    top = module.partition(".")[0]
    if top in ("__main__", "__mp_main__") and file is None:
        return False
    path = file if file is not None else _file_of(module)
    if path is None:
        return top in sys.stdlib_module_names
    if path.startswith("<frozen"):
        return True
    path = os.path.realpath(path)
    if path.startswith(_HOME):
        return True
    if any(part in path for part in _INSTALLED):
        package = next(path.rpartition(part)[2] for part in _INSTALLED if part in path).partition(os.sep)[0]
        return version_of(package.removesuffix(".py").partition(".")[0]) != str(None)
    return path.startswith(_STDLIB)


def _file_of(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is None:
        loaded = sys.modules.get(module.partition(".")[0])
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def file_digest(module: str) -> str:
    """Stands for the source file of a module of the user's own."""
    path = _file_of(module)
    if path is None or not os.path.isfile(path):
        return module
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()


def version_of(module: str) -> str:
    """The version of the package that a module belongs to; Python's for the standard library.

    Example:
        >>> from cedar.core.references import version_of
        >>> import numpy
        >>> version_of("numpy.linalg") == numpy.__version__
        True
    """
    return _version_of(module.partition(".")[0])


@functools.lru_cache(maxsize=4096)
def _version_of(top: str) -> str:
    if top in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    loaded = getattr(sys.modules.get(top), "__version__", None)
    if top == __name__.partition(".")[0]:
        return str(loaded)
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(top)
    return importlib.metadata.version(names[0]) if names else str(loaded)
