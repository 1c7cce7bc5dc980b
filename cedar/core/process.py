"""This process: the cores and memory that it may use, the memory that it uses, and pages that it can release."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import re
from collections.abc import Iterator


def affinity_cores() -> int:
    """Return the number of cores that the system lets this process run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores(root: str = "/") -> int:
    """Return the cores that this process may use: the minimum of its affinity and its CPU quota, rounded up."""
    quotas = [quota / period for quota, period in _numbers(root, "cpu", "cpu.max")]
    periods = _numbers(root, "cpu", "cpu.cfs_period_us")
    for (quota,), (period,) in zip(_numbers(root, "cpu", "cpu.cfs_quota_us"), periods, strict=False):
        if quota > 0:
            quotas.append(quota / period)
    return max(1, min([affinity_cores(), *map(math.ceil, quotas)]))


def memory(root: str = "/") -> int:
    """Return the bytes that this process may use: the minimum of the machine's memory and its groups' limits."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [*_numbers(root, "memory", "memory.max"), *_numbers(root, "memory", "memory.limit_in_bytes")]
    return int(min([installed, *(limit for limit, *_ in limits if limit > 0)]))


def _numbers(root: str, controller: str, name: str) -> Iterator[list[float]]:
    """Yield the numbers in a file of each of this process's control groups, innermost first, except "max"."""
    for path in _group_files(root, controller, name):
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                words = file.read().split()
            if words and words[0] != "max":
                yield [float(word) for word in words]


@functools.cache
def _group_files(root: str, controller: str, name: str) -> tuple[str, ...]:
    """Return the paths of a file in this process's control groups and their parents. Each loader needs them."""
    mounted = os.path.join(root, "sys/fs/cgroup")
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return ()
    found: list[str] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tops = [os.path.join(mounted, name) for name in {controllers, controller}] if controllers else [mounted]
        parts = [part for part in path.split("/") if part and part != ".."]
        for top in filter(os.path.isdir, tops):
            paths = [os.path.join(top, *parts[:depth], name) for depth in range(len(parts), -1, -1)]
            found += filter(os.path.exists, paths)
    return tuple(found)


FILES = 0  # the key for pages of mapped files, such as libraries


def memory_by_process() -> dict[int, int]:
    """Return the bytes of this process and each descendant, by process id, and of ``FILES``; empty without /proc.

    Processes share pages of the same files. They are counted once: ``FILES`` has the maximum over the processes.

    Examples:
        >>> memory_by_process().get(os.getpid(), 0) >= 0
        True
    """
    sizes: dict[int, int] = {}
    files, pending = 0, [os.getpid()]
    while pending:
        process = pending.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):  # the process may have ended
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
    return sum(memory_by_process().values())


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


_DONT_NEED = 4  # MADV_DONTNEED on every Linux
_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+\s*(.*)$")


def release_library_pages(library: str) -> int:
    """Release the pages of a library's code and constants; the system reads them again if they are needed.

    Pages that this process has written to, such as relocated addresses, are kept. Only works on Linux.

    Args:
        library: the prefix of its file name.

    Returns:
        The bytes that were released.

    Examples:
        >>> release_library_pages("libunheard")
        0
    """
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
            clean = list(_clean_mappings(library, lines))
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return 0
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return sum(resident for start, stop, resident in clean if advise(start, stop - start, _DONT_NEED) == 0)


def _clean_mappings(library: str, lines: Iterator[str]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, resident bytes) of the library's read-only mappings that were never written to."""
    start = stop = resident = 0
    of_library = written = False
    for line in lines:
        if head := _HEAD.match(line):
            start, stop = int(head[1], 16), int(head[2], 16)
            of_library, written = "w" not in head[3] and head[4].rpartition("/")[2].startswith(library), False
        elif of_library and line.startswith("Rss:"):
            resident = int(line.split()[1]) << 10
        elif of_library and line.startswith(("Anonymous:", "Swap:")):
            written |= int(line.split()[1]) > 0
        elif of_library and line.startswith("VmFlags:") and resident and not written:  # the last line of a mapping
            yield start, stop, resident
