"""Loops as machine code: compiled by numba, run without the GIL, kept on disk for the next process to load."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from cedar.errors import PipelineError, user_site
from cedar.mapped import let_go

F = TypeVar("F", bound=Callable[..., Any])

_lock = threading.Lock()
_loaded = threading.Event()  # a kernel, since the compiler's pages were let go of


def numba() -> Any:
    """The numba module.

    Raises:
        PipelineError: it is not installed, or does not load.
    """
    try:
        with _lock:
            return importlib.import_module("numba")
    except ImportError as error:
        raise PipelineError(
            f"kernels of images and sound need numba: {error}",
            site=user_site(),
            fix="pip install 'cedar[images]', or 'cedar[audio]'",
        ) from error


def kernel(signature: str | None = None, *, contract: bool = False) -> Callable[[F], F]:
    """Compile a function to machine code that runs without the GIL; kept on disk, so that a later process loads it.

    Args:
        signature: compiled (or loaded) at once for it, and takes no other types; None waits for the first call.
        contract: a product and a sum may become one instruction, where the processor has it. Nothing else is
            reordered, so that results are the same on every run on equal processors.
    """
    nb = numba()

    def compiled(fn: F) -> F:
        arguments = () if signature is None else (signature,)
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        if contract:
            options["fastmath"] = {"contract"}
        try:
            return nb.njit(*arguments, cache=True, **options)(fn)  # type: ignore[no-any-return]
        except RuntimeError:  # no folder for the cache can be written: it is compiled in every process
            return nb.njit(*arguments, **options)(fn)  # type: ignore[no-any-return]
        finally:
            _loaded.set()

    return compiled


def settle() -> None:
    """Let go of the pages of the compiler's own code, some 65 MB; called where a block is done.

    The kernels that such blocks need have been loaded by then.
    """
    if _loaded.is_set():
        _loaded.clear()
        with _lock:  # not while it is being loaded
            let_go("libllvmlite")


def part(name: str) -> Any:
    """A module of numba's, by its full name."""
    return importlib.import_module(name)
