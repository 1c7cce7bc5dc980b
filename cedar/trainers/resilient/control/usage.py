"""Whether a process hangs or only gets no core: what the kernel knows of it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")
_STATE, _USER, _SYSTEM = 0, 11, 12  # fields of stat after the name


class Usage(NamedTuple):
    """Of a process, all its threads together.

    Args:
        runnable: a thread runs, or waits for a core.
        seconds: of cores, since it began.
    """

    runnable: bool
    seconds: float


def usage(process: int) -> Usage:
    """Of a process of this machine; one that is gone wants no core. Needs Linux.

    Args:
        process: its number.
    """
    runnable, seconds = False, 0.0
    with suppress(OSError):  # it has ended
        fields = _stat(f"/proc/{process}/stat")
        seconds = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICK
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):  # that thread has ended
                runnable = runnable or _stat(f"/proc/{process}/task/{thread}/stat")[_STATE] == "R"
    return Usage(runnable, seconds)


def _stat(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
