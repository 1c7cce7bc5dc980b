"""Installed packages: which code belongs to them, their versions, and imports of optional ones when first needed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

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


def spec_of(module: Any) -> Any:
    """Return the ``__spec__`` of an entry of ``sys.modules``, without importing a module that is loaded lazily."""
    try:
        return object.__getattribute__(module, "__spec__")
    except Exception:  # noqa: BLE001 - ``sys.modules`` may have any objects
        return None


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


# ---- imports when first needed; ``import cedar`` must not import ``errors`` ------------------------------------------


@functools.lru_cache
def library(name: str, extra: str, feature: str) -> Any:
    """Import and return a module of an optional library.

    Args:
        name: the name of the module.
        extra: the extra of cedar that installs it.
        feature: the feature that needs it, for the error.

    Raises:
        PipelineError: the module cannot be imported.

    Examples:
        >>> library("json", "all", "read_json").loads("[1]")
        [1]
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        from cedar.core.errors import PipelineError, user_site

        raise PipelineError(
            f"{feature} needs {name.partition('.')[0]}, which cannot be imported: {error}",
            site=user_site(),
            fix=f"pip install 'cedar-data[{extra}]'",
        ) from error


@contextmanager
def plain_errors() -> Iterator[None]:
    """Convert a panic of a Rust library, which is not an ``Exception``, to a ValueError without a backtrace."""
    from cedar.core.errors import CedarError

    try:
        yield
    except CedarError:
        raise
    except BaseException as error:
        text, _, trace = str(error).partition("Backtrace:")
        if type(error).__name__ == "PanicException":
            raise ValueError(f"its decoder failed: {text.strip()}") from error
        if trace:
            raise ValueError(text.strip()) from error
        raise


_extensions: dict[str, str] = {}  # the modules that extend the core, by name; the core never imports them directly


def register(name: str, module: str) -> None:
    """Register the module that extends the core under a name, replacing an earlier one. It is imported when first used.

    Examples:
        >>> register("example", "math")
        >>> extension("example").gcd(4, 6)
        2
    """
    _extensions[name] = module


def extension(name: str) -> ModuleType:
    """Return the module registered under this name, or a submodule of it: ``extension("lake.writing")``.

    Raises:
        PipelineError: the module is not installed.
    """
    first, dot, rest = name.partition(".")
    module = _extensions[first]
    try:
        return importlib.import_module(module + dot + rest)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        from cedar.core.errors import PipelineError

        raise PipelineError(f"this needs {module}, which is not installed", fix=f"install {module}") from error


def has_extension(name: str) -> bool:
    """Whether the module registered under this name is installed."""
    return importlib.util.find_spec(_extensions[name]) is not None


if TYPE_CHECKING:
    from polars import col as col  # noqa: PLC0414 - re-exported
else:

    class _Col:
        """``polars.col``: ``col("x")``, ``col.x``, ``col("^int_.*$")``. It imports polars when it is first used."""

        def __call__(self, *names: Any) -> Any:
            import polars as pl

            return pl.col(*names)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            import polars as pl

            return getattr(pl.col, name)

        def __repr__(self) -> str:
            return "cedar.col"

    col = _Col()
