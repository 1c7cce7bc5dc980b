"""Pool: an Executor whose worker processes keep running between epochs and loaders.

For each worker, a thread starts the worker, sends it tasks, receives the results, and replaces the worker if it dies.
Only the task that the dead worker was running fails. Tasks that were queued after it are sent to other workers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cedar.executors.base import TaskExecutor
from cedar.executors.processes.forkserver import ending, kills_for_memory, server
from cedar.executors.worker.arena import fork_lock
from cedar.executors.worker.main import CodeWanted, LogLine, Ready, ReceivedTask, TaskFailed, unsendable_error
from cedar.executors.worker.wire import Wire, decode, encode
from cedar.tasks.code import Code

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


# ---- pools -----------------------------------------------------------------------------------------------------------


_SHORT_SECONDS = 0.1  # after a task shorter than this, send a second task before the worker has answered the first
_JOIN_SECONDS = 2.0  # maximum seconds to wait for the keeper threads at shutdown
_log = logging.getLogger("cedar")
_reported_errors: set[type[Exception]] = set()  # types of errors in handlers that were already reported


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
        folder = None
        with suppress(OSError):  # the working directory was deleted
            folder = os.getcwd()
        try:
            return encode(ReceivedTask(self.fn, args, self.kwargs, folder))
        except Exception as error:
            rows = next((a for a in self.args if hasattr(a, "blocks")), None)
            raise unsendable_error(rows, "a task", error) from error

    def keys(self) -> set[str]:
        """Return the keys of the code that the call needs."""
        return {a.key for a in self.args if isinstance(a, Code)}


class Keeper(threading.Thread):
    """Manages one worker and its replacements until the pool is closed."""

    def __init__(self, pool: Pool, number: int) -> None:
        super().__init__(name=f"worker-keeper-{number}", daemon=True)
        self.ready = False
        self.worker: WorkerProcess | None = None
        self._pool = pool
        self._sent: deque[QueuedCall] = deque()  # unanswered calls; the worker is running the first of them
        self._answered = 0.0
        self._last_was_short = False  # whether the last task took less than ``_SHORT_SECONDS``
        self._starting = threading.Lock()

    def run(self) -> None:
        """Run one worker after another. If a worker did not start, wait for a call before starting the next worker."""
        first: list[QueuedCall] = []
        while not self._pool.closed:
            if self._run_worker(first):
                first = []
            else:
                work = self._pool.take(True)
                first = [work] if work is not None else []

    def stop(self) -> None:
        """Kill the worker. If the pool is closed, this thread then ends too."""
        with self._starting:
            if self.worker is not None:
                self.worker.kill()

    def _run_worker(self, first: list[QueuedCall]) -> bool:
        """Start a worker and send it calls, ``first`` before all others, until it dies; return whether it started."""
        why = ""
        try:
            with self._starting:
                if self._pool.closed:
                    raise EOFError
                worker = self.worker = WorkerProcess()
            while not isinstance(decode(worker.wire.receive()), Ready):
                pass  # the message is a log record from an import
            self.ready = True
            while self._send_calls(worker, first):
                self._receive_answer(worker)
        except (EOFError, OSError) as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - on any error, calls must fail instead of waiting forever
            why = f"{type(error).__name__}: {error}"
        started, self.ready = self.ready, False
        with self._starting:
            dead, self.worker = self.worker, None
        how = dead.end() if dead is not None else why
        calls = [*self._sent, *first]
        self._sent.clear()
        if calls:  # only the first of them was running
            self._pool.give_back(calls[1:])
            calls[0].future.set_exception(WorkerDied(how, started))
        return started

    def _send_calls(self, worker: WorkerProcess, first: list[QueuedCall]) -> bool:
        """Send the worker one or two calls; return False once the pool is closed and all answers have arrived."""
        while not self._sent or (self._last_was_short and len(self._sent) < 2 and not self._sent[0].alone):
            work = first.pop() if first else self._pool.take(not self._sent)
            if work is None:
                return bool(self._sent)
            self._send_call(worker, work)
        return True

    def _send_call(self, worker: WorkerProcess, work: QueuedCall) -> None:
        if not self._sent and not worker.alive:  # the worker died before it received this call
            self._pool.give_back([work])
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


class Pool(TaskExecutor):
    """Worker processes, started in the background as soon as the pool is created."""

    def __init__(self, workers: int) -> None:
        self.closed = False
        self._changed = threading.Condition()
        self._waiting: deque[QueuedCall] = deque()
        self._idle = 0
        self._keepers = [Keeper(self, number) for number in range(workers)]
        for keeper in self._keepers:
            keeper.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``concurrent.futures.Executor``. A ``Code`` argument is sent to each worker only once."""
        return self.enter(QueuedCall(Future(), fn, args, kwargs))

    def submit_first(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        return self.enter(QueuedCall(Future(), fn, args, {}), first=True)

    def enter(self, work: QueuedCall, first: bool = False) -> Future[Any]:
        """Add a call at the end of the queue, or at its front (``first``); return its future."""
        if not self.closed:  # check before locking, because in a forked child no thread would release the lock
            with self._changed:
                if not self.closed:
                    (self._waiting.appendleft if first else self._waiting.append)(work)
                    self._changed.notify()
                    return work.future
        raise RuntimeError("cannot schedule new futures after shutdown")

    @property
    def concurrency(self) -> int:
        return len(self._keepers)

    def ready(self) -> int:
        """Return how many workers are ready and alive."""
        workers = [keeper.worker for keeper in self._keepers if keeper.ready]
        return sum(worker is not None and worker.alive for worker in workers)

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are alive."""
        return [worker.pid for worker in self.members() if worker.alive]

    def members(self) -> list[WorkerProcess]:
        """Return all worker processes, including those that are still starting."""
        workers = [keeper.worker for keeper in self._keepers]
        return [worker for worker in workers if worker is not None]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill the workers. Running tasks fail with WorkerDied."""
        with self._changed:
            self.closed = True
            waiting, self._waiting = self._waiting, deque()
            self._changed.notify_all()
        for work in waiting:
            if not work.future.cancel():  # a call that a worker gave back
                work.future.set_exception(WorkerDied("the workers were ended"))
        for keeper in self._keepers:
            keeper.stop()
        deadline = time.monotonic() + _JOIN_SECONDS
        for keeper in self._keepers if wait else []:
            keeper.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """In a forked child of the process that owns the pool, close the copied wires without ending the workers."""
        self.closed = True
        for keeper in self._keepers:
            if keeper.worker is not None:
                keeper.worker.wire.close()

    def take(self, wait: bool) -> QueuedCall | None:
        """Return the next call; None if the pool is closed or, without ``wait``, if no call may be sent ahead."""
        with self._changed:
            while not self.closed:
                # Do not send a call to a busy worker if an idle worker can start it now.
                if len(self._waiting) > (0 if wait else self._idle) and (wait or not self._waiting[0].alone):
                    work = self._waiting.popleft()
                    if work.future.running() or work.future.set_running_or_notify_cancel():
                        return work
                elif not wait:
                    return None
                else:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
            return None

    def give_back(self, works: list[QueuedCall]) -> None:
        """Return calls that no worker has started to the front of the queue."""
        with self._changed:
            if not self.closed:
                self._waiting.extendleft(reversed(works))
                self._changed.notify(len(works))
                return
        for work in works:
            work.future.set_exception(WorkerDied("the workers were ended"))
