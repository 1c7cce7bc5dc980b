"""Waiting for results: detect tasks and processes that make no progress; warn, kill their workers or end the run."""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import secrets
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cedar.core.errors import WorkerError
from cedar.core.requests import OwnedRequests, Stop
from cedar.executors.recovery.task import SupervisedTask
from cedar.operators.base import Env
from cedar.operators.marks import SLOT, TOKEN, Marks, SlotAddress, SlotReading, written

if TYPE_CHECKING:
    from cedar.executors.processes.pool import WorkerProcess

_SLOT_COUNT = 1024
_log = logging.getLogger("cedar")


# ---- the board -------------------------------------------------------------------------------------------------------


class AttemptBoard:
    """Shared memory with slots: each attempt at a task uses one, in which its worker marks the operator and row.

    A process has one board and one file descriptor for all its workers and runs. On Linux, the file has no name, so it
    disappears even if all processes are killed. On other systems it is a temporary file.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._token = secrets.token_bytes(TOKEN)
        self._lock = threading.Lock()
        self._free = deque(range(1, _SLOT_COUNT))
        size = _SLOT_COUNT * SLOT
        self._fd, self._path = -1, ""
        try:
            self._page = self._shared(size)
        except OSError as error:  # there is a file size limit or the disk is full, so run without marks
            self._free.clear()
            self._page = mmap.mmap(-1, size)
            _log.warning("cannot share memory with workers (%s): rows that crash workers will not be named", error)
        self._page[:TOKEN] = self._token

    def _shared(self, size: int) -> mmap.mmap:
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            self._fd = os.memfd_create("cedar-marks")
            os.ftruncate(self._fd, size)
            self._path = f"/proc/{self._owner}/fd/{self._fd}"
        else:
            self._file = tempfile.NamedTemporaryFile(prefix="cedar-marks-")  # noqa: SIM115 - kept open by self
            self._file.truncate(size)
            self._fd, self._path = self._file.fileno(), self._file.name
        return mmap.mmap(self._fd, size)

    def take(self) -> SlotAddress | None:
        """Return an empty slot; None if all slots are in use. A task without a slot records no marks."""
        with self._lock:
            if not self._free:
                return None
            number = self._free.popleft()
        self._page[number * SLOT : (number + 1) * SLOT] = bytes(SLOT)
        return SlotAddress(self._path, self._token, number, self._owner)

    def give(self, place: SlotAddress) -> None:
        """Make a slot available again, to which no process writes any more."""
        with self._lock:
            self._free.append(place.number)  # ``take`` reuses the slot that was unused for the longest time

    def read(self, place: SlotAddress) -> SlotReading | None:
        """Return the mark in a slot; None if it is empty."""
        return written(self._page, place.number)


def process_board() -> AttemptBoard:
    """Return this process's board. A forked child creates its own."""
    with _lock:
        if not _boards:
            _boards.append(AttemptBoard())
        return _boards[0]


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    _boards.clear()


_boards: list[AttemptBoard] = []
_lock = threading.Lock()
os.register_at_fork(after_in_child=_after_fork)


# ---- limits, and the watch that kills workers that exceed them ------------------------------------------------------


_MAX_STEP_SECONDS = 2.0  # a longer time between two checks means that the checking process itself was stopped


@dataclass(frozen=True)
class Patience:
    """Limits in seconds for tasks and processes that make no progress.

    Args:
        timeout: time without progress after which a worker is killed and its task retried, or the run ends; None
            means no limit.
        warn: time without progress after which a warning names what the run is waiting for.
        stopped: time after which a process that was stopped by a signal is killed.
        frozen: time after which a worker is killed if none of its threads ran, although one wakes up every second.
        look: time between two checks.
        clock: returns the current time in seconds, which never decreases.
    """

    timeout: float | None = None
    warn: float = 30.0
    stopped: float = 2.0
    frozen: float = 15.0
    look: float = 1.0
    clock: Callable[[], float] = time.monotonic


class StallTimer:
    """Measures for how long states have not changed.

    Time during which this process itself was stopped, for example by Ctrl-Z or a paused container, does not count.
    """

    def __init__(self, clock: Callable[[], float], look: float) -> None:
        self._clock = clock
        self._max_step = max(_MAX_STEP_SECONDS, 2 * look)
        self._last_look = clock()
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def look(self, states: dict[Hashable, object]) -> dict[Hashable, float]:
        """Return the seconds since each state last changed. Keys missing from ``states`` are forgotten."""
        now = self._clock()
        passed, self._last_look = min(now - self._last_look, self._max_step), now
        before = self._seen
        self._seen = {
            key: (state, before[key][1] + passed if key in before and before[key][0] == state else 0.0)
            for key, state in states.items()
        }
        return {key: seconds for key, (_, seconds) in self._seen.items()}


@dataclass(frozen=True)
class Pulse:
    """A process's state according to ``/proc`` (R, S, D, T, ...), and the number of its threads' context switches."""

    state: str
    turns: int


def pulse(pid: int) -> Pulse | None:
    """Return the pulse of a process on this machine; None if unknown."""
    turns = 0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # the process name may end inside a character
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                lines = (thread / "status").read_text(errors="replace").splitlines()
                turns += sum(int(line.rpartition(":")[2]) for line in lines if "ctxt_switches" in line)
    except OSError:
        return None
    return Pulse(stat.rpartition(")")[2].split()[0], turns)


def why_stopped(pulse: Pulse, seconds: float, patience: Patience, has_heartbeat: bool) -> str:
    """Return why a process with an unchanged pulse for ``seconds`` cannot continue by itself; "" if it may continue.

    A traced process (state t) is stopped by a debugger and may continue.

    Args:
        has_heartbeat: whether a thread of the process wakes up every second, even if other threads hold the GIL.
    """
    if pulse.state == "T" and seconds >= patience.stopped:
        return f"stopped by a signal, for {seconds:.0f} s"
    if has_heartbeat and pulse.state in "SDI" and seconds >= patience.frozen:
        return f"frozen: none of its threads ran for {seconds:.0f} s"
    return ""


class WorkerWatch:
    """Watches the workers of one run. ``Recovery`` handles the workers that it kills like other lost workers."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._still = StallTimer(patience.clock, patience.look)

    def look(self, members: Iterable[WorkerProcess], tasks: Sequence[SupervisedTask]) -> None:
        """Check all workers once. Call this at least every ``patience.look`` seconds.

        A process is running if its threads switch context, and a task makes progress if its mark changes.

        Args:
            members: the executor's own worker processes.
            tasks: the tasks in progress. Other processes on this machine that wrote their marks are checked too.
        """
        board, at = process_board(), {}
        for task in tasks:
            place = task.place
            seen = None if place is None else board.read(place)
            if seen is not None and seen.pid != os.getpid():
                at[task] = seen
        own = {member.pid: member for member in members}
        pids = {*own, *(seen.pid for seen in at.values())}
        pulses = {pid: beat for pid in pids if (beat := pulse(pid)) is not None}
        marks = {task: (seen.mark, seen.began, seen.pid) for task, seen in at.items()}
        seen_now: dict[Any, object] = {**pulses, **marks}
        still = self._still.look(seen_now)
        for task, seen in at.items():
            self._end_late(task, seen, still[task])
        for pid, beat in pulses.items():
            if why := why_stopped(beat, still[pid], self.patience, pid in own):
                stopped = [task for task, seen in at.items() if seen.pid == pid]
                for task in stopped:
                    task.ended = why
                if pid in own:
                    own[pid].kill(why)
                for task in stopped:
                    _kill(task.place, at[task])

    def _end_late(self, task: SupervisedTask, seen: SlotReading, still: float) -> None:
        """Kill a task's worker if a call exceeds its limit, or if it made no progress within the loader's timeout."""
        now, timeout = time.monotonic(), self.patience.timeout
        if task.killed or task.silent:
            return
        if seen.overdue(now):
            task.killed = now if _kill(task.place, seen) else 0.0
        elif timeout is not None and still > max(timeout, seen.limit) and _kill(task.place, seen):
            task.silent = f"no progress within timeout={timeout:g} s"


def _kill(place: SlotAddress | None, seen: SlotReading) -> bool:
    """Kill the process that wrote a mark; return False if the slot has a newer mark."""
    if place is None:
        return False
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(seen.pid, signal.SIGKILL)
            return True
        process = os.pidfd_open(seen.pid)
        try:
            if process_board().read(place) == seen:  # then the pid still belongs to the process that wrote the mark
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return True
        finally:
            os.close(process)
    return False


# ---- waiting for results ---------------------------------------------------------------------------------------------


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
