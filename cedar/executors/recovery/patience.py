"""Patience: how long a run waits for what does not make progress, and how it tells."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LONGEST = 2.0  # looks: more between two of them is time in which any code that looks did not run itself


@dataclass(frozen=True)
class Patience:
    """Seconds, by a clock.

    Args:
        timeout: without progress, until a process is ended and its task run again, or the run ends; None waits on.
        warn: without progress, until one warning says who waits for what.
        stopped: in which a process is stopped (by a signal), until it is taken to stay so.
        frozen: in which no thread of a process runs, though one has to every second.
        look: between two looks.
        clock: seconds that only continue.
    """

    timeout: float | None = None
    warn: float = 30.0
    stopped: float = 2.0
    frozen: float = 15.0
    look: float = 1.0
    clock: Callable[[], float] = time.monotonic


class StallTimer:
    """For how long things have been as they are, in time that was seen to pass.

    Time in which the one who looks was stopped itself, as by Ctrl-Z or with all of its container, does not count.

    Args:
        clock: seconds that only continue.
        look: between two looks.

    Examples:
        >>> time = iter([0.0, 1.0, 2.0, 3.0])
        >>> still = StallTimer(lambda: next(time), 1.0)
        >>> [still.look({"one": state})["one"] for state in ("a", "a", "b")]
        [0.0, 1.0, 0.0]
    """

    def __init__(self, clock: Callable[[], float], look: float) -> None:
        self._clock = clock
        self._most = max(_LONGEST, 2 * look)
        self._before = clock()
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def look(self, states: dict[Hashable, object]) -> dict[Hashable, float]:
        """Seconds for which each has been as it is now; those that are not named are forgotten."""
        now = self._clock()
        passed, self._before = min(now - self._before, self._most), now
        before = self._seen
        self._seen = {
            who: (state, before[who][1] + passed if who in before and before[who][0] == state else 0.0)
            for who, state in states.items()
        }
        return {who: seconds for who, (_, seconds) in self._seen.items()}


@dataclass(frozen=True)
class Pulse:
    """What the system tells of a process: how it stands (R, S, D, T, ...), how often its threads were given a core."""

    state: str
    turns: int


def pulse(pid: int) -> Pulse | None:
    """Of a process of this machine; None if that is not known.

    Examples:
        >>> import os
        >>> found = pulse(os.getpid())
        >>> found is None or found.state == "R"
        True
    """
    turns = 0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # its name may be cut within a letter
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it has ended
                turns += _switches((thread / "status").read_text(errors="replace"))
    except OSError:
        return None
    return Pulse(stat.rpartition(")")[2].split()[0], turns)


def _switches(status: str) -> int:
    return sum(int(line.rpartition(":")[2]) for line in status.splitlines() if "ctxt_switches" in line)


def why_stopped(pulse: Pulse, seconds: float, patience: Patience, beats: bool) -> str:
    """Why a process that has stood so for some seconds will not continue by itself; empty if it may.

    A traced one belongs to a debugger.

    Args:
        beats: a thread of it wakes every second, whatever the others do: it waits for Python's lock, if for nothing
            else.
    """
    if pulse.state == "T" and seconds >= patience.stopped:
        return f"stopped by a signal, for {seconds:.0f} s"
    if beats and pulse.state in "SDI" and seconds >= patience.frozen:
        return f"frozen: none of its threads ran for {seconds:.0f} s"
    return ""
