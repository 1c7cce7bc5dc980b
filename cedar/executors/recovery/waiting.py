"""Waiting: wait for a result, warn if no task makes progress, and raise an error if that lasts too long."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cedar.core.errors import WorkerError
from cedar.core.requests import OwnedRequests, Stop
from cedar.executors.recovery.board import process_board
from cedar.executors.recovery.patience import Patience, StallTimer
from cedar.operators.base import Env
from cedar.operators.marks import Marks, SlotAddress

_log = logging.getLogger("cedar")
_GRACE_SECONDS = 10.0  # seconds to wait beyond twice the timeout, so that recovery can first kill a stuck worker
_POLL_SECONDS = 0.1  # seconds between two checks whether the run has ended
T = TypeVar("T")


@dataclass(frozen=True)
class RunningTask:
    """A task in progress: its label, its process or thread, its start time, and the row it has reached, if known."""

    label: str
    where: str
    since: float
    row: object = None

    def describe(self, now: float) -> str:
        row = "" if self.row is None else f", {self.row}"
        return f"{self.label}{row} ({self.where}, for {now - self.since:.0f} s)"


class Waiting:
    """Waits for the results of one run's tasks.

    Args:
        patience: how long to wait.
        progress: returns a value that changes whenever a task makes progress.
        at_work: returns the tasks in progress.
        ends: returns whether ``Recovery`` kills stuck workers of this run and retries their tasks.
    """

    def __init__(
        self,
        patience: Patience,
        progress: Callable[[], object],
        at_work: Callable[[], list[RunningTask]],
        ends: Callable[[], bool],
    ) -> None:
        self.patience = patience
        self._progress, self._at_work, self._recovers = progress, at_work, ends
        self._warned = False

    def wait(self, futures: Sequence[Future[Any]], awaited: str) -> None:
        """Wait until one of the futures is done; ``awaited`` describes them in messages.

        Raises:
            WorkerError: no task made progress for too long.
        """
        still: StallTimer | None = None
        while not any(future.done() for future in futures):
            if still is not None:
                self.look(still, awaited)
            still = still or StallTimer(self.patience.clock, self.patience.look)
            if len(futures) == 1:  # ``wait_for`` would notice a cancellation too late
                with suppress(TimeoutError, CancelledError):
                    futures[0].exception(self.patience.look)
            else:
                wait_for(futures, self.patience.look, FIRST_COMPLETED)

    def look(self, still: StallTimer, awaited: str) -> None:
        """Check once for progress; log a warning or raise WorkerError if there was none for too long."""
        seconds = still.look({"progress": self._progress()})["progress"]
        timeout = self.patience.timeout
        if seconds >= self.patience.warn and not self._warned:
            self._warned = True
            _log.warning("%s; loader(timeout=) limits the wait", self._stall_message(seconds, awaited))
        limit = None if timeout is None else 2 * timeout + _GRACE_SECONDS if self._recovers() else timeout
        if limit is not None and seconds >= limit:
            raise WorkerError(
                self._stall_message(seconds, awaited),
                done="the epoch was stopped; the state is that of the last batch received",
                fix='give the function a limit (map(timeout=)), or use executor="processes", which ends what hangs; '
                "or raise timeout= of the loader",
            )

    def _stall_message(self, seconds: float, awaited: str) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        now = time.monotonic()
        tasks = sorted(self._at_work(), key=lambda task: task.since)
        work = "; ".join(task.describe(now) for task in tasks[:4]) or "no task has started"
        return f"no progress for {seconds:.0f} s, since {since}: the loop waits for {awaited}; at work: {work}"


@dataclass
class _WaitingCall:
    args: tuple[Any, ...]
    thread: str
    since: float
    place: SlotAddress | None = None


class LocalTasks:
    """Tasks that run in threads of this process, including the caller's thread.

    Args:
        patience: if it has a ``timeout``, tasks mark the rows they reach, so that progress is visible.
        stop: ends the waits of tasks for storage, and of the calling thread for a task in a new thread.
        named: returns a description of a call with the given arguments, for messages.
    """

    def __init__(self, patience: Patience, stop: Stop, named: Callable[[tuple[Any, ...]], str]) -> None:
        self._patience, self._stop, self._named = patience, stop, named
        self._numbers = itertools.count(1)
        self._calls: dict[int, _WaitingCall] = {}
        self.done = 0

    def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a call in this thread. With a ``timeout``, run it in a new thread, which is abandoned if it hangs."""
        number = next(self._numbers)
        call = self._calls[number] = _WaitingCall(args, threading.current_thread().name, time.monotonic())
        try:
            with OwnedRequests(stop=self._stop):
                if self._patience.timeout is None:
                    return fn(*args)
                return _run_in_new_thread(self._stop, lambda: fn(*self._args_with_marks(call)))
        finally:
            del self._calls[number]
            self.done += 1
            if call.place is not None:
                process_board().give(call.place)

    def _args_with_marks(self, call: _WaitingCall) -> tuple[Any, ...]:
        call.place = process_board().take()
        if call.place is None:
            return call.args
        marks = Marks(call.place, fine=True)
        return tuple(replace(a, marks=marks) if isinstance(a, Env) else a for a in call.args)

    @property
    def busy(self) -> bool:
        """Whether a task is in progress."""
        return bool(self._calls)

    def progress(self) -> object:
        """Return a value that changes whenever a task finishes or reaches another row."""
        return self.done, tuple(self._slot_reading(call) for call in list(self._calls.values()))

    def _slot_reading(self, call: _WaitingCall) -> object:
        return None if call.place is None else process_board().read(call.place)

    def at_work(self) -> list[RunningTask]:
        running = []
        for call in list(self._calls.values()):
            seen = None if call.place is None else process_board().read(call.place)
            row = seen.mark.ref if seen is not None and seen.mark.rows else None
            since = seen.began if seen is not None else call.since
            running.append(RunningTask(self._named(call.args), f"thread {call.thread}", since, row))
        return running


def _run_in_new_thread(stop: Stop, work: Callable[[], T]) -> T:
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            answer.set_exception(error)

    threading.Thread(target=run, name="cedar-task", daemon=True).start()
    while not wait_for([answer], _POLL_SECONDS).done:
        if stop.wait(0):
            raise CancelledError
    return answer.result()
