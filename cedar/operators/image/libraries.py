"""The libraries of the extra ``images``, imported when they are first needed."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from cedar.core.errors import PipelineError, user_site


@lru_cache
def library(name: str, what: str) -> Any:
    """A module.

    Args:
        name: of the module.
        what: needs it.

    Raises:
        PipelineError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PipelineError(
            f"{what} needs {name.partition('.')[0]}, which cannot be imported: {error}",
            site=user_site(),
            fix="pip install 'cedar-data[images]'",
        ) from error
