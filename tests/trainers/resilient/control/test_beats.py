"""What counts as hung, by a fake clock, and what does not: slow, waiting, without a core, or never watched."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from cedar.trainers.resilient.control.beats import _FIELDS as FIELDS
from cedar.trainers.resilient.control.beats import Clock, HeartbeatBoard, Usage, usage
from cedar.trainers.resilient.schedule import Instruction, Worker
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are watched by /proc")


class Watched:
    """A worker of the second row, by a fake clock, and what its process seems to use."""

    def __init__(self) -> None:
        self.beats, self.now, self.uses = HeartbeatBoard(2), 0.0, Usage(runnable=False, seconds=0.0)
        self.heartbeat = 1.0
        self.beats.start(1)

    def move(self, step: int, at: int, done: Instruction, waiting_for: Worker | None = None) -> None:
        self.beats.begin_instruction(1, step, at, done, waiting_for)

    def after(self, seconds: float, *, beat: bool = True) -> str:
        """Why it counts as hung so much later; empty: it does not."""
        self.now += seconds
        if beat:
            self.beats.numbers[1 + FIELDS] += 1
        return self.beats.hang_reason(1, self.heartbeat, self.now, lambda: self.uses) or ""


WORK = Instruction("F", 0, 0)


def test_hung_is_no_sign_or_no_progress_and_slow_is_neither() -> None:
    worker = Watched()
    assert worker.after(100, beat=False) == ""  # still starting
    worker.move(2, 0, WORK)
    assert worker.after(100) == ""
    assert worker.after(100) == ""  # its first step
    worker.move(2, 8, Instruction("ALL_REDUCE"))
    worker.move(2, 9, Instruction("STEP"))
    worker.move(3, 0, WORK)
    assert worker.after(0) == ""
    assert worker.after(0.9, beat=False) == ""
    assert "no sign" in worker.after(0.2, beat=False)
    assert "no progress" in worker.after(10)  # the heartbeat's thread lives
    worker.move(3, 1, Instruction("RECV_F", 0, 1, 0), Worker(0, 1))
    assert worker.after(0) == ""
    assert worker.after(100) == ""  # it waits for something
    assert worker.beats.position(1) == (3, 1)
    worker.move(3, 2, WORK)
    worker.beats.numbers[1 + FIELDS + 5] = 2.0  # its slowest instruction took 2 s
    assert worker.after(0) == ""
    assert worker.after(9) == ""
    assert "no progress for 10 s" in worker.after(2)


def test_a_heartbeat_above_the_usual_limit_holds_in_the_first_step_too() -> None:
    worker = Watched()
    worker.heartbeat = 300.0
    worker.after(0)
    assert worker.after(200, beat=False) == ""  # still starting
    worker.move(0, 0, WORK)
    worker.after(0)
    assert worker.after(200) == ""
    assert "no progress for 300 s" in worker.after(150)


def test_a_worker_that_gets_no_core_does_not_hang() -> None:
    worker = Watched()
    for step, at, done in ((2, 0, "F"), (2, 8, "ALL_REDUCE"), (2, 9, "STEP"), (3, 0, "F")):
        worker.move(step, at, Instruction(done))
    worker.beats.numbers[1 + FIELDS + 7] = worker.beats.numbers[1 + FIELDS + 8] = 7.0  # seconds of cores until now
    worker.after(0)
    worker.uses = Usage(runnable=True, seconds=7.1)
    assert worker.after(5, beat=False) == ""
    assert worker.after(5) == ""
    worker.uses = Usage(runnable=True, seconds=7.9)  # it had cores, and made nothing of it
    assert "no progress" in worker.after(0)
    assert "no sign" in worker.after(5, beat=False)


def test_what_a_process_uses_tells_a_stopped_one_from_a_busy_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            begun = usage(process.pid).seconds
            assert eventually(lambda: usage(process.pid).runnable)  # it reads its libraries yet
            assert eventually(lambda: usage(process.pid).seconds >= begun + 0.05)
            process.send_signal(signal.SIGSTOP)
            assert eventually(lambda: not usage(process.pid).runnable)
        finally:
            process.kill()
    assert usage(process.pid) == Usage(runnable=False, seconds=0.0)


def test_what_a_watcher_slept_through_is_nobodys_silence() -> None:
    times = iter([10.0, 10.05, 14.0, 14.05])
    clock = Clock(0.1, lambda: next(times))
    assert [clock.update() for _ in range(3)] == pytest.approx([0.05, 0.15, 0.2])
    assert clock.now == pytest.approx(0.2)
