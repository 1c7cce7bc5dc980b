"""Describe how a process ended, including whether the kernel killed it because memory ran out."""

from __future__ import annotations

import signal
from contextlib import suppress

from cedar.core import forks

_CGROUP_ROOT = "/sys/fs/cgroup"
_lock = forks.Lock()
_explained = [0]  # number of the kernel's kills that were already matched to a dead worker


def kills() -> int | None:
    """Return how many processes of this cgroup the kernel killed for lack of memory; None if it does not count them."""
    for path in _count_files():
        with suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                counts = dict(line.split()[:2] for line in file if len(line.split()) > 1)
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def was_killed(before: int | None) -> bool:
    """Return whether the kernel killed a process for lack of memory. Each kill that it counts explains one death.

    Args:
        before: the kernel's count when the process started.
    """
    now = kills()
    if now is None or before is None:
        return False
    with _lock:
        explained = max(before, _explained[0])
        if now <= explained:
            return False
        _explained[0] = explained + 1
        return True


def _count_files() -> list[str]:
    """Return the files with the kernel's counts, for cgroup versions 2 and 1; this process's own group is first."""
    files = []
    with suppress(OSError), open("/proc/self/cgroup", encoding="ascii", errors="replace") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            if not names:
                files += [f"{_CGROUP_ROOT}{path.rstrip('/')}/memory.events", f"{_CGROUP_ROOT}/memory.events"]
            elif "memory" in names.split(","):
                control = f"{_CGROUP_ROOT}/memory"
                files += [f"{control}{path.rstrip('/')}/memory.oom_control", f"{control}/memory.oom_control"]
    return files


def ending(code: int, before: int | None) -> str:
    """Describe how a process ended.

    Args:
        code: exit code, or the negative signal number.
        before: the kernel's count of kills when the process started; None if unknown.
    """
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        if was_killed(before):
            return "killed by SIGKILL: out of memory, as the kernel reports"
        return "killed by SIGKILL" if before is not None else "killed by SIGKILL (perhaps because memory ran out)"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
