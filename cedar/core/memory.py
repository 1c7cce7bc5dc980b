"""What this process and its workers hold of the machine's memory."""

from __future__ import annotations

import os
from contextlib import suppress

FILES = 0  # stands for pages of files, such as those of libraries


def by_process() -> dict[int, int]:
    """Bytes of each process of the tree below this one, by its number, and of ``FILES``; empty without /proc.

    Pages of files are shared by processes that map the same, and are counted once: as those of the one with most.

    Examples:
        >>> import os
        >>> by_process().get(os.getpid(), 0) >= 0
        True
    """
    sizes: dict[int, int] = {}
    files, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        with suppress(OSError, ValueError, IndexError):  # it may have ended
            own, mapped = _of(process)
            sizes[process], files = own, max(files, mapped)
            for thread in os.listdir(f"/proc/{process}/task") if process == os.getpid() else [str(process)]:
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    left += map(int, file.read().split())
    return {**sizes, FILES: files} if sizes else {}


def resident() -> int:
    """Bytes that this process and all below it hold, pages of files counted once; 0 without /proc.

    Examples:
        >>> resident() >= 0
        True
    """
    return sum(by_process().values())


def _of(process: int) -> tuple[int, int]:
    """Bytes of a process alone, and of the pages of files that it has mapped."""
    own = files = 0
    with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith(("RssAnon:", "RssShmem:")):
                own += int(line.split()[1]) << 10
            elif line.startswith("RssFile:"):
                files = int(line.split()[1]) << 10
    return own, files
