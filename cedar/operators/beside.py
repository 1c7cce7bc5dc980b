"""Kernels beside a run: where they were never compiled on this machine, another process does it, and nobody waits.

Until then operators take a slower way to the same bits. Kernels that are on disk already are loaded at once.
"""

from __future__ import annotations

import atexit
import fcntl
import glob
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any

from cedar.core import forks
from cedar.core.private_folder import private_folder
from cedar.operators import jit

VARIABLE = "CEDAR_KERNELS"  # "wait": who needs kernels waits until they are compiled
_SILENT = 2.0  # seconds before somebody is told
_LOOK = 0.02
_CODE = (
    "import sys; sys.path[:] = {path!r}; from cedar.operators.beside import make; make({module!r}, {last!r}, {parent})"
)


def kernels(module: str, last: str) -> Any:
    """A module of kernels; None while it is compiled beside the run.

    Args:
        module: by its full name.
        last: the kernel in it that is compiled last.

    Raises:
        PipelineError: numba is not installed, or does not load.
    """
    loaded = sys.modules.get(module)
    if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
        return loaded
    with _lock:
        if module not in _making.known and not _waits(module, last):
            _making.want(module, last)
    return _making.result(module) if module in _making.known else importlib.import_module(module)


def under_way() -> bool:
    """Kernels are compiled: what takes their place takes many times as long."""
    return _making.under_way


def _waits(module: str, last: str) -> bool:
    """They are there in a moment, or that is what was asked for, or nothing could compile them."""
    numba = importlib.util.find_spec("numba")
    return numba is None or os.environ.get(VARIABLE) == "wait" or _on_disk(module, last)


def _on_disk(module: str, last: str) -> bool:
    """Where numba keeps kernels there is the last one, not older than its code; numba itself need not be imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    folder, file = os.path.split(spec.origin)
    given = os.environ.get("NUMBA_CACHE_DIR")
    users = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    places = [os.path.join(glob.escape(given or users), "*")]
    places += [] if given else [glob.escape(os.path.join(folder, "__pycache__"))]
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    for place in places:
        for kept in glob.iglob(os.path.join(place, f"{file.removesuffix('.py')}.{last}-*.{tag}.nbi")):
            if os.path.getmtime(kept) >= os.path.getmtime(spec.origin):
                return True
    return False


class _Making:
    """Modules that are compiled, one after the other, by another process, and then loaded here."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self._waiting: deque[tuple[str, str]] = deque()
        self._done: dict[str, Any] = {}  # the module, or what importing it raised
        self._thread: threading.Thread | None = None

    def want(self, module: str, last: str) -> None:
        """Compile one more; to be called with the lock."""
        self.known.add(module)
        self._waiting.append((module, last))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cedar-kernels", daemon=True)
            self._thread.start()

    @property
    def under_way(self) -> bool:
        return self._thread is not None

    def result(self, module: str) -> Any:
        """The module once it is loaded, else None.

        Raises:
            Exception: what importing it raised.
        """
        outcome = self._done.get(module)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _run(self) -> None:
        began, told = time.perf_counter(), False
        while wanted := self._next():
            module, process = wanted[0], _process(*wanted)
            while process is not None and process.poll() is None:
                time.sleep(_LOOK)
                if not told and time.perf_counter() - began > _SILENT:
                    told = True
                    jit.say("compiling kernels beside the run, once on this machine; until then rows take longer")
            try:  # where the other process could not, it is compiled now, and the run shares the GIL with that
                self._done[module] = importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 - who asks for it next is told
                self._done[module] = error
        if told:
            jit.say(f"kernels are compiled, after {time.perf_counter() - began:.0f} s")

    def _next(self) -> tuple[str, str] | None:
        with _lock:
            if self._waiting:
                return self._waiting.popleft()
            self._thread = None
            return None


def _process(module: str, last: str) -> subprocess.Popen[bytes] | None:
    """Compiles a module for all that come after it; None where there can be no other process."""
    code = _CODE.format(path=sys.path, module=module, last=last, parent=os.getpid())
    command = [sys.executable, "-P", "-c", code]
    nothing: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(command, process_group=0, **nothing)  # noqa: S603 - Python itself
    except OSError:
        return None
    atexit.register(process.kill)
    return process


def make(module: str, last: str, parent: int) -> None:
    """In a process of its own: compile a module unless another one of this user does or did; end with the parent.

    It has as much of the cores as the run: kernels are ten times as fast as what stands in for them.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    folder = private_folder()
    with open(os.path.join(folder, "kernels.lock") if folder else os.devnull, "w", encoding="ascii") as turn:
        if folder:
            fcntl.flock(turn, fcntl.LOCK_EX)
        if not _on_disk(module, last):
            importlib.import_module(module)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)


def _renew() -> None:
    """In a process that was forked in the meantime, nobody compiles."""
    global _making  # noqa: PLW0603
    _making = _Making()


in_turn = forks.Lock()  # held by what stands in for kernels: one thread at a time leaves a core to the compiler
_lock = forks.Lock()
_making = _Making()
os.register_at_fork(after_in_child=_renew)
