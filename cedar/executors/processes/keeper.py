"""Keeper: a thread that starts one worker, sends it tasks, receives its answers, and replaces it when it dies."""

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
from cedar.executors.worker.main import CodeWanted, LogLine, Ready, ReceivedTask, TaskFailed, unsendable_error
from cedar.executors.worker.wire import decode, encode
from cedar.tasks.code import Code

_SHORT_SECONDS = 0.1  # after a task shorter than this, send a second task before the worker has answered the first


@dataclass
class QueuedCall:
    """A submitted call. With ``alone``, it is sent only to an idle worker, which is sent no other call meanwhile."""

    future: Future[Any]
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    alone: bool = False

    def message(self, known: set[str]) -> list[memoryview]:
        """Encode the call for a worker that already has the code with the keys ``known``.

        Raises:
            WorkerError: the call cannot be pickled.
        """
        args = tuple(a.known() if isinstance(a, Code) and a.key in known else a for a in self.args)
        try:
            return encode(ReceivedTask(self.fn, args, self.kwargs, _folder()))
        except Exception as error:
            rows = next((a for a in self.args if hasattr(a, "blocks")), None)
            raise unsendable_error(rows, "a task", error) from error

    def keys(self) -> set[str]:
        """Return the keys of the code that the call needs."""
        return {a.key for a in self.args if isinstance(a, Code)}


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the working directory was deleted
        return None


class CallQueue(Protocol):
    """The source of a keeper's calls, implemented by ``Pool``."""

    @property
    def closed(self) -> bool: ...

    def take(self, wait: bool) -> QueuedCall | None:
        """Return the next call; None if the pool is closed or, without ``wait``, if no call may be sent ahead."""

    def give_back(self, works: list[QueuedCall]) -> None:
        """Return calls that no worker has started to the queue."""


class Keeper(threading.Thread):
    """Manages one worker and its replacements until the queue is closed."""

    def __init__(self, queue: CallQueue, number: int) -> None:
        super().__init__(name=f"worker-keeper-{number}", daemon=True)
        self.ready = False
        self.worker: WorkerProcess | None = None
        self._queue = queue
        self._sent: deque[QueuedCall] = deque()  # unanswered calls; the worker is running the first of them
        self._answered = 0.0
        self._last_was_short = False  # whether the last task took less than ``_SHORT_SECONDS``
        self._starting = threading.Lock()

    def run(self) -> None:
        """Run one worker after another. If a worker did not start, wait for a call before starting the next worker."""
        first: list[QueuedCall] = []
        while not self._queue.closed:
            if self._run_worker(first):
                first = []
            else:
                work = self._queue.take(True)
                first = [work] if work is not None else []

    def stop(self) -> None:
        """Kill the worker. If the queue is closed, this thread then ends too."""
        with self._starting:
            if self.worker is not None:
                self.worker.kill()

    def _run_worker(self, first: list[QueuedCall]) -> bool:
        """Start a worker and send it calls, ``first`` before all others, until it dies; return whether it started."""
        why = ""
        try:
            self._serve(self._start(), first)
        except (EOFError, OSError) as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - on any error, calls must fail instead of waiting forever
            why = f"{type(error).__name__}: {error}"
        started, self.ready = self.ready, False
        with self._starting:
            dead, self.worker = self.worker, None
        how = dead.end() if dead is not None else why
        self._fail_calls([*self._sent, *first], WorkerDied(how, started))
        return started

    def _start(self) -> WorkerProcess:
        with self._starting:
            if self._queue.closed:
                raise EOFError
            worker = self.worker = WorkerProcess()
        while not isinstance(decode(worker.wire.receive()), Ready):
            pass  # the message is a log record from an import
        self.ready = True
        return worker

    def _serve(self, worker: WorkerProcess, first: list[QueuedCall]) -> None:
        while self._send_calls(worker, first):
            self._receive_answer(worker)

    def _send_calls(self, worker: WorkerProcess, first: list[QueuedCall]) -> bool:
        """Send the worker one or two calls; return False once the pool is closed and all answers have arrived."""
        while not self._sent or (self._last_was_short and len(self._sent) < 2 and not self._sent[0].alone):
            work = first.pop() if first else self._queue.take(not self._sent)
            if work is None:
                return bool(self._sent)
            self._send_call(worker, work)
        return True

    def _send_call(self, worker: WorkerProcess, work: QueuedCall) -> None:
        if not self._sent and not worker.alive:  # the worker died before it received this call
            self._queue.give_back([work])
            raise EOFError
        try:
            message = work.message(worker.known)
        except Exception as error:  # noqa: BLE001 - the future reports any error
            work.future.set_exception(error)
            return
        if not self._sent:
            self._answered = time.perf_counter()
        self._sent.append(work)
        worker.wire.send(message)
        worker.known |= work.keys()

    def _receive_answer(self, worker: WorkerProcess) -> None:
        parts = worker.wire.receive()
        try:
            answer = decode(parts)
        except Exception as error:  # noqa: BLE001 - a class that cannot be unpickled here may raise anything
            answer = TaskFailed(unsendable_error(None, "the result of a task", error))
        if isinstance(answer, LogLine):
            _log_record(answer.record())
            return
        work = self._sent.popleft()
        now = time.perf_counter()
        self._last_was_short, self._answered = now - self._answered < _SHORT_SECONDS, now
        if isinstance(answer, CodeWanted):
            worker.known -= work.keys()
            self._send_call(worker, work)
        elif isinstance(answer, TaskFailed):
            work.future.set_exception(answer.error)
        else:
            work.future.set_result(answer.value)

    def _fail_calls(self, works: list[QueuedCall], death: WorkerDied) -> None:
        """Fail the call that the dead worker was running, and return the worker's other calls to the queue."""
        self._sent.clear()
        if works:
            self._queue.give_back(works[1:])
            works[0].future.set_exception(death)


def _log_record(record: logging.LogRecord) -> None:
    """Log a worker's record in this process. An error in a handler or filter is logged, and does not fail the task."""
    log = logging.getLogger(record.name)
    if not log.isEnabledFor(record.levelno):
        return
    try:
        log.handle(record)
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        if type(error) not in _reported_errors:
            _reported_errors.add(type(error))
            with suppress(Exception):  # the handler may also fail on this warning
                _log.warning("a logging handler or filter failed on a worker's log record", exc_info=True)


_log = logging.getLogger("cedar")
_reported_errors: set[type[Exception]] = set()  # types of errors in handlers that were already reported
