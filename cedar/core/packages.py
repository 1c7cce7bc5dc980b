"""Whether code belongs to an installed package or to the user, and the versions of packages."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import sysconfig
from typing import Any

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_STDLIB = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))


@functools.lru_cache(maxsize=4096)
def is_library(module: str, file: str | None = None) -> bool:
    """Whether a module (or the code in a file) belongs to Python, to an installed package with a version, or to cedar.

    A user's file that has the name of a standard library module belongs to the user.
    """
    top = module.partition(".")[0]
    if top in ("__main__", "__mp_main__") and file is None:
        return False
    path = file if file is not None else file_of(module)
    if path is None:
        return top in sys.stdlib_module_names
    if path.startswith("<frozen"):
        return True
    path = os.path.realpath(path)
    if any(part in path for part in _INSTALLED):
        package = next(path.rpartition(part)[2] for part in _INSTALLED if part in path).partition(os.sep)[0]
        return version_of(package.removesuffix(".py").partition(".")[0]) != str(None)
    return path.startswith((_HOME, *_STDLIB))


def installed(path: str) -> bool:
    return path.startswith(_STDLIB) or any(part in path for part in _INSTALLED)


def loaded(name: str) -> Any:
    """Return a module; None unless it was imported, and is not still being imported by another thread."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def file_of(module: str) -> str | None:
    found = sys.modules.get(module, sys.modules.get(module.partition(".")[0]))
    if found is not None:
        return getattr(found, "__file__", None)
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def version_of(module: str) -> str:
    """Return the version of the package that a module belongs to; Python's version for the standard library.

    Examples:
        >>> import numpy
        >>> version_of("numpy.linalg") == numpy.__version__
        True
    """
    return _version_of(module.partition(".")[0])


@functools.lru_cache(maxsize=4096)
def _version_of(top: str) -> str:
    import importlib.metadata  # imports the email package, which tasks do not need

    if top in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    version = getattr(sys.modules.get(top), "__version__", None)
    if top == __name__.partition(".")[0]:
        return str(version)
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(top)
    return importlib.metadata.version(names[0]) if names else str(version)
