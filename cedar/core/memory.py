"""Memory that this process and its workers use."""

from __future__ import annotations

import os
from contextlib import suppress

FILES = 0  # the key for pages of mapped files, such as libraries


def by_process() -> dict[int, int]:
    """Return the bytes of this process and each descendant, by process id, and of ``FILES``; empty without /proc.

    Processes share pages of the same files. They are counted once: ``FILES`` has the maximum over the processes.

    Examples:
        >>> import os
        >>> by_process().get(os.getpid(), 0) >= 0
        True
    """
    sizes: dict[int, int] = {}
    files, pending = 0, [os.getpid()]
    while pending:
        process = pending.pop()
        with suppress(OSError, ValueError, IndexError):  # the process may have ended
            own, mapped = _process_bytes(process)
            sizes[process], files = own, max(files, mapped)
            for thread in os.listdir(f"/proc/{process}/task") if process == os.getpid() else [str(process)]:
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    pending += map(int, file.read().split())
    return {**sizes, FILES: files} if sizes else {}


def resident() -> int:
    """Return the bytes of this process and all its descendants, with pages of files counted once; 0 without /proc.

    Examples:
        >>> resident() >= 0
        True
    """
    return sum(by_process().values())


def _process_bytes(process: int) -> tuple[int, int]:
    """Return the bytes of a process without file pages, and the bytes of the file pages that it has mapped."""
    own = files = 0
    with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith(("RssAnon:", "RssShmem:")):
                own += int(line.split()[1]) << 10
            elif line.startswith("RssFile:"):
                files = int(line.split()[1]) << 10
    return own, files
