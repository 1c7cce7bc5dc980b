"""How loops are compiled: by numba, without the interpreter's lock, kept on disk for the next process.

A product and a sum may become one instruction, where the processor has it; nothing else is reordered, so results are
the same on every run on equal processors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


def compiled(function: F) -> F:
    """The function, compiled when it is first called; on disk where a place to write to is found."""
    made: F
    try:
        made = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no such place
        made = njit(**_OPTIONS)(function)
    return made
