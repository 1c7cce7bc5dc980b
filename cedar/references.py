"""What a function refers to outside itself, and which packages are installed rather than the user's own."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_STDLIB = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))


def references(fn: FunctionType) -> dict[str, Any]:
    """The globals that a function's code names, nested functions included, by ``global name`` and ``import name``.

    A module of the user's own stands for those of its attributes that the code may mean.
    """
    codes = list(_nested(fn.__code__))
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for code in codes for name in _loaded(code)):
        if name in fn.__globals__:
            found[f"global {name}"] = _narrowed(fn.__globals__[name], tuple(names))
    for name in dict.fromkeys(name for code in codes for name in _imported(code)):
        found[f"import {name}"] = version_of(name) if is_library(name) else file_digest(name)
    return found


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _loaded(code: CodeType) -> list[str]:
    return [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]


def _imported(code: CodeType) -> list[str]:
    return [i.argval for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"]


def _narrowed(value: Any, names: tuple[str, ...], seen: frozenset[str] = frozenset()) -> Any:
    if not isinstance(value, ModuleType) or is_library(value.__name__):
        return value
    seen |= {value.__name__}
    known = {name: vars(value)[name] for name in names if name in vars(value)}
    return {
        name: _narrowed(attribute, names, seen)
        for name, attribute in known.items()
        if not isinstance(attribute, ModuleType) or attribute.__name__ not in seen
    }


@functools.lru_cache(maxsize=4096)
def is_library(module: str, file: str | None = None) -> bool:
    """Whether a module (or the code in a file) is installed: of Python, of a package, or of this one."""
    top = module.partition(".")[0]
    if top in ("__main__", "__mp_main__"):
        return False
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return True
    path = file if file is not None else _file_of(module)
    if path is None or path.startswith("<frozen"):
        return path is not None
    path = os.path.realpath(path)
    return any(part in path for part in _INSTALLED) or path.startswith((_HOME, *_STDLIB))


def _file_of(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None else None


def file_digest(module: str) -> str:
    """Stands for the source file of a module of the user's own."""
    path = _file_of(module)
    if path is None or not os.path.isfile(path):
        return module
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()


@functools.lru_cache(maxsize=4096)
def version_of(module: str) -> str:
    """The version of the package that a module belongs to; Python's for the standard library.

    Example:
        >>> from cedar.references import version_of
        >>> import numpy
        >>> version_of("numpy.linalg") == numpy.__version__
        True
    """
    top = module.partition(".")[0]
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
