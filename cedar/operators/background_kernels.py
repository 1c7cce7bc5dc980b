"""Background compilation of kernels: a separate process compiles them while the run continues.

Until then, operators use a slower implementation with bit-identical results. Compiled kernels are stored on disk.
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

VARIABLE = "CEDAR_KERNELS"  # "wait": operators wait for compiled kernels instead of using the slower path
_SILENT_SECONDS = 2.0  # seconds of compiling before a message is printed
_POLL_SECONDS = 0.02
_COMPILE_SCRIPT = (
    "import sys; sys.path[:] = {path!r}; "
    "from cedar.operators.background_kernels import make; make({module!r}, {names!r}, {parent})"
)
_log = logging.getLogger("cedar")
_loaded: dict[str, Any] = {}


def kernels(module: str, *names: str) -> Any:
    """Return an object with a module's kernels as attributes; None while they compile or if compilation failed.

    Args:
        module: the module's full name; only the compiling process imports the module.
        names: the names of the kernels.

    Raises:
        PipelineError: numba is not installed; or ``CEDAR_KERNELS=wait`` is set and compilation failed.
    """
    loaded = _loaded.get(module)
    if loaded is not None:
        return loaded
    with _lock:
        if module not in _loaded and module not in _compile_queue.known:
            _load(module)
            if module not in _loaded and module not in _compile_queue.known:
                _compile_queue.enqueue(module, names)
    if os.environ.get(VARIABLE) == "wait":
        _compile_queue.wait()
        if module in _compile_queue.failed:
            raise PipelineError(f"kernels are not available: {_compile_queue.failed[module]}", site=user_site())
    return _loaded.get(module)


def is_compiling() -> bool:
    """Return whether kernels are compiling, so that operators use the much slower implementation."""
    return _compile_queue.is_compiling


def _load(module: str) -> None:
    """Load a module's compiled kernels if they are on disk. The caller must hold ``_lock``."""
    try:
        found = native.load(module)
    except ImportError as error:
        raise PipelineError(
            f"kernels of images and sound need numba: {error}",
            site=user_site(),
            fix="pip install 'cedar-data[images]', or 'cedar-data[audio]'",
        ) from error
    except Exception as error:  # noqa: BLE001 - after any linker error, operators use the slower implementation
        _compile_queue.record_failure(module, f"the stored kernels cannot be linked: {error}")
        return
    if found is not None:
        _loaded[module] = found


class _CompileQueue:
    """A queue of modules. Another process compiles each in turn, and this process then loads the kernels."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.failed: dict[str, str] = {}
        self._waiting: deque[tuple[str, Sequence[str]]] = deque()
        self._thread: threading.Thread | None = None

    def enqueue(self, module: str, names: Sequence[str]) -> None:
        """Add a module to the queue. The caller must hold ``_lock``."""
        self.known.add(module)
        self._waiting.append((module, names))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="cedar-kernels", daemon=True)
            thread.start()
            self._thread = thread

    @property
    def is_compiling(self) -> bool:
        return self._thread is not None

    def wait(self) -> None:
        """Wait until every queued module is compiled."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def record_failure(self, module: str, why: str) -> None:
        """Record that a module cannot be compiled, and log it."""
        self.known.add(module)
        self.failed[module] = why
        _log.warning("compiled kernels are not available, so rows take many times as long: %s", why)

    def _run(self) -> None:
        began, reported = time.perf_counter(), False
        while wanted := self._next():
            module, names = wanted
            try:
                with tempfile.TemporaryFile() as errors:
                    process = _process(module, names, errors)
                    while process.poll() is None:
                        time.sleep(_POLL_SECONDS)
                        if not reported and time.perf_counter() - began > _SILENT_SECONDS:
                            reported = True
                            say("compiling kernels in the background, once on this machine; rows are slow until then")
                    with _lock:
                        _load(module)
                    why = f"they could not be compiled: {_reason(errors)}"
            except Exception as error:  # noqa: BLE001 - a failed compilation must not end the run
                why = f"they could not be compiled: {error}"
            if module not in _loaded and module not in self.failed:
                self.record_failure(module, why)
        if reported and not self.failed:
            say(f"kernels are compiled, after {time.perf_counter() - began:.0f} s")

    def _next(self) -> tuple[str, Sequence[str]] | None:
        with _lock:
            if self._waiting:
                return self._waiting.popleft()
            self._thread = None
            return None


def say(text: str) -> None:
    """Print a message if a user can see it (a terminal or a notebook); otherwise log it."""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        print(f"cedar: {text}", file=sys.stderr, flush=True)  # noqa: T201 - progress for a waiting user
    else:
        _log.info("%s", text)


def _reason(errors: IO[bytes]) -> str:
    """Return the exception line of the last traceback in a process's stderr; without a traceback, the first line."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").splitlines()
    inside = [i for i, line in enumerate(lines) if line.startswith("  File ")]
    behind = [line for line in lines[inside[-1] if inside else 0 :] if line and not line.startswith(" ")]
    return behind[0] if behind else "the compiler printed nothing"


def _process(
    module: str, names: Sequence[str], errors: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a process that compiles a module and stores the kernels on disk for this and later processes."""
    code = _COMPILE_SCRIPT.format(path=sys.path, module=module, names=tuple(names), parent=os.getpid())
    command = [sys.executable, "-P", "-c", code]
    nothing: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    env = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}  # the result is shared
    process = subprocess.Popen(command, process_group=0, stderr=errors, env=env, **nothing)  # noqa: S603 - Python
    atexit.register(process.kill)
    return process


def make(module: str, names: Sequence[str], parent: int) -> None:
    """Compile a module unless its kernels are stored; this function runs in the process that ``_process`` starts.

    That process ends with its parent. It has normal priority, because compiled kernels are ten times as fast.
    """
    from cedar.operators.jit import compile_for_storage

    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    with native.turn(module):
        if not native.kept(module):
            sources = native.sources_of(module)
            native.keep(module, compile_for_storage(module, names), sources)


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def _reset_after_fork() -> None:
    """Replace the queue in a forked process, because the compiling thread does not exist there."""
    global _compile_queue  # noqa: PLW0603
    _compile_queue = _CompileQueue()


slow_path_lock = (
    forks.Lock()
)  # lets only one thread at a time run a slow implementation, so that the compiler gets a core
_lock = forks.Lock()
_compile_queue = _CompileQueue()
os.register_at_fork(after_in_child=_reset_after_fork)
