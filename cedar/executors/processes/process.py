"""WorkerProcess: a process that has done nothing yet, started, spoken to, and ended."""

from __future__ import annotations

import logging
import socket
from concurrent.futures import BrokenExecutor

from cedar.executors.processes import memory
from cedar.executors.processes.forkserver import Forked, server
from cedar.executors.processes.memory import ending
from cedar.executors.worker.arena import forking
from cedar.executors.worker.wire import Wire

_LAST = 5.0  # seconds for a process that was killed


class WorkerDied(BrokenExecutor):
    """A worker process ended while it had a task, or did not start (``started``), or brings no result (``ended``)."""

    def __init__(self, how: str, started: bool = True, ended: bool = True) -> None:
        super().__init__(how if started else f"it could not be started ({how})")
        self.started = started
        self.ended = ended


class WorkerProcess:
    """One worker, without the user's ``__main__``.

    Raises:
        OSError: no process can be started.
    """

    _why = ""

    def __init__(self) -> None:
        forks = server()
        with forking:  # a fork right now would keep the worker's end open, and its death would go unnoticed
            here, worker_end = socket.socketpair()
            with worker_end:
                self.wire = Wire(here)
                self.known: set[str] = set()  # keys of the code that it has
                self._kills = memory.kills()
                level = logging.getLogger("cedar").getEffectiveLevel()
                try:
                    self._process: Forked = forks.fork(worker_end.fileno(), level)
                except OSError:
                    self.wire.close()
                    raise
        self.pid = self._process.pid

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
        except TimeoutError:
            self._process.kill()
            try:
                code = self._process.wait(_LAST)
            except TimeoutError:  # nothing can: it goes once the kernel lets it
                return f"{self._why or 'killed by SIGKILL'}, and still there: it waits in the kernel"
        if self._why:
            return f"{self._why}, ended by SIGKILL"
        return ending(code, self._kills)
