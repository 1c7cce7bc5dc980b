"""A machine's supervisor: starts workers, detects when one dies or hangs, and kills hung workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import connection
from typing import Any

from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.beats import Clock, HeartbeatBoard, usage
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.schedule import Worker

CHECK_INTERVAL = 0.01  # seconds between two checks
_HEARTBEAT_INTERVAL = 0.2


class Supervisor:
    """Supervises the workers of one machine.

    Args:
        name: unique name of this supervisor; differs at each start.
        heartbeat: seconds without heartbeat or progress after which a worker is considered hung.
        work: the function that a worker's process runs. Its arguments are the worker, how many earlier processes ran
            this worker, its row in the shared heartbeat memory, and this memory.
    """

    def __init__(
        self, name: str, board: Board, rows: int, heartbeat: float,
        work: Callable[[Worker, int, int, HeartbeatBoard], None],
    ) -> None:  # fmt: skip
        self.name, self.board, self.heartbeat, self.work = name, board, heartbeat, work
        self.beats = HeartbeatBoard(rows)
        self.processes: dict[Worker, Any] = {}
        self.rows: dict[Worker, int] = {}
        self.started: dict[Worker, int] = {}
        self.clock = Clock()
        self._orders = 0
        self._last_heartbeat = 0.0
        board.report("machine", machine=name)

    def tick(self) -> None:
        """Announce the newest generation to workers, start those that the coordinator ordered, and check all others."""
        self.announce(self.board.generation())
        watched, now = self.clock.update(), time.monotonic()
        if now - self._last_heartbeat > _HEARTBEAT_INTERVAL:
            self._last_heartbeat = now
            self.board.increment(keys.MACHINE(self.name))
            for number in range(self._orders + 1, self.board.increment(keys.ORDERS(self.name), 0) + 1):
                place = self.board.get(keys.ORDER(self.name, number))
                if place is None:
                    break
                self._orders = number
                self._start(Worker(*place))
        for worker, process in list(self.processes.items()):
            code = process.exitcode
            if code is None:
                why = self.beats.hang_reason(self.rows[worker], self.heartbeat, watched, partial(usage, process.pid))
                if why is None:
                    continue
                os.kill(process.pid, signal.SIGKILL)
                process.join()
            else:
                why = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
            del self.processes[worker]
            if code != 0:
                step, at = self.beats.position(self.rows[worker])
                self.board.report(
                    "gone", worker=worker, machine=self.name, time=time.time(),
                    why=f"{why}, at step {step}, instruction {at}",
                )  # fmt: skip
            process.close()

    def announce(self, generation: int) -> None:
        """Announce the newest generation to the workers of this machine."""
        self.beats.generation = generation

    def pause(self) -> None:
        """Wait until the next check is due; return immediately if a worker ends."""
        connection.wait([process.sentinel for process in self.processes.values()], CHECK_INTERVAL)

    def _start(self, worker: Worker) -> None:
        row = self.rows.setdefault(worker, len(self.rows))
        times = self.started[worker] = self.started.get(worker, -1) + 1
        self.beats.start(row)
        # fork starts workers fast, since modules are already imported. It is safe, since only fork-aware libraries have
        # threads in this process, and torch has not run any computation.
        process = multiprocessing.get_context("fork").Process(
            target=self.work, args=(worker, times, row, self.beats), name=f"worker {worker}"
        )
        process.start()
        self.processes[worker] = process

    def stop(self) -> None:
        """Kill the remaining workers, and wait until they have ended."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join()
            process.close()
        self.processes.clear()
