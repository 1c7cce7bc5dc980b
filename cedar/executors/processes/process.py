"""WorkerProcess: start a worker process, communicate with it, and end it."""

from __future__ import annotations

import logging
import os
import signal
import socket
from concurrent.futures import BrokenExecutor
from contextlib import suppress

from cedar.executors.processes.forkserver import ending, kills_for_memory, server
from cedar.executors.worker.arena import fork_lock
from cedar.executors.worker.wire import Wire

_KILL_SECONDS = 5.0  # maximum seconds to wait for a killed process to end


class WorkerDied(BrokenExecutor):
    """A worker died during a task, did not start (``started=False``), or lost its result (``ended=False``)."""

    def __init__(self, how: str, started: bool = True, ended: bool = True) -> None:
        super().__init__(how if started else f"it could not be started ({how})")
        self.started = started
        self.ended = ended


class WorkerProcess:
    """One worker process. It does not import the user's ``__main__``.

    Raises:
        OSError: no process could be started.
    """

    def __init__(self) -> None:
        self._server = server()
        self._kill_reason = ""
        self._exit_code: int | None = None
        with fork_lock:  # a child that is forked here would keep the worker's end open, and so hide its death
            parent_end, worker_end = socket.socketpair()
            with worker_end:
                self.wire = Wire(parent_end)
                self.known: set[str] = set()  # keys of the code that the worker has
                self._kills_before = kills_for_memory()
                level = logging.getLogger("cedar").getEffectiveLevel()
                try:
                    self.pid = self._server.fork(worker_end.fileno(), level)
                except OSError:
                    self.wire.close()
                    raise

    @property
    def alive(self) -> bool:
        return self._wait(0.0) is None and not self.wire.ended()

    def _wait(self, seconds: float) -> int | None:
        """Return the exit code, or the negative signal number; None if the worker is still alive after ``seconds``."""
        if self._exit_code is None:
            code = self._server.exit_code_of(self.pid, seconds)
            if code is not None:  # otherwise another thread may have stored it
                self._exit_code = code
                self._server.forget(self.pid)
        return self._exit_code

    def kill(self, why: str = "") -> None:
        """Kill the worker immediately. Its keeper then calls ``end``, whose description includes ``why``."""
        self._kill_reason = self._kill_reason or why
        if self._wait(0.0) is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> str:
        """End the worker if it is still running, and describe how it ended."""
        self.wire.close()
        code = self._wait(0.5)  # the worker exits when its wire closes
        if code is None:
            self.kill()
            code = self._wait(_KILL_SECONDS)
        if code is None:  # a process inside a system call may not end until the call returns
            return f"{self._kill_reason or 'killed by SIGKILL'}, but still waiting in the kernel"
        if self._kill_reason:
            return f"{self._kill_reason}, ended by SIGKILL"
        return ending(code, self._kills_before)
