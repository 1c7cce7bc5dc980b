"""What this process and its workers hold of the machine's memory."""

from __future__ import annotations

import os
from contextlib import suppress

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident() -> int:
    """Resident bytes of this process and of all below it, memory that they share counted in each; 0 without /proc.

    Example:
        >>> resident() >= 0
        True
    """
    size, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        with suppress(OSError, ValueError, IndexError):  # it may have ended
            with open(f"/proc/{process}/statm", encoding="ascii") as file:
                size += int(file.read().split()[1]) * _PAGE
            for thread in os.listdir(f"/proc/{process}/task") if process == os.getpid() else [str(process)]:
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    left += map(int, file.read().split())
    return size
