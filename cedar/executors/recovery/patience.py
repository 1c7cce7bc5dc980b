"""Patience: the limits of a run's waiting without progress, and how to detect that a process is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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

    Args:
        clock: returns the current time in seconds, which never decreases.
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
    """A process's state according to ``/proc`` (R, S, D, T, ...), and the number of its threads' context switches."""

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
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # the process name may end inside a character
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                turns += _context_switches((thread / "status").read_text(errors="replace"))
    except OSError:
        return None
    return Pulse(stat.rpartition(")")[2].split()[0], turns)


def _context_switches(status: str) -> int:
    return sum(int(line.rpartition(":")[2]) for line in status.splitlines() if "ctxt_switches" in line)


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
