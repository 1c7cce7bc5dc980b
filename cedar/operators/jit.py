"""Loops as machine code: compiled by numba, run without the GIL, kept on disk for the next process to load."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from cedar.core import forks
from cedar.core.errors import PipelineError, user_site

F = TypeVar("F", bound=Callable[..., Any])

_lock = forks.Lock()
_log = logging.getLogger("cedar")
_told = False
_spent = 0.0  # seconds that compilation took in this process
_SILENT = 2.0  # seconds of it before somebody is told
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
            fix="pip install 'cedar-data[images]', or 'cedar-data[audio]'",
        ) from error


def kernel(signature: str | None = None) -> Callable[[F], F]:
    """Compile a function to machine code that runs without the GIL; kept on disk, so that a later process loads it.

    Args:
        signature: compiled (or loaded) at once for it, and takes no other types; None waits for the first call.
    """
    nb = numba()

    def compiled(fn: F) -> F:
        arguments = () if signature is None else (signature,)
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        try:
            return _timed(lambda fn: _kept(nb.njit(cache=True, **options)(fn), arguments), fn)
        except RuntimeError:  # no folder for the cache can be written: it is compiled in every process
            return nb.njit(*arguments, **options)(fn)  # type: ignore[no-any-return]
        finally:
            _loaded.set()

    return compiled


def _kept(made: Any, signature: tuple[str, ...]) -> Any:
    """A dispatcher that is compiled whatever its cache on disk is like: full, torn or gone."""
    cache: Any = getattr(made, "_cache", None)
    if hasattr(cache, "_guard_against_spurious_io_errors"):  # numba's own lets only some of them pass
        cache._guard_against_spurious_io_errors = lambda: _without(cache)
        cache.load_overload = partial(_from_disk, cache)
    if signature:
        made.compile(*signature)
        made.disable_compile()
    return made


def _from_disk(cache: Any, signature: Any, context: Any) -> Any:
    """What a cache keeps. numba would first load all that it compiles with, which takes as long as the kernels; where
    it then has to compile, it loads that by itself.
    """
    part("numba.core.runtime").rtsys.initialize(context)  # of the memory that kernels ask for
    with _without(cache):
        return cache._load_overload(signature, context)


@contextlib.contextmanager
def _without(cache: Any) -> Iterator[None]:
    """Goes on where a cache cannot be read or written, and empties it, so that the next process finds none."""
    global _told  # noqa: PLW0603 - one note in a process
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever comes out of a torn file
        if not _told:
            _told = True
            _log.warning("kernels are compiled anew: what was kept of them on disk cannot be used: %s", error)
        with contextlib.suppress(Exception):
            cache.flush()


def _timed(compile_: Callable[[F], F], fn: F) -> F:
    """Compile, and say so once that has taken seconds: a first run on a machine would stand still without a word."""
    global _spent
    began = time.perf_counter()
    made = compile_(fn)
    if any(getattr(getattr(made, "stats", None), "cache_misses", {}).values()):
        before, _spent = _spent, _spent + time.perf_counter() - began
        if before < _SILENT <= _spent:
            say("compiling kernels, once on this machine; the first batch waits for them")
    return made


def say(text: str) -> None:
    """To people who look: a terminal or a notebook; else to the log."""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        print(f"cedar: {text}", file=sys.stderr, flush=True)  # noqa: T201 - somebody waits for it
    else:
        _log.info("%s", text)


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


# ---- the pages of a library ------------------------------------------------------------------------------------------


_DONT_NEED = 4  # MADV_DONTNEED on every Linux
_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s*(.*)$")


def let_go(library: str) -> int:
    """Give pages of a library's code and constants back to the system, which reads them again if they are needed.

    Pages that this process has written to, such as those of addresses, stay. Linux only; elsewhere nothing is done.

    Args:
        library: what its file's name begins with.

    Returns:
        The bytes that were in memory.

    Example:
        >>> let_go("libunheard")
        0
    """
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
            clean = list(_clean(library, lines))
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return 0
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return sum(resident for start, stop, resident in clean if advise(start, stop - start, _DONT_NEED) == 0)


def _clean(library: str, lines: Iterator[str]) -> Iterator[tuple[int, int, int]]:
    """Where the parts of the library lie that can only be read and were never written: start, stop, bytes in memory."""
    start = stop = resident = 0
    ours = written = False
    for line in lines:
        if head := _HEAD.match(line):
            start, stop = int(head[1], 16), int(head[2], 16)
            ours, written = "w" not in head[3] and head[4].rpartition("/")[2].startswith(library), False
        elif ours and line.startswith("Rss:"):
            resident = int(line.split()[1]) << 10
        elif ours and line.startswith(("Anonymous:", "Swap:")):
            written |= int(line.split()[1]) > 0
        elif ours and line.startswith("VmFlags:") and resident and not written:  # the last line of a part
            yield start, stop, resident
