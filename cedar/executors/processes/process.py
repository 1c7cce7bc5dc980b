"""WorkerProcess: a fresh interpreter, started, spoken to, and ended."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import BrokenExecutor
from multiprocessing import spawn

import cedar
from cedar.core.numeric import NumericEnvironment
from cedar.executors.processes import memory
from cedar.executors.worker.arena import forking
from cedar.executors.worker.wire import Wire

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(cedar.__file__)))
_CODE = """\
import sys
sys.path[:] = {path!r}
sys.path.append({home!r})
from cedar.executors.worker.main import main
main({end}, {parent}, {level})
"""
_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "OPENCV_FOR_THREADS_NUM",
)  # fmt: skip
_LIMITS = dict.fromkeys(_VARIABLES, "1") | {"TOKENIZERS_PARALLELISM": "false"}


def thread_limits() -> dict[str, str]:
    """Of a worker's environment. polars' pool is as here: its number cannot be changed later, and shows in sums."""
    return _LIMITS | {"POLARS_MAX_THREADS": str(NumericEnvironment.of_caller().polars)}


_LAST = 5.0  # seconds for a process that was killed


class WorkerDied(BrokenExecutor):
    """A worker process ended while it had a task, or did not start (``started``)."""

    def __init__(self, how: str, started: bool = True) -> None:
        super().__init__(how if started else f"it could not be started ({how})")
        self.started = started


class WorkerProcess:
    """One worker. Python runs anew in it (it is not forked), without the user's ``__main__``.

    Raises:
        OSError: no process can be started.
    """

    _why = ""

    def __init__(self) -> None:
        with forking:  # a fork right now would keep the worker's end open, and its death would go unnoticed
            self._start()
        self.pid = self._process.pid

    def _start(self) -> None:
        here, worker_end = socket.socketpair()
        with worker_end:
            self.wire = Wire(here)
            self.known: set[str] = set()  # keys of the code that it has
            level = logging.getLogger("cedar").getEffectiveLevel()
            self._kills = memory.kills()
            code = _CODE.format(path=sys.path, home=_HOME, end=worker_end.fileno(), parent=os.getpid(), level=level)
            try:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - Python itself
                    [os.fsdecode(spawn.get_executable()), "-P", "-c", code],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[worker_end.fileno()],
                    env=thread_limits() | os.environ,
                    process_group=0,  # a Ctrl-C that comes before the worker ignores it does not reach it
                )
            except OSError:
                self.wire.close()
                raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and not self.wire.ended()

    def kill(self, why: str = "") -> None:
        """End it now, whatever it does; ``end`` has to follow, and tells why."""
        self._why = self._why or why
        self._process.kill()

    def end(self) -> str:
        """How it ended: it is made to, if it has not."""
        self.wire.close()
        try:
            code = self._process.wait(0.5)  # it exits by itself when its wire closes
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                code = self._process.wait(_LAST)
            except subprocess.TimeoutExpired:  # nobody can: it goes once the kernel lets it
                return f"{self._why or 'killed by SIGKILL'}, and still there: it waits in the kernel"
        if self._why:
            return f"{self._why}, ended by SIGKILL"
        return ending(code, self._kills)


def ending(code: int, kills: int | None) -> str:
    """How a process ended, in words.

    Args:
        code: exit code, or the signal below 0.
        kills: for memory, as they were counted when it began (``memory.kills``).
    """
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        if memory.was_killed(kills):
            return "killed by SIGKILL: out of memory, says the kernel"
        return "killed by SIGKILL" if kills is not None else "killed by SIGKILL (by the kernel, out of memory?)"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
