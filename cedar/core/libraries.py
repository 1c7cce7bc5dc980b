"""Import of optional libraries when they are first needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from cedar.core.errors import CedarError, PipelineError, user_site


@lru_cache
def library(name: str, extra: str, feature: str) -> Any:
    """Import and return a module.

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
        raise PipelineError(
            f"{feature} needs {name.partition('.')[0]}, which cannot be imported: {error}",
            site=user_site(),
            fix=f"pip install 'cedar-data[{extra}]'",
        ) from error


@contextmanager
def plain_errors() -> Iterator[None]:
    """Convert a panic of a Rust library, which is not an ``Exception``, to a ValueError without a backtrace."""
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
