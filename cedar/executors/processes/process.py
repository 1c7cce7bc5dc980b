"""WorkerProcess: start a worker process, communicate with it, and end it."""

from __future__ import annotations

import logging
import socket
from concurrent.futures import BrokenExecutor

from cedar.executors.processes import memory
from cedar.executors.processes.forkserver import ForkedWorker, server
from cedar.executors.processes.memory import ending
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

    _kill_reason = ""

    def __init__(self) -> None:
        forks = server()
        with fork_lock:  # a child that is forked here would keep the worker's end open, and so hide its death
            parent_end, worker_end = socket.socketpair()
            with worker_end:
                self.wire = Wire(parent_end)
                self.known: set[str] = set()  # keys of the code that the worker has
                self._kills_before = memory.kills()
                level = logging.getLogger("cedar").getEffectiveLevel()
                try:
                    self._process: ForkedWorker = forks.fork(worker_end.fileno(), level)
                except OSError:
                    self.wire.close()
                    raise
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and not self.wire.ended()

    def kill(self, why: str = "") -> None:
        """Kill the worker immediately. Its keeper then calls ``end``, whose description includes ``why``."""
        self._kill_reason = self._kill_reason or why
        self._process.kill()

    def end(self) -> str:
        """End the worker if it is still running, and describe how it ended."""
        self.wire.close()
        try:
            code = self._process.wait(0.5)  # the worker exits when its wire closes
        except TimeoutError:
            self._process.kill()
            try:
                code = self._process.wait(_KILL_SECONDS)
            except TimeoutError:  # a process inside a system call may not end until the call returns
                return f"{self._kill_reason or 'killed by SIGKILL'}, but still waiting in the kernel"
        if self._kill_reason:
            return f"{self._kill_reason}, ended by SIGKILL"
        return ending(code, self._kills_before)
