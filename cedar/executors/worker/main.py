"""What runs in a worker process: one task after another, in an interpreter that never sees the user's script."""

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

from cedar.core.errors import CedarError, WorkerError, portable
from cedar.executors.worker.wire import Wire, decode, encode
from cedar.tasks import clocks
from cedar.tasks.code import UnknownCode

# Libraries that tasks are likely to need are imported while no first one comes, after so many seconds, one by one.
_LIKELY = ((0.1, "pyarrow.compute"), (0.0, "pyarrow.parquet"), (0.0, "polars"))
_LOOK = 1.0  # seconds between two looks at whether the parent lives


@dataclass(frozen=True)
class ReceivedTask:
    """A call, and the folder that the caller is in."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    folder: str | None


@dataclass(frozen=True)
class Ready:
    """The worker takes tasks."""


@dataclass(frozen=True)
class TaskDone:
    """A task returned."""

    value: Any


@dataclass(frozen=True)
class TaskFailed:
    """A task raised, or its result cannot be sent back."""

    error: BaseException

    def __reduce__(self) -> tuple[Any, ...]:
        """By the error's own way of travelling: libraries (tblib, with dask) change how all exceptions are pickled."""
        if not isinstance(self.error, CedarError):
            return TaskFailed, (self.error,)
        make, arguments = self.error.__reduce__()
        return _failed, (make, arguments)


def _failed(make: Callable[..., CedarError], arguments: tuple[Any, ...]) -> TaskFailed:
    return TaskFailed(make(*arguments))


@dataclass(frozen=True)
class CodeWanted:
    """A task's code is not here: send the task again with all of it."""


@dataclass(frozen=True)
class LogLine:
    """A line for the parent's log, which knows it for one whatever is in it: it must not pass for an answer.

    Args:
        pickled: the record.
        plain: what of it any process can make: name, level, message.
    """

    pickled: bytes
    plain: tuple[str, int, str]

    @staticmethod
    def of(record: logging.LogRecord) -> LogLine:
        """Of a record, of which only what is plain travels where it cannot be pickled."""
        pickled = b""
        with suppress(Exception):  # what a user put into it may raise anything
            pickled = pickle.dumps(record)
        return LogLine(pickled, (record.name, record.levelno, record.getMessage()))

    def record(self) -> logging.LogRecord:
        """The record, or a plain one where something in it cannot be made here."""
        try:
            made: logging.LogRecord = pickle.loads(self.pickled)  # noqa: S301 - from a process of ours
        except Exception:  # noqa: BLE001 - a class whose instances cannot be made here, for one
            name, level, message = self.plain
            return logging.LogRecord(name, level, "", 0, message, (), None)
        return made


class _LogHandler(logging.handlers.QueueHandler):
    """Log lines go to the parent, whose handlers the user has set up."""

    def __init__(self, wire: Wire) -> None:
        self._lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        super().__init__(self._lines)
        self._wire = wire

    def handle(self, record: logging.LogRecord) -> bool:
        """Without a lock: a finalizer may log, in a thread that is just sending."""
        self.emit(record)
        return True

    def enqueue(self, record: logging.LogRecord) -> None:
        """The record is plain by now."""
        self._lines.put(record)
        self.pass_on()

    def pass_on(self) -> None:
        """Send what there is; later, where this thread is in the middle of a message."""
        with suppress(queue.Empty):
            while not self._wire.sending:
                self._wire.send(encode(LogLine.of(self._lines.get_nowait())))


def main(end: int, parent: int, level: int) -> None:
    """Work until the parent is gone.

    Args:
        end: the file descriptor of this end of the wire.
        parent: its process id.
        level: the least level of log lines that are passed on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    die_with_the_starting_thread()
    os.set_inheritable(end, False)  # a program that a function runs must not hold the wire open when we die
    wire, own = Wire(socket.socket(fileno=end)), os.getpid()
    tasks: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(wire, tasks, parent), daemon=True).start()
    logging.root.setLevel(level)
    handler = _LogHandler(wire)
    logging.root.addHandler(handler)
    os.register_at_fork(after_in_child=partial(_part, wire, handler))
    pa.set_cpu_count(1)
    for module in ("cedar.tasks.shipped", "cloudpickle"):  # what runs a chain, and what any code is loaded by
        importlib.import_module(module)
    wire.send(encode(Ready()))
    task = _first(tasks)
    while True:
        answer = _work(task)
        if os.getpid() != own:  # a function has forked, and returned in the child as well
            os._exit(0)
        wire.send(answer)
        handler.pass_on()
        task = tasks.get()


def _part(wire: Wire, handler: logging.Handler) -> None:
    """In what a function forks: it speaks for itself, and does not keep the parent from seeing that we died."""
    logging.root.removeHandler(handler)
    wire.close()


def die_with_the_starting_thread() -> None:
    """On Linux the kernel ends us with the thread that started us, also where we hold the GIL in a loop."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _receive(wire: Wire, tasks: queue.SimpleQueue[list[Any]], parent: int) -> None:
    """Take in tasks while others run, so that neither end waits for the other to read; end with the parent."""
    poll = select.poll()
    poll.register(wire.fileno(), select.POLLIN)
    try:
        while os.getppid() == parent:
            if poll.poll(1000 * _LOOK):
                tasks.put(wire.receive())
    finally:
        os._exit(0)


def _first(tasks: queue.SimpleQueue[list[Any]]) -> list[Any]:
    for patience, module in _LIKELY:
        try:
            return tasks.get(timeout=patience)
        except queue.Empty:
            importlib.import_module(module)
    return tasks.get()


def _work(parts: list[Any]) -> list[memoryview]:
    """The answer to one task; answers go in the order of tasks."""
    reply: Any
    began = time.perf_counter()
    try:
        task: ReceivedTask = decode(parts)
        clocks.ship(began)
        _enter(task.folder)
        reply = TaskDone(task.fn(*task.args, **task.kwargs))
        _limit_threads()
    except UnknownCode:
        reply = CodeWanted()
    except BaseException as error:  # noqa: BLE001 - the caller gets whatever was raised
        reply = TaskFailed(error if isinstance(error, CedarError) else portable(error))
    began = time.perf_counter()
    try:
        answer = encode(reply)
        clocks.ship(began)
        return answer
    except Exception as error:  # noqa: BLE001 - an object may raise anything when it is pickled
        return encode(TaskFailed(_unsendable(reply, error)))


def _enter(folder: str | None) -> None:
    """Relative paths mean the same as in the parent, wherever an earlier function went."""
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        here = ""
    if folder is not None and folder != here:
        os.chdir(folder)


def _limit_threads() -> None:
    """A worker is one core's worth: libraries without an environment variable are limited here, once they are
    loaded.
    """
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and cv2.getNumThreads() > 1:
        cv2.setNumThreads(1)


def _unsendable(reply: Any, error: Exception) -> WorkerError:
    if isinstance(reply, TaskFailed):
        return WorkerError(f"a task failed: {type(reply.error).__name__}: {reply.error}")
    return unsendable(reply.value, "what a task made", error)


def unsendable(value: Any, label: str, error: Exception) -> WorkerError:
    """The error for rows that cannot be pickled; names the column."""
    for block in getattr(value, "blocks", ()):
        for name, column in block.columns.items():
            try:
                encode(column)
            except Exception:  # noqa: BLE001 - see above
                label = f"column {name!r}"
    return WorkerError(
        f"{label} cannot be sent to another process: {type(error).__name__}: {error}",
        fix='make values that can be pickled, or use executor="threads"',
    )
