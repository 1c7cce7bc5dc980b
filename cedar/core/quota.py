"""The cores and memory that this process may use: its affinity and the limits of its control groups."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Iterator


def allowed() -> int:
    """Return the number of cores that the system lets this process run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores(root: str = "/") -> int:
    """Return the cores that this process may use: the minimum of its affinity and its CPU quota, rounded up."""
    quota = min((share for share in _cpu_quotas(root)), default=math.inf)
    return max(1, min(allowed(), math.ceil(quota) if quota < math.inf else sys.maxsize))


def memory(root: str = "/") -> int:
    """Return the bytes that this process may use: the minimum of the machine's memory and its groups' limits."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [*_numbers(root, "memory", "memory.max"), *_numbers(root, "memory", "memory.limit_in_bytes")]
    return int(min([installed, *(limit for limit, *_ in limits if limit > 0)]))


def _cpu_quotas(root: str) -> Iterator[float]:
    for quota, period in _numbers(root, "cpu", "cpu.max"):
        yield quota / period
    periods = _numbers(root, "cpu", "cpu.cfs_period_us")
    for (quota,), (period,) in zip(_numbers(root, "cpu", "cpu.cfs_quota_us"), periods, strict=False):
        if quota > 0:
            yield quota / period


def _numbers(root: str, controller: str, name: str) -> Iterator[list[float]]:
    """Yield the numbers in a file of each of this process's control groups, innermost first, except "max"."""
    for path in _files(root, controller, name):
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                words = file.read().split()
            if words and words[0] != "max":
                yield [float(word) for word in words]


@functools.cache
def _files(root: str, controller: str, name: str) -> tuple[str, ...]:
    """Return the paths of a file in this process's control groups. They are cached, since each loader needs them."""
    paths = (os.path.join(folder, name) for folder in _groups(root, controller))
    return tuple(path for path in paths if os.path.exists(path))


def _groups(root: str, controller: str) -> Iterator[str]:
    """Yield the folders of this process's control groups and of their parents."""
    mounted = os.path.join(root, "sys/fs/cgroup")
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tops = [os.path.join(mounted, name) for name in {controllers, controller}] if controllers else [mounted]
        parts = [part for part in path.split("/") if part and part != ".."]
        for top in filter(os.path.isdir, tops):
            for depth in range(len(parts), -1, -1):
                yield os.path.join(top, *parts[:depth])
