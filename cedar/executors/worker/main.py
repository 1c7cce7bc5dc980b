"""The main loop of a worker process, which runs one task at a time and never imports the user's script."""

from __future__ import annotations

import importlib
import logging
import logging.handlers
import os
import pickle
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from cedar.core import buffers
from cedar.core.errors import CedarError, WorkerError, portable
from cedar.core.packages import loaded
from cedar.executors.worker.wire import Wire, decode, encode
from cedar.tasks import clocks
from cedar.tasks.code import UnknownCode

# While a worker waits for its first task, it imports libraries that tasks often need: (seconds to wait first, module).
_LIKELY_IMPORTS = ((0.1, "pyarrow.compute"), (0.0, "pyarrow.parquet"), (0.0, "polars"))
_MALLOC = ((-3, 32 << 20), (-1, 64 << 20))  # M_MMAP_THRESHOLD, its largest value, and M_TRIM_THRESHOLD
_CHECK_SECONDS = 1.0  # seconds between checks that the parent is alive


@dataclass(frozen=True)
class ReceivedTask:
    """A function call that a worker must run, and the caller's working directory."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    folder: str | None


@dataclass(frozen=True)
class Ready:
    """Message: the worker is ready for tasks."""


@dataclass(frozen=True)
class TaskDone:
    """Message: the task returned ``value``."""

    value: Any


@dataclass(frozen=True)
class TaskFailed:
    """Message: the task raised ``error``, or ``error`` says why its result cannot be pickled."""

    error: BaseException

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a cedar error by its own ``__reduce__``, because tblib (used by dask) changes how errors pickle."""
        if not isinstance(self.error, CedarError):
            return TaskFailed, (self.error,)
        make, arguments = self.error.__reduce__()
        return _rebuild_task_failed, (make, arguments)


def _rebuild_task_failed(make: Callable[..., CedarError], arguments: tuple[Any, ...]) -> TaskFailed:
    return TaskFailed(make(*arguments))


@dataclass(frozen=True)
class CodeWanted:
    """Message: the worker does not have the task's code. The parent then sends the task again, with the code."""


@dataclass(frozen=True)
class LogLine:
    """Message: a log record. The record is pickled separately, so that the parent can always unpickle the message.

    Args:
        pickled: the pickled record; empty if it cannot be pickled.
        plain: logger name, level and message, which every process can unpickle.
    """

    pickled: bytes
    plain: tuple[str, int, str]

    @staticmethod
    def of(record: logging.LogRecord) -> LogLine:
        """Return the message for a record. If the record cannot be pickled, the message has only its plain part."""
        pickled = b""
        with suppress(Exception):  # a user's objects may raise anything when pickled
            pickled = pickle.dumps(record)
        return LogLine(pickled, (record.name, record.levelno, record.getMessage()))

    def record(self) -> logging.LogRecord:
        """Return the record, or one with only the plain part if it cannot be unpickled."""
        try:
            restored: logging.LogRecord = pickle.loads(self.pickled)  # noqa: S301 - from our own worker
        except Exception:  # noqa: BLE001 - a class that cannot be unpickled here may raise anything
            name, level, message = self.plain
            return logging.LogRecord(name, level, "", 0, message, (), None)
        return restored


class _WireLogHandler(logging.handlers.QueueHandler):
    """Send log records to the parent process, where the user configured the handlers."""

    def __init__(self, wire: Wire) -> None:
        self._lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        super().__init__(self._lines)
        self._wire = wire

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit without acquiring the handler's lock, since a finalizer may log in a thread that is sending."""
        self.emit(record)
        return True

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue the prepared record and send it."""
        self._lines.put(record)
        self.send_queued()

    def send_queued(self) -> None:
        """Send the queued records. If this thread is in the middle of sending a message, they are sent later."""
        with suppress(queue.Empty):
            while not self._wire.sending:
                self._wire.send(encode(LogLine.of(self._lines.get_nowait())))


def main(end: int, parent: int, level: int) -> None:
    """Run tasks until the parent process exits.

    Args:
        end: the file descriptor of this process's end of the wire.
        parent: the process id of the parent.
        level: the lowest level of log records that are sent to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this worker
    die_with_parent_thread()
    _keep_freed_memory()
    os.set_inheritable(end, False)  # a subprocess of a user function must not keep the wire open
    wire, worker_pid = Wire(socket.socket(fileno=end)), os.getpid()
    tasks: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive_tasks, args=(wire, tasks, parent), daemon=True).start()
    logging.root.setLevel(level)
    handler = _WireLogHandler(wire)
    logging.root.addHandler(handler)
    os.register_at_fork(after_in_child=partial(_detach_child, wire, handler))
    pa.set_cpu_count(1)
    buffers.share(wire.reserve)
    wire.send(encode(Ready()))
    task = _first_task(tasks)
    while True:
        answer = _run_task(task)
        if os.getpid() != worker_pid:  # a user function forked, and its child returned here too
            os._exit(0)
        wire.send(answer)
        handler.send_queued()
        task = tasks.get()


def _detach_child(wire: Wire, handler: logging.Handler) -> None:
    """In a child that a user function forked, close the wire, whose copy would hide the worker's death."""
    logging.root.removeHandler(handler)
    buffers.share(None)
    wire.close()


def die_with_parent_thread() -> None:
    """On Linux, make the kernel kill this process when the thread that started it ends, even if code holds the GIL."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next array. Otherwise the system has to clear each page of a large array."""
    if sys.platform == "linux":
        import ctypes

        with suppress(AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            for parameter, size in _MALLOC:
                mallopt(parameter, size)


def _receive_tasks(wire: Wire, tasks: queue.SimpleQueue[list[Any]], parent: int) -> None:
    """Receive tasks while another task runs, so that sending never blocks the parent. Exit when the parent exits."""
    poll = select.poll()
    poll.register(wire.fileno(), select.POLLIN)
    try:
        while os.getppid() == parent:
            if poll.poll(1000 * _CHECK_SECONDS):
                tasks.put(wire.receive())
    finally:
        os._exit(0)


def _first_task(tasks: queue.SimpleQueue[list[Any]]) -> list[Any]:
    for patience, module in _LIKELY_IMPORTS:
        try:
            return tasks.get(timeout=patience)
        except queue.Empty:
            importlib.import_module(module)
    return tasks.get()


def _run_task(parts: list[Any]) -> list[memoryview]:
    """Run one task and return the encoded answer. The worker answers tasks in the order in which they were sent."""
    reply: Any
    began = time.perf_counter()
    try:
        task: ReceivedTask = decode(parts)
        clocks.ship(began)
        _change_folder(task.folder)
        reply = TaskDone(task.fn(*task.args, **task.kwargs))
        _limit_threads()
    except UnknownCode:
        reply = CodeWanted()
    except BaseException as error:  # noqa: BLE001 - any error is sent to the caller
        reply = TaskFailed(error if isinstance(error, CedarError) else portable(error))
    began = time.perf_counter()
    try:
        answer = encode(reply)
        clocks.ship(began)
        return answer
    except Exception as error:  # noqa: BLE001 - pickling an object may raise anything
        if isinstance(reply, TaskFailed):
            what = WorkerError(f"a task failed: {type(reply.error).__name__}: {reply.error}")
        else:
            what = unsendable_error(reply.value, "the result of a task", error)
        return encode(TaskFailed(what))


def _change_folder(folder: str | None) -> None:
    """Change to the caller's working directory, in case an earlier task changed it."""
    try:
        here = os.getcwd()
    except OSError:  # the working directory was deleted
        here = ""
    if folder is not None and folder != here:
        os.chdir(folder)


def _limit_threads() -> None:
    """Limit OpenCV to one thread once it is imported, because it has no environment variable for this."""
    cv2 = loaded("cv2")
    if cv2 is not None and cv2.getNumThreads() > 1:
        cv2.setNumThreads(1)


def unsendable_error(value: Any, label: str, error: Exception) -> WorkerError:
    """Return the error for a value that cannot be pickled. It names the column that cannot be pickled, if any."""
    for block in getattr(value, "blocks", ()):
        for name, column in block.columns.items():
            try:
                encode(column)
            except Exception:  # noqa: BLE001 - pickling may raise anything
                label = f"column {name!r}"
    return WorkerError(
        f"{label} cannot be sent to another process: {type(error).__name__}: {error}",
        fix='return values that can be pickled, or use executor="threads"',
    )
