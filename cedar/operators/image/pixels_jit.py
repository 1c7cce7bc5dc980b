"""numba for kernels on pixels: imported when the first kernel is, with a cache on disk where one can be written."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from cedar.errors import PipelineError, user_site

F = TypeVar("F", bound=Callable[..., Any])


def numba() -> Any:
    """The numba module.

    Raises:
        PipelineError: it is not installed, or does not load.
    """
    try:
        return importlib.import_module("numba")
    except ImportError as error:
        raise PipelineError(
            f"image operators need numba: {error}", site=user_site(), fix="pip install 'cedar[images]'"
        ) from error


def kernel(signature: str | None = None) -> Callable[[F], F]:
    """Compile a function to machine code that runs without the GIL; kept on disk, so that a later process loads it.

    With a signature it is compiled (or loaded) at once, and takes no other types.
    """
    nb = numba()

    def compiled(fn: F) -> F:
        arguments = () if signature is None else (signature,)
        options = {"nogil": True, "error_model": "numpy"}
        try:
            return nb.njit(*arguments, cache=True, **options)(fn)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder for the cache can be written: it is compiled in every process
            return nb.njit(*arguments, **options)(fn)  # type: ignore[no-any-return]

    return compiled


def part(name: str) -> Any:
    """A module of numba's, by its full name."""
    return importlib.import_module(name)
