"""Spare: a worker that stands by, so that one that died is replaced at once and not after the time of a start."""

from __future__ import annotations

import math
import threading
import time

from cedar.executors.processes.process import WorkerProcess
from cedar.executors.worker.main import Ready
from cedar.executors.worker.wire import decode

_PATIENCE = 10.0  # seconds of a pool's work before its first spare: a short run is over before it could need one


class Spare(threading.Thread):
    """Keeps one worker ready, some time after somebody asked for that.

    The thread lives as long as the pool: the kernel ends a worker with the thread that started it.
    """

    def __init__(self) -> None:
        super().__init__(name="worker-keeper-spare", daemon=True)
        self._changed = threading.Condition()
        self._due = math.inf  # when one is to be there
        self._closed = False
        self._standing: WorkerProcess | None = None
        self._starting: WorkerProcess | None = None

    def want(self, at_once: bool) -> None:
        """One is to stand by from now on, or from some seconds on."""
        with self._changed:
            due = time.monotonic() + (0 if at_once else _PATIENCE)
            if self._closed or self._due <= due:
                return
            self._due = due
            if self.ident is None:
                self.start()
            self._changed.notify()

    def take(self) -> WorkerProcess | None:
        """The one that stands by, and lives; another one takes its place."""
        with self._changed:
            worker, self._standing = self._standing, None
            self._changed.notify()
        if worker is None or worker.alive:
            return worker
        worker.end()
        return None

    @property
    def standing(self) -> bool:
        return self._standing is not None

    def members(self) -> list[WorkerProcess | None]:
        """The one that stands by, and the one that starts, if there are such."""
        return [self._standing, self._starting]

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
                self._due = math.inf  # it does not start: not before somebody asks again
            if worker is not None:
                worker.end()

    def _wait(self) -> bool:
        with self._changed:
            while not self._closed and (self._standing is not None or time.monotonic() < self._due):
                left = self._due - time.monotonic()
                self._changed.wait(left if self._standing is None and 0 < left < math.inf else None)
            standing, closed = self._standing, self._closed
        if closed and standing is not None:
            standing.end()
        return not closed

    def _start(self) -> WorkerProcess | None:
        try:
            worker = WorkerProcess()
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
