"""Recovery: submits what was lost again, ends what hangs, and stops where that leads nowhere."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from cedar.errors import CedarError, SourceError, WorkerError
from cedar.execution.chain import Result
from cedar.execution.recovery.board import Board, the_board
from cedar.execution.recovery.deaths import Death, Deaths
from cedar.execution.recovery.lost import is_lost, rest_at_exit
from cedar.execution.recovery.task import Task, Work
from cedar.operators.marks import READING, BadRow, Mark, Place, Written

_log = logging.getLogger("cedar")
_MOST = 100  # deaths without a task done in between
_MOST_OF_ONE = 25  # deaths of one task that tell of no bad row
_STARTS = 3  # workers that ended by themselves before they were ready, without a task done in between
_STOPPED = "the epoch was stopped; the state is that of the last batch received"


class Recovery:
    """For the tasks of one runner; tasks are given up once it is closed.

    Args:
        executor: the one to submit to, asked for each time.
        deaths: where they are written down.
        marks: the executor's workers are processes of this machine, whose marks can be seen.
    """

    def __init__(self, executor: Callable[[], Executor], deaths: Deaths, marks: bool) -> None:
        self._executor = executor
        self._deaths = deaths
        self._sees = marks
        self._closed = False
        self._lost: queue.SimpleQueue[tuple[Task, BaseException] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._limited: set[Task] = set()
        self._pace: float | None = None  # seconds between two looks at what may hang
        self._unstarted = 0

    def submit(self, work: Work) -> Future[Result]:
        """The future result of a task, whatever becomes of the worker that has it.

        Raises:
            WorkerError: the executor takes no tasks.
        """
        task = Task(work)
        self._send(task)
        if work.limits:
            self._look_every(min(max(min(work.limits) / 4, 0.02), 0.25))
        return task

    def close(self) -> None:
        """Nothing is submitted again from now on."""
        self._closed = True
        self._lost.put(None)

    # ---- attempts ----------------------------------------------------------------------------------------------------

    def _send(self, task: Task) -> None:
        task.place, task.killed = the_board().take(), 0.0
        executor = _nearby() if task.elsewhere else self._executor()
        try:
            first = getattr(executor, "submit_first", executor.submit)  # others wait for a task that was lost
            attempt = task.work.send(first if task.deaths else executor.submit, task.marks())
        except (RuntimeError, BrokenExecutor) as error:
            self._release(task)
            if not task.elsewhere and executor is not self._executor():  # another one took its place meanwhile
                self._send(task)
                return
            raise refused(error) from error
        except BaseException:
            self._release(task)
            raise
        task.attempt = attempt
        if task.work.limits:
            with self._lock:
                self._limited.add(task)
        if task.cancelled():
            attempt.cancel()
        attempt.add_done_callback(partial(self._answered, task))

    def _answered(self, task: Task, attempt: Future[Result]) -> None:
        """In a thread of the executor, which must not be made to wait, or to take tasks, here."""
        error = CancelledError() if attempt.cancelled() else attempt.exception()
        if error is not None and is_lost(error) and not task.cancelled():
            task.lost = time.monotonic()
            self._lost.put((task, error))
            self._start()
            if self._closed:  # the thread may have ended
                self._drop()
                self._lost.put(None)  # or not yet, and what would have ended it was dropped too
            return
        self._release(task)
        if error is None:
            self._deaths.done(task.lost)
            self._unstarted = 0
        task.attempt = None  # it knows the task: the two would keep the result until they are collected
        _answer(task, error, None if error is not None else attempt.result())

    def _release(self, task: Task) -> None:
        with self._lock:
            self._limited.discard(task)
            place, task.place = task.place, None
        if place is not None:
            the_board().give(place)

    # ---- the thread that deals with what was lost --------------------------------------------------------------------

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cedar-recovery", daemon=True)
                self._thread.start()

    def _look_every(self, seconds: float) -> None:
        pace = self._pace
        if pace is None or seconds < pace:
            self._pace = seconds
            self._start()
            if self._thread is not None and pace is None:
                self._lost.put(None)  # wakes it

    def _run(self) -> None:
        while True:
            try:
                found = self._lost.get(timeout=self._pace)
            except queue.Empty:
                found = None
            if found is not None:
                self._recover(*found)
            elif self._closed:
                self._drop()
                return
            else:
                self._end_what_hangs()

    def _drop(self) -> None:
        """Nobody waits for what was lost."""
        with suppress(queue.Empty):
            while True:
                found = self._lost.get_nowait()
                if found is not None:
                    self._release(found[0])
                    found[0].cancel()

    def _recover(self, task: Task, error: BaseException) -> None:
        try:
            if self._closed:
                self._release(task)
                task.cancel()
                return
            if getattr(self._executor(), "ended", False):  # on purpose, as at the end of the program: nothing was lost
                self._release(task)
                _answer(task, error, None)
                return
            self._again(task, error)
        except Exception as failed:  # noqa: BLE001 - whoever waits for the task gets it
            _answer(task, failed, None)

    def _again(self, task: Task, error: BaseException) -> None:
        how = how_it_ended(error)
        seen = None if task.place is None else the_board().read(task.place)
        self._release(task)
        if not getattr(error, "started", True) and "exit code" in how:
            self._unstarted += 1
        bad = task.learn(seen, how, self._deaths.known)
        mark = seen.mark if seen is not None else None
        stop = self._why_stop(task, mark, how)
        self._record(task, mark, how, bad, stop)
        if stop is not None:
            raise stop from error
        if bad is not None:
            self._deaths.known.add(bad.mark)
        if seen is None and not self._sees and task.unseen > 1:
            task.elsewhere = True
        self._send(task)

    def _record(self, task: Task, mark: Mark | None, how: str, bad: BadRow | None, stop: CedarError | None) -> None:
        then: Any = "given up" if stop is not None else "run again" if bad is None else "bad row"
        known = mark is not None and mark.rows > 0
        if bad is not None and bad.hung:
            how = f"{bad.how}, ended by SIGKILL"
        row, rows = (mark.ref, mark.rows) if known and mark is not None else (None, 0)
        if row is not None and task.work.reads:
            row = replace(row, url=task.work.reads)
        death = Death(how, task.work.named(mark), row, rows, then)
        self._deaths.add(death)
        _log.warning("a worker was lost: %s", death)

    def _why_stop(self, task: Task, mark: Mark | None, how: str) -> CedarError | None:
        if self._unstarted >= _STARTS:
            return WorkerError(
                f"worker processes do not start: {how}",
                done=_STOPPED,
                fix="run python -c 'import cedar' in a shell: what fails there, or the lack of memory, is the cause",
            )
        if task.hopeless and mark is not None and mark.operator == READING:
            return SourceError(
                f"reading {task.work.reads or 'a split'} ended the worker {task.deaths} times: {how}",
                row=mark.ref,
                done=_STOPPED,
                fix="look whether the file is damaged, or too large for the memory; leave it out to go on",
            )
        if task.hopeless or task.deaths >= _MOST_OF_ONE or self._deaths.in_a_row >= _MOST:
            times = f"{task.deaths} times" if task.deaths > 1 else f"{self._deaths.in_a_row + 1} times in a row"
            return WorkerError(
                f"workers died {times} at work on {task.work.named(mark)}, and no single row is to blame: {how}",
                row=mark.ref if mark is not None and mark.rows else None,
                done=_STOPPED,
                fix="look for too little memory, or for a library that crashes; then resume from a checkpoint",
            )
        return None

    # ---- time limits -------------------------------------------------------------------------------------------------

    def _end_what_hangs(self) -> None:
        with self._lock:
            tasks = [task for task in self._limited if task.place is not None and not task.killed]
        board, now = the_board(), time.monotonic()
        for task in tasks:
            place = task.place
            seen = board.read(place) if place is not None else None
            if place is not None and seen is not None and seen.overdue(now) and seen.pid != os.getpid():
                task.killed = now if _kill(board, place, seen) else 0.0


def how_it_ended(error: BaseException) -> str:
    """The end of a worker, in words."""
    text = str(error).strip().partition("\n")[0]
    if type(error).__name__ == "WorkerDied":
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def refused(error: BaseException) -> WorkerError:
    """The error for an executor that takes no more tasks."""
    rest_at_exit()
    if isinstance(error, BrokenExecutor):
        return WorkerError(
            f"a worker died, and the executor takes no more tasks: {error}",
            done=_STOPPED,
            fix='use executor="processes", which starts another worker and finds the row; or make a new executor',
        )
    return WorkerError(
        f"the executor takes no more tasks: {error}",
        done="the epoch was stopped",
        fix="give an executor that is running, or leave executor= out",
    )


def _answer(task: Task, error: BaseException | None, result: Any) -> None:
    with suppress(InvalidStateError):  # it was cancelled meanwhile
        if not task.done():
            if error is None:
                task.set_result(result)
            else:
                task.set_exception(error)


def _nearby() -> Executor:
    from cedar.execution.processes import warm

    return warm(1)


def _kill(board: Board, place: Place, seen: Written) -> bool:
    """End the process that wrote a mark; False where it is not at it any more."""
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(seen.pid, signal.SIGKILL)
            return True
        process = os.pidfd_open(seen.pid)
        try:
            if board.read(place) == seen:  # so it lived when its number was looked up, and is no other
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False
