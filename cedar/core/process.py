"""This process: the cores and memory that it may use and uses, pages that it can release, and what a fork lacks.

A forked process has only one thread. polars' threads are missing, so code that waits for them waits forever, and a
copied thread pool accepts work that never runs. A forked process therefore runs polars functions in a fresh process.
Another thread may have held a lock of Arrow's allocator at the fork, so Arrow allocates with malloc from then on.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa


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


# ---- forks -----------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")
START_FRESH = 'start the process by "spawn" or "forkserver", or fork it before cedar or polars is used'

_polars_lost = False
_other_threads = False  # whether other threads ran at the last fork
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_fresh_process_calls: list[Callable[..., Any]] = []


def lost_polars() -> bool:
    """Whether this process was forked from one that had loaded polars, so that polars' threads are missing here."""
    return _polars_lost


def call_fresh_processes_by(call: Callable[..., Any]) -> None:
    """Set the function that calls others in a fresh process: ``call(fn, *args)``."""
    _fresh_process_calls[:] = [call]


def in_fresh_process_after_fork(fn: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that uses polars so that it runs in a fresh process if polars cannot work in this one."""

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if _polars_lost:
            return _fresh_process_calls[0](called, *args, **kwargs)  # type: ignore[no-any-return]
        return fn(*args, **kwargs)

    return called


class Lock:
    """A re-entrant lock that starts unlocked in a forked process and in an unpickled copy."""

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()


def _before_fork() -> None:
    global _other_threads  # noqa: PLW0603 - the state belongs to the process
    _other_threads = threading.active_count() > 1


def _after_fork() -> None:
    global _polars_lost  # noqa: PLW0603 - the state belongs to the process
    _polars_lost = _polars_lost or "polars" in sys.modules
    if _other_threads:
        pa.set_memory_pool(pa.system_memory_pool())
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
