"""Checks for the libraries of the extra ``audio``, which are imported when first used."""

from __future__ import annotations

import importlib
import importlib.util
from functools import lru_cache

from cedar.core.errors import PipelineError, user_site

_EXTRA = "pip install 'cedar-data[audio]'"


def require(name: str, *modules: str) -> None:
    """Check that the libraries of a transform are installed.

    Raises:
        PipelineError: a library is missing; the error names the user's line.
    """
    missing = [module for module in modules if not installed(module)]
    if missing:
        raise PipelineError(f"audio.{name} needs {' and '.join(missing)}", site=user_site(), fix=_EXTRA)


@lru_cache
def installed(module: str) -> bool:
    """Return whether a module can be imported."""
    return importlib.util.find_spec(module) is not None
