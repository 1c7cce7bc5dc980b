"""Recovery: retry lost tasks, kill workers that hang, and stop the run if retries do not help."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from cedar.core.errors import CedarError, RowRef, SourceError, WorkerError
from cedar.executors.base import TaskExecutor
from cedar.executors.recovery.task import (
    AfterDeath,
    Death,
    Deaths,
    Submit,
    SupervisedTask,
    TaskWork,
    block_daemon_at_exit,
    is_lost,
)
from cedar.executors.recovery.waiting import Patience, RunningTask, WorkerWatch, process_board
from cedar.operators.marks import READING, Mark
from cedar.tasks.chain import Result
from cedar.tasks.code import Survived

_log = logging.getLogger("cedar")
_MAX_DEATHS_IN_A_ROW = 100  # maximum deaths without a finished task in between
_MAX_DEATHS_OF_TASK = 25  # maximum deaths of workers during one task that reveal no bad row
_MAX_FAILED_STARTS = 3  # maximum workers that exit before they are ready, without a finished task in between
_STOPPED = "the epoch was stopped; the state is that of the last batch received"


class WorkersDied(WorkerError):
    """A task failed because its workers die or do not start, and no row is to blame."""


class Recovery:
    """Supervises the tasks that one run sends to other processes, with any executor.

    It retries lost tasks, runs trials of rows that may crash workers, checks for stuck workers, and gives up after too
    many deaths. Once it is closed, lost tasks are canceled.

    Args:
        executor: returns the executor for the next submission.
        deaths: records the workers that died.
        marks: whether the workers run on this machine, so that their marks are visible on the board.
        patience: how long to wait without progress.
    """

    def __init__(
        self, executor: Callable[[], TaskExecutor], deaths: Deaths, marks: bool, patience: Patience | None = None
    ) -> None:
        self._executor = executor
        self._deaths = deaths
        self._marks_visible = marks
        self._closed = False
        self._lost: queue.SimpleQueue[tuple[SupervisedTask, BaseException | Survived] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._patience = patience or Patience()
        self._watch = WorkerWatch(self._patience)
        self._tasks: set[SupervisedTask] = set()  # tasks in progress
        self._check_interval = self._patience.look  # seconds between two checks for stuck workers
        self._check_has_failed = False  # whether a check has failed and a warning was logged
        self._done = 0
        self._unstarted = 0
        self._extra_check: Callable[[], None] | None = None

    def submit(self, work: TaskWork) -> Future[Result]:
        """Submit a task. If its worker dies, the task is retried, and the returned future remains valid.

        Raises:
            WorkerError: the executor accepts no tasks.
        """
        task = SupervisedTask(work)
        self._send(task)
        interval = min(max(min(work.limits) / 4, 0.02), 0.25) if work.limits else self._check_interval
        if interval < self._check_interval:
            self._check_interval = interval
            if self._thread is not None:
                self._lost.put(None)  # wakes up the thread
        self._start()
        return task

    def watch(self, look: Callable[[], None]) -> None:
        """Call ``look`` after each check of the workers, in the same thread."""
        self._extra_check = look
        self._start()

    def progress(self) -> object:
        """Return a value that changes whenever a task finishes, is lost, or reaches another row or block."""
        board = process_board()
        with self._lock:
            places = [task.place for task in self._tasks if task.place is not None]
        return self._done, self._deaths.count, [board.read(place) for place in places]

    def at_work(self) -> list[RunningTask]:
        """Return the tasks whose marks show that they have started; if there are none, all submitted tasks."""
        board, running, sent = process_board(), [], []
        with self._lock:
            tasks = [(task, task.place) for task in self._tasks]
        for task, place in tasks:
            seen = board.read(place) if place is not None else None
            if seen is None:
                sent.append(RunningTask(task.work.named(None), "its progress is not visible", task.sent))
                continue
            row = self._row_ref(task, seen.mark) if seen.mark.rows or task.work.reads else None
            running.append(RunningTask(task.work.named(seen.mark), f"process {seen.pid}", seen.began, row))
        return running or sent

    def close(self) -> None:
        """Stop retrying tasks."""
        self._closed = True
        self._lost.put(None)

    # ---- attempts ----------------------------------------------------------------------------------------------------

    def _send(self, task: SupervisedTask) -> None:
        from cedar.executors.processes import fresh, warm

        task.place, task.killed, task.ended, task.silent = process_board().take(), 0.0, "", ""
        task.sent = time.monotonic()
        marks = task.marks(self._patience.timeout or 0.0, fine=bool(self._deaths.known))
        try:
            executor = fresh() if task.in_fresh_process else warm(1) if task.on_this_machine else self._executor()
        except BaseException:
            self._release(task)
            raise
        try:
            attempt = task.work.send(Submit(executor, first=bool(task.deaths)), marks)
        except (RuntimeError, BrokenExecutor) as error:
            self._release(task)
            if not (task.on_this_machine or task.in_fresh_process) and executor is not self._executor():  # a new one
                self._send(task)
                return
            raise refused(error) from error
        except BaseException:
            self._release(task)
            raise
        task.attempt = attempt
        if task.in_fresh_process:
            attempt.add_done_callback(lambda _: executor.shutdown(wait=False))
        with self._lock:
            self._tasks.add(task)
        if task.cancelled():
            attempt.cancel()
        attempt.add_done_callback(partial(self._attempt_done, task))

    def _attempt_done(self, task: SupervisedTask, attempt: Future[Result]) -> None:
        """Handle an attempt's result. The executor calls this in its thread, so it must not block or submit tasks."""
        error = CancelledError() if attempt.cancelled() else attempt.exception()
        outcome: Any = attempt.result() if error is None else error
        if (isinstance(outcome, Survived) or (error is not None and is_lost(error))) and not task.cancelled():
            task.lost = task.lost if isinstance(outcome, Survived) else time.monotonic()
            self._lost.put((task, outcome))
            self._start()
            if self._closed:  # the recovery thread may have ended already
                self._cancel_lost()
                self._lost.put(None)  # if it has not ended, wake it up again, because _cancel_lost removed that request
            return
        self._release(task)
        if error is None:
            self._deaths.done(task.lost)
            self._unstarted = 0
            self._done += 1
        task.attempt = None  # breaks a reference cycle that would keep the result in memory
        _settle(task, error, outcome)

    def _release(self, task: SupervisedTask) -> None:
        with self._lock:
            self._tasks.discard(task)
            place, task.place = task.place, None
        if place is not None:
            process_board().give(place)

    # ---- the thread that retries lost tasks --------------------------------------------------------------------------

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cedar-recovery", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                lost = self._lost.get(timeout=self._check_interval)
            except queue.Empty:
                lost = None
            if lost is not None:
                self._recover(*lost)
            elif self._closed:
                self._cancel_lost()
                return
            else:
                self._check_workers()

    def _cancel_lost(self) -> None:
        """Cancel all lost tasks."""
        with suppress(queue.Empty):
            while True:
                lost = self._lost.get_nowait()
                if lost is not None:
                    self._release(lost[0])
                    lost[0].cancel()

    def _recover(self, task: SupervisedTask, cause: BaseException | Survived) -> None:
        try:
            if self._closed:
                self._release(task)
                task.cancel()
                return
            if self._executor().ended:  # the pool was closed intentionally, such as at exit
                self._release(task)
                _settle(task, cause if isinstance(cause, BaseException) else CancelledError(), None)
                return
            if isinstance(cause, Survived):
                self._after_survival(task)
            else:
                self._retry(task, cause)
        except Exception as failed:  # noqa: BLE001 - the task's future reports any error
            _settle(task, failed, None)

    def _retry(self, task: SupervisedTask, error: BaseException) -> None:
        how = how_it_ended(error)
        if task.ended or task.silent:
            how = f"{task.ended or task.silent}, ended by SIGKILL"
        ended = getattr(error, "ended", True)  # if False, the process may still run, so its mark must be ignored
        seen = None if task.place is None or not ended else process_board().read(task.place)
        self._release(task)
        if not getattr(error, "started", True) and "exit code" in how:
            self._unstarted += 1
        trial = task.trial is not None
        bad = task.learn(seen, how, self._deaths.known)
        mark = seen.mark if seen is not None else None
        stop = self._why_stop(task, mark, how)
        found: AfterDeath = "run again" if bad is None else "bad block" if bad.block else "bad row"
        then: AfterDeath = "given up" if stop is not None else "tried" if trial and bad is None else found
        reported = f"{bad.how}, ended by SIGKILL" if bad is not None and bad.hung else how
        self._record(task, mark, reported, then, ended)
        if stop is not None:
            raise stop from error
        if bad is not None and not bad.block:
            self._deaths.known[bad.mark] = bad
        if seen is None and not self._marks_visible and task.unmarked > 1:
            task.on_this_machine = True
        self._send(task)

    def _after_survival(self, task: SupervisedTask) -> None:
        """Run the next trial, or retry the task, after a trial whose process survived."""
        trial = task.trial
        self._release(task)
        task.survived()
        if task.trial is None and trial is not None:
            at = f"{task.work.named(trial.suspect)}, {self._row_ref(task, trial.suspect)}"
            _log.warning("a worker died at %s, but neither row nor block crashes a new worker: retrying", at)
            stop = self._why_stop(task, trial.suspect, "trials in fresh processes found nothing")
            if stop is not None:
                raise stop
        self._send(task)

    def _row_ref(self, task: SupervisedTask, mark: Mark) -> RowRef:
        return replace(mark.ref, url=task.work.reads) if task.work.reads else mark.ref

    def _record(self, task: SupervisedTask, mark: Mark | None, how: str, then: AfterDeath, ended: bool = True) -> None:
        known = mark is not None and mark.rows > 0 and mark.key[0] >= 0  # negative source numbers mean made-up keys
        row, rows = (self._row_ref(task, mark), mark.rows) if known and mark is not None else (None, 0)
        death = Death(how, task.work.named(mark), row, rows, then)
        if then != "tried":  # do not count the process of a trial, which is not one of the run's workers
            self._deaths.add(death, ended)
        _log.warning("a worker was lost: %s", death)

    def _why_stop(self, task: SupervisedTask, mark: Mark | None, how: str) -> CedarError | None:
        if self._unstarted >= _MAX_FAILED_STARTS:
            return WorkersDied(
                f"worker processes do not start: {how}",
                done=_STOPPED,
                fix="run python -c 'import cedar' in a shell: the error there, or a lack of memory, is the cause",
            )
        if task.max_loss and mark is not None and mark.operator == READING:
            return SourceError(
                f"reading {task.work.reads or 'a split'} crashed the worker {task.deaths} times: {how}",
                row=mark.ref,
                done=_STOPPED,
                fix="check whether the file is damaged, or too large for the memory; leave it out to continue",
            )
        if task.max_loss or task.deaths >= _MAX_DEATHS_OF_TASK or self._deaths.in_a_row >= _MAX_DEATHS_IN_A_ROW:
            times = f"{task.deaths} times" if task.deaths > 1 else f"{self._deaths.in_a_row + 1} times in a row"
            return WorkersDied(
                f"workers died {times} while running {task.work.named(mark)}, and no single row is to blame: {how}",
                row=mark.ref if mark is not None and mark.rows else None,
                done=_STOPPED,
                fix="check for too little memory or a library that crashes; then resume from a checkpoint",
            )
        return None

    def _check_workers(self) -> None:
        """Kill stuck workers."""
        try:
            with self._lock:
                tasks = list(self._tasks)
            self._watch.look(self._executor().members(), tasks)
            if self._extra_check is not None:
                self._extra_check()
        except Exception:  # noqa: BLE001 - after a failed check, lost tasks must still be retried
            if not self._check_has_failed:
                _log.warning("checking for stuck workers failed", exc_info=True)
            self._check_has_failed = True


def how_it_ended(error: BaseException) -> str:
    """Describe how a worker ended, from the error of its task."""
    text = str(error).strip().partition("\n")[0]
    if type(error).__name__ == "WorkerDied":
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def refused(error: BaseException) -> WorkerError:
    """Return the error for an executor that accepts no more tasks."""
    block_daemon_at_exit()
    if isinstance(error, BrokenExecutor):
        return WorkerError(
            f"a worker died, and the executor takes no more tasks: {error}",
            done=_STOPPED,
            fix='use executor="processes", which starts another worker and finds the row; or create a new executor',
        )
    return WorkerError(
        f"the executor takes no more tasks: {error}",
        done="the epoch was stopped",
        fix="give an executor that is running, or leave executor= out",
    )


def _settle(task: SupervisedTask, error: BaseException | None, result: Any) -> None:
    with suppress(InvalidStateError):  # the task was canceled in the meantime
        if not task.done():
            if error is None:
                task.set_result(result)
            else:
                task.set_exception(error)
