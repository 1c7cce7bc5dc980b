"""Kernels next to a run: where they were never compiled on this machine, another process does it, and nothing waits.

Until then operators take a slower way to the same bits. Kernels that are kept already are loaded at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import IO, Any

from cedar.core import forks
from cedar.core.errors import PipelineError, user_site
from cedar.operators import native

VARIABLE = "CEDAR_KERNELS"  # "wait": who needs kernels waits until they are compiled, and does not do without
_SILENT = 2.0  # seconds before a message
_LOOK = 0.02
_CODE = (
    "import sys; sys.path[:] = {path!r}; from cedar.operators.beside import make; make({module!r}, {names!r}, {parent})"
)
_log = logging.getLogger("cedar")
_loaded: dict[str, Any] = {}


def kernels(module: str, *names: str) -> Any:
    """Kernels of a module, as attributes; None while they are compiled next to the run, or if nothing can do that.

    Args:
        module: by its full name; it is imported by the process that compiles, and not here.
        names: of the kernels.

    Raises:
        PipelineError: numba, which compiles them, is not installed; or they are waited for, and not available.
    """
    loaded = _loaded.get(module)
    if loaded is not None:
        return loaded
    with _lock:
        if module not in _loaded and module not in _making.known:
            _load(module)
            if module not in _loaded and module not in _making.known:
                _making.want(module, names)
    if os.environ.get(VARIABLE) == "wait":
        _making.wait()
        if module in _making.failed:
            raise PipelineError(f"there are no kernels: {_making.failed[module]}", site=user_site())
    return _loaded.get(module)


def under_way() -> bool:
    """Kernels are compiled: what takes their place takes many times as long."""
    return _making.under_way


def _load(module: str) -> None:
    """Load a module where it is kept; to be called with the lock."""
    try:
        found = native.load(module)
    except ImportError as error:
        raise PipelineError(
            f"kernels of images and sound need numba: {error}",
            site=user_site(),
            fix="pip install 'cedar-data[images]', or 'cedar-data[audio]'",
        ) from error
    except Exception as error:  # noqa: BLE001 - whatever a linker throws: rows have a slower way
        _making.fails(module, f"those on disk cannot be linked: {error}")
        return
    if found is not None:
        _loaded[module] = found


class _Making:
    """Modules that are compiled, one after the other, by another process, and then loaded here."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.failed: dict[str, str] = {}
        self._waiting: deque[tuple[str, Sequence[str]]] = deque()
        self._thread: threading.Thread | None = None

    def want(self, module: str, names: Sequence[str]) -> None:
        """Compile one more; to be called with the lock."""
        self.known.add(module)
        self._waiting.append((module, names))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="cedar-kernels", daemon=True)
            thread.start()
            self._thread = thread

    @property
    def under_way(self) -> bool:
        return self._thread is not None

    def wait(self) -> None:
        """Until all that is needed is compiled."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def fails(self, module: str, why: str) -> None:
        """A module cannot be compiled; this is logged once."""
        self.known.add(module)
        self.failed[module] = why
        _log.warning("there are no kernels, and rows take many times as long without: %s", why)

    def _run(self) -> None:
        began, reported = time.perf_counter(), False
        while wanted := self._next():
            module, names = wanted
            try:
                with tempfile.TemporaryFile() as errors:
                    process = _process(module, names, errors)
                    while process.poll() is None:
                        time.sleep(_LOOK)
                        if not reported and time.perf_counter() - began > _SILENT:
                            reported = True
                            say("compiling kernels next to the run, once on this machine; until then rows take longer")
                    with _lock:
                        _load(module)
                    why = f"they could not be compiled: {_reason(errors)}"
            except Exception as error:  # noqa: BLE001 - whatever it is: a run does not end for it
                why = f"they could not be compiled: {error}"
            if module not in _loaded and module not in self.failed:
                self.fails(module, why)
        if reported and not self.failed:
            say(f"kernels are compiled, after {time.perf_counter() - began:.0f} s")

    def _next(self) -> tuple[str, Sequence[str]] | None:
        with _lock:
            if self._waiting:
                return self._waiting.popleft()
            self._thread = None
            return None


def say(text: str) -> None:
    """To people who look: a terminal or a notebook; else to the log."""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        print(f"cedar: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a caller waits for it
    else:
        _log.info("%s", text)


def _reason(errors: IO[bytes]) -> str:
    """What a process said last: of a traceback, the line of the exception."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").splitlines()
    inside = [i for i, line in enumerate(lines) if line.startswith("  File ")]
    behind = [line for line in lines[inside[-1] if inside else 0 :] if line and not line.startswith(" ")]
    return behind[0] if behind else "nothing was said"


def _process(
    module: str, names: Sequence[str], errors: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Compiles a module for all that come after it."""
    code = _CODE.format(path=sys.path, module=module, names=tuple(names), parent=os.getpid())
    command = [sys.executable, "-P", "-c", code]
    nothing: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    env = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}  # it is for all to use
    process = subprocess.Popen(command, process_group=0, stderr=errors, env=env, **nothing)  # noqa: S603 - Python
    atexit.register(process.kill)
    return process


def make(module: str, names: Sequence[str], parent: int) -> None:
    """In its own process: compile a module unless another one does or did; end with the parent.

    It has as much of the cores as the run: kernels are ten times as fast as what stands in for them.
    """
    from cedar.operators.jit import compile_to_keep

    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with native.turn(module):
        if not native.kept(module):
            sources = native.sources_of(module)
            native.keep(module, compile_to_keep(module, names), sources)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)


def _renew() -> None:
    """In a process that was forked in the meantime, nothing compiles."""
    global _making  # noqa: PLW0603
    _making = _Making()


in_turn = forks.Lock()  # held by what stands in for kernels: one thread at a time leaves a core to the compiler
_lock = forks.Lock()
_making = _Making()
os.register_at_fork(after_in_child=_renew)
