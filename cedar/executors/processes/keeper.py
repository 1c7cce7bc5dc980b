"""Keeper: the thread that keeps one worker: starts it, hands it work, hears its answers, and replaces it if it dies."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from cedar.executors.processes.process import WorkerDied, WorkerProcess
from cedar.executors.worker.main import CodeWanted, LogLine, Ready, ReceivedTask, TaskFailed, unsendable
from cedar.executors.worker.wire import decode, encode
from cedar.tasks.code import Code

_SHORT = 0.1  # seconds; behind a task that takes no longer, the next one is already sent


@dataclass
class QueuedCall:
    """A submitted call; ``alone``, it does not wait behind another in a worker, nor another behind it."""

    future: Future[Any]
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    alone: bool = False

    def message(self, known: set[str]) -> list[memoryview]:
        """As it is sent to a worker that has the code of these keys.

        Raises:
            WorkerError: it cannot be pickled.
        """
        args = tuple(a.known() if isinstance(a, Code) and a.key in known else a for a in self.args)
        try:
            return encode(ReceivedTask(self.fn, args, self.kwargs, _folder()))
        except Exception as error:
            rows = next((a for a in self.args if hasattr(a, "blocks")), None)
            raise unsendable(rows, "a task", error) from error

    def keys(self) -> set[str]:
        """Of the code that it needs."""
        return {a.key for a in self.args if isinstance(a, Code)}


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


class Queue(Protocol):
    """Where a keeper gets its work: a pool."""

    @property
    def closed(self) -> bool: ...

    def take(self, wait: bool) -> QueuedCall | None:
        """The next; None where there is none and ``wait`` is False (nor is one that is to be alone), or all is over."""

    def give_back(self, works: list[QueuedCall]) -> None:
        """Work that was not begun."""


class Keeper(threading.Thread):
    """Keeps one worker until the queue is closed."""

    def __init__(self, queue: Queue, number: int) -> None:
        super().__init__(name=f"worker-keeper-{number}", daemon=True)
        self.ready = False
        self.worker: WorkerProcess | None = None
        self._queue = queue
        self._sent: deque[QueuedCall] = deque()  # the first is being worked on
        self._answered = 0.0
        self._short = False  # so was the last task
        self._starting = threading.Lock()

    def run(self) -> None:
        """One worker after another. One that does not start has no successor before there is work for it."""
        first: list[QueuedCall] = []
        while not self._queue.closed:
            if self._live(first):
                first = []
            else:
                work = self._queue.take(True)
                first = [work] if work is not None else []

    def stop(self) -> None:
        """End the worker; the thread notices."""
        with self._starting:
            if self.worker is not None:
                self.worker.kill()

    def _live(self, first: list[QueuedCall]) -> bool:
        """A worker's life, with the work that it begins with; False where it did not start."""
        why = ""
        try:
            self._serve(self._start(), first)
        except (EOFError, OSError) as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may wait forever
            why = f"{type(error).__name__}: {error}"
        started, self.ready = self.ready, False
        with self._starting:
            gone, self.worker = self.worker, None
        how = gone.end() if gone is not None else why
        self._bury([*self._sent, *first], WorkerDied(how, started))
        return started

    def _start(self) -> WorkerProcess:
        with self._starting:
            if self._queue.closed:
                raise EOFError
            worker = self.worker = WorkerProcess()
        while not isinstance(decode(worker.wire.receive()), Ready):
            pass  # a line for the log from an import
        self.ready = True
        return worker

    def _serve(self, worker: WorkerProcess, first: list[QueuedCall]) -> None:
        while self._fill(worker, first):
            self._hear(worker)

    def _fill(self, worker: WorkerProcess, first: list[QueuedCall]) -> bool:
        """Give the worker what it can take; False once all is over."""
        while not self._sent or (self._short and len(self._sent) < 2 and not self._sent[0].alone):
            work = first.pop() if first else self._queue.take(not self._sent)
            if work is None:
                return bool(self._sent)
            self._send(worker, work)
        return True

    def _send(self, worker: WorkerProcess, work: QueuedCall) -> None:
        if not self._sent and not worker.alive:  # it died of something else: this work is not to blame
            self._queue.give_back([work])
            raise EOFError
        try:
            message = work.message(worker.known)
        except Exception as error:  # noqa: BLE001 - the code that waits for the result gets it
            work.future.set_exception(error)
            return
        if not self._sent:
            self._answered = time.perf_counter()
        self._sent.append(work)
        worker.wire.send(message)
        worker.known |= work.keys()

    def _hear(self, worker: WorkerProcess) -> None:
        parts = worker.wire.receive()
        try:
            answer = decode(parts)
        except Exception as error:  # noqa: BLE001 - a class whose instances cannot be made here, for one
            answer = TaskFailed(unsendable(None, "what a task made", error))
        if isinstance(answer, LogLine):
            _tell(answer.record())
            return
        work = self._sent.popleft()
        now = time.perf_counter()
        self._short, self._answered = now - self._answered < _SHORT, now
        if isinstance(answer, CodeWanted):
            worker.known -= work.keys()
            self._send(worker, work)
        elif isinstance(answer, TaskFailed):
            work.future.set_exception(answer.error)
        else:
            work.future.set_result(answer.value)

    def _bury(self, works: list[QueuedCall], death: WorkerDied) -> None:
        """The current work fails; what waited behind it goes to another worker."""
        self._sent.clear()
        if works:
            self._queue.give_back(works[1:])
            works[0].future.set_exception(death)


def _tell(record: logging.LogRecord) -> None:
    """A line of a worker's in the log here; whatever a handler or filter raises, no task fails for it."""
    log = logging.getLogger(record.name)
    if not log.isEnabledFor(record.levelno):
        return
    try:
        log.handle(record)
    except Exception as error:  # noqa: BLE001 - the user's code
        if type(error) not in _handlers_failed:
            _handlers_failed.add(type(error))
            with suppress(Exception):  # it may fail on this one, too
                _log.warning("a handler or filter of the log failed on a line of a worker's", exc_info=True)


_log = logging.getLogger("cedar")
_handlers_failed: set[type[Exception]] = set()  # that were reported
