"""Patience: how long a run waits without progress, and how it detects that a process is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MAX_STEP_SECONDS = 2.0  # seconds: a longer time between checks means that the checking process was itself stopped


@dataclass(frozen=True)
class Patience:
    """Limits in seconds for tasks and processes that make no progress.

    Args:
        timeout: without progress, until the worker is killed and its task retried, or the run ends. None: no limit.
        warn: without progress, until a warning says what the run is waiting for.
        stopped: until a process stopped by a signal is killed.
        frozen: until a worker is killed if none of its threads ran, although one wakes every second.
        look: between two checks.
        clock: returns the current time; it never goes backward.
    """

    timeout: float | None = None
    warn: float = 30.0
    stopped: float = 2.0
    frozen: float = 15.0
    look: float = 1.0
    clock: Callable[[], float] = time.monotonic


class StallTimer:
    """Measures for how long states have not changed.

    Time during which this process was itself stopped, for example by Ctrl-Z or a paused container, does not count.

    Args:
        clock: returns the current time in seconds; it never goes backward.
        look: seconds between two checks.

    Examples:
        >>> time = iter([0.0, 1.0, 2.0, 3.0])
        >>> still = StallTimer(lambda: next(time), 1.0)
        >>> [still.look({"one": state})["one"] for state in ("a", "a", "b")]
        [0.0, 1.0, 0.0]
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
    """What ``/proc`` reports of a process: its state (R, S, D, T, ...), and how often its threads switched context."""

    state: str
    turns: int


def pulse(pid: int) -> Pulse | None:
    """Return the pulse of a process on this machine; None if unknown.

    Examples:
        >>> import os
        >>> found = pulse(os.getpid())
        >>> found is None or found.state == "R"
        True
    """
    turns = 0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # the process name may be cut inside a character
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                turns += _context_switches((thread / "status").read_text(errors="replace"))
    except OSError:
        return None
    return Pulse(stat.rpartition(")")[2].split()[0], turns)


def _context_switches(status: str) -> int:
    return sum(int(line.rpartition(":")[2]) for line in status.splitlines() if "ctxt_switches" in line)


def why_stopped(pulse: Pulse, seconds: float, patience: Patience, has_heartbeat: bool) -> str:
    """Say why a process will not continue by itself, given its pulse for ``seconds``; "" if it may continue.

    A traced process (state t) is under a debugger and may continue.

    Args:
        beats: whether a thread of the process wakes every second, whatever the others do, if only to wait for the
            GIL.
    """
    if pulse.state == "T" and seconds >= patience.stopped:
        return f"stopped by a signal, for {seconds:.0f} s"
    if has_heartbeat and pulse.state in "SDI" and seconds >= patience.frozen:
        return f"frozen: none of its threads ran for {seconds:.0f} s"
    return ""
