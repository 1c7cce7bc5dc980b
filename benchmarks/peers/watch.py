"""What a run and all the processes that it starts use, wherever they are in the tree.

A run's processes are known by an environment variable that they inherit: daemons that leave the group and the session
are found as well, counted, and ended. Linux only, from /proc; elsewhere nothing is found.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Self

VARIABLE = "CEDAR_BENCHMARK_RUN"
_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def members(mark: str, known: dict[tuple[int, str], bool] | None = None) -> list[int]:
    """The processes of a run. ``known`` remembers who was inspected, by pid and start time."""
    needle = f"{VARIABLE}={mark}".encode()
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdecimal():
            continue
        try:
            if known is None:
                belongs = needle in _bytes(f"/proc/{name}/environ").split(b"\0")
            else:
                identity = (int(name), _stat(name)[19])
                if identity not in known:
                    known[identity] = needle in _bytes(f"/proc/{name}/environ").split(b"\0")
                belongs = known[identity]
        except OSError:
            continue  # it ended, or is another user's
        if belongs:
            found.append(int(name))
    return found


def cpu_seconds(mark: str) -> float:
    """CPU seconds of a run's processes, those that ended and were waited for included."""
    total = 0
    for pid in members(mark):
        try:
            total += sum(int(ticks) for ticks in _stat(str(pid))[11:15])  # own and waited-for children's
        except OSError:
            continue
    return total / _TICK


def end(mark: str, patience: float = 5.0) -> None:
    """Kill the rest of a run."""
    stop = time.monotonic() + patience
    while pids := members(mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > stop:
            return  # zombies of a parent that does not wait
        time.sleep(0.02)


class Memory:
    """The peaks of resident and of proportional memory of a run, in MB, by looking now and then."""

    def __init__(self, mark: str, every: float = 0.1, proportional_every: float = 0.5) -> None:
        self.mark, self.every, self.proportional_every = mark, every, proportional_every
        self.resident = self.proportional = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _look(self) -> None:
        known: dict[tuple[int, str], bool] = {}
        next_proportional = 0.0
        while not self._stop.wait(self.every):
            pids = members(self.mark, known)
            self.resident = max(self.resident, sum(map(_resident, pids)))
            if time.monotonic() >= next_proportional:
                self.proportional = max(self.proportional, sum(map(_proportional, pids)))
                next_proportional = time.monotonic() + self.proportional_every


def _resident(pid: int) -> float:
    try:
        return int(_bytes(f"/proc/{pid}/statm").split()[1]) * _PAGE / 1e6
    except (OSError, IndexError):
        return 0.0


def _proportional(pid: int) -> float:
    try:
        for line in _bytes(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    except (OSError, IndexError):
        pass
    return 0.0


def _stat(pid: str) -> list[str]:
    """The fields of /proc/pid/stat from the third on: the second may hold spaces."""
    return _bytes(f"/proc/{pid}/stat").rpartition(b")")[2].decode().split()


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
