"""Check for the libraries of the extra ``audio``, which are imported at first use."""

from __future__ import annotations

import importlib
import importlib.util
from functools import lru_cache

from cedar.core.errors import invalid_call

_INSTALL_HINT = "pip install 'cedar-data[audio]'"


def require_libraries(name: str, *modules: str) -> None:
    """Check that the libraries of a transform are installed.

    Raises:
        PipelineError: a library is missing; the error names the user's line.
    """
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        raise invalid_call(f"audio.{name} needs {' and '.join(missing)}", fix=_INSTALL_HINT)


@lru_cache
def is_installed(module: str) -> bool:
    """Return whether a module can be imported."""
    return importlib.util.find_spec(module) is not None
