"""Spare: a worker that stands by, so that one that died is replaced at once and not after the time of a start."""

from __future__ import annotations

import threading

from cedar.execution.processes.process import WorkerProcess
from cedar.execution.processes.wire import decode
from cedar.execution.processes.worker import Ready


class Spare(threading.Thread):
    """Keeps one worker ready: the first is started at the lowest priority, as nobody may ever need it.

    The thread lives as long as the pool: the kernel ends a worker with the thread that started it.
    """

    def __init__(self) -> None:
        super().__init__(name="worker-keeper-spare", daemon=True)
        self._changed = threading.Condition()
        self._wanted = False
        self._closed = False
        self._taken = False
        self._standing: WorkerProcess | None = None
        self._starting: WorkerProcess | None = None

    def want(self) -> None:
        """From now on, one is to stand by."""
        with self._changed:
            if self._closed or self._wanted:
                return
            self._wanted = True
            if self.ident is None:
                self.start()
            self._changed.notify()

    def take(self) -> WorkerProcess | None:
        """The one that stands by, and lives; another one takes its place."""
        with self._changed:
            worker, self._standing = self._standing, None
            self._taken = self._taken or self._wanted
            self._changed.notify()
        if worker is None or worker.alive:
            return worker
        worker.end()
        return None

    @property
    def standing(self) -> bool:
        return self._standing is not None

    def close(self) -> None:
        """End it."""
        with self._changed:
            self._closed = True
            for worker in (self._starting, self._standing):
                if worker is not None:
                    worker.kill()
            self._changed.notify()

    def abandon(self) -> None:
        """In a forked process, where it is not ours."""
        for worker in (self._starting, self._standing):
            if worker is not None:
                worker.wire.close()

    def run(self) -> None:
        while self._wait():
            worker = self._start()
            with self._changed:
                self._starting = None
                if worker is not None and not self._closed:
                    self._standing = worker
                    continue
                self._wanted = False  # it does not start: not before somebody asks again
            if worker is not None:
                worker.end()

    def _wait(self) -> bool:
        with self._changed:
            while not self._closed and (self._standing is not None or not self._wanted):
                self._changed.wait()
            standing, closed = self._standing, self._closed
        if closed and standing is not None:
            standing.end()
        return not closed

    def _start(self) -> WorkerProcess | None:
        try:
            worker = WorkerProcess(idle=not self._taken)
        except OSError:
            return None
        with self._changed:
            self._starting = worker
            if self._closed:
                worker.kill()
        try:
            while not isinstance(decode(worker.wire.receive()), Ready):
                pass  # a line for the log from an import
        except Exception:  # noqa: BLE001 - whatever it is, the pool goes on without a spare
            worker.kill()
            worker.end()
            return None
        return worker
