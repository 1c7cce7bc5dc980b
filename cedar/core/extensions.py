"""Packages that extend the core. The core looks them up by name when needed, and never imports them directly."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

_modules: dict[str, str] = {}


def register(name: str, module: str) -> None:
    """Register the module that extends the core under a name, replacing an earlier one. It is imported when first used.

    Examples:
        >>> register("example", "math")
        >>> extension("example").gcd(4, 6)
        2
    """
    _modules[name] = module


def extension(name: str) -> ModuleType:
    """Return the module registered under this name, or a submodule of it: ``extension("lake.writing")``.

    Raises:
        PipelineError: the module is not installed.
    """
    first, dot, rest = name.partition(".")
    module = _modules[first]
    try:
        return importlib.import_module(module + dot + rest)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        from cedar.core.errors import PipelineError  # not imported by ``import cedar``

        raise PipelineError(f"this needs {module}, which is not installed", fix=f"install {module}") from error


def installed(name: str) -> bool:
    """Whether the module registered under this name is installed."""
    return importlib.util.find_spec(_modules[name]) is not None
