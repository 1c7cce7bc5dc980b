"""How a process ended, and whether the kernel did that because memory ran out, where it keeps count."""

from __future__ import annotations

import signal
from contextlib import suppress

from cedar.core import forks

_GROUPS = "/sys/fs/cgroup"
_lock = forks.Lock()
_told = [0]  # of the kills counted, so many have been given as the cause of a death


def kills() -> int | None:
    """How many processes of this control group the kernel has ended for memory; None if it does not say."""
    for path in _places():
        with suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                counts = dict(line.split()[:2] for line in file if len(line.split()) > 1)
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def was_killed(before: int | None) -> bool:
    """Whether a process that ended by SIGKILL ended for memory; one kill explains one death.

    Args:
        before: the kills when it was started.
    """
    now = kills()
    if now is None or before is None:
        return False
    with _lock:
        explained = max(before, _told[0])
        if now <= explained:
            return False
        _told[0] = explained + 1
        return True


def _places() -> list[str]:
    """Files of version 2 and 1 of control groups, own group first."""
    places = []
    with suppress(OSError), open("/proc/self/cgroup", encoding="ascii", errors="replace") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            if not names:
                places += [f"{_GROUPS}{path.rstrip('/')}/memory.events", f"{_GROUPS}/memory.events"]
            elif "memory" in names.split(","):
                control = f"{_GROUPS}/memory"
                places += [f"{control}{path.rstrip('/')}/memory.oom_control", f"{control}/memory.oom_control"]
    return places


def ending(code: int, before: int | None) -> str:
    """How a process ended, in words.

    Args:
        code: exit code, or the signal below 0.
        before: the kills when it was started; None if they are not known.
    """
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        if was_killed(before):
            return "killed by SIGKILL: out of memory, says the kernel"
        return "killed by SIGKILL" if before is not None else "killed by SIGKILL (by the kernel, out of memory?)"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
