"""The machine: cores and memory that this process may use, and what processes cost here, measured once and kept."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import stat
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import cedar
from cedar.execution.executors import available_cpus
from cedar.execution.shipping import ship_costs
from cedar.profile import Machine

_VERSION = 1
_MEASURED = ("ship_seconds", "ship_bytes", "start_seconds", "speed")
_ROUND = 20_000
_log = logging.getLogger("cedar")
_lock = threading.Lock()
_known: dict[str, dict[str, float]] = {}  # what this process measured or read, by machine


def machine(measure: bool = True) -> Machine:
    """This machine, as far as this process may use it.

    Args:
        measure: measure what processes cost here if nobody has yet: about two seconds, once for each machine and
            set of versions, kept in a file of the user's cache directory. False never measures or waits: it takes
            what is kept, else the defaults.

    Example:
        >>> machine(measure=False).cores > 0
        True
    """
    key = _key()
    if measure:
        with _lock:
            figures = _known.get(key) or _kept(key) or _measured(key)
            _known[key] = figures
    else:
        figures = _known.get(key) or _kept(key) or {}
    return Machine(cores(), memory(), **figures)


def _measured(key: str) -> dict[str, float]:
    """Measure and keep; what cannot be measured is not kept, and stands at its default."""
    figures = {"speed": _speed()}
    try:
        ship_seconds, ship_bytes, start_seconds = ship_costs()
    except OSError as error:
        _log.info("what a process costs cannot be measured here (%s); defaults are taken", error)
        return figures
    figures |= {"ship_seconds": ship_seconds, "ship_bytes": ship_bytes, "start_seconds": start_seconds}
    _keep(key, figures)
    return figures


def _speed() -> float:
    """Rounds per second of a small fixed task; the best of some, which is what the core can do."""
    data = bytes(range(256))
    best = math.inf
    for _ in range(7):
        start = time.perf_counter()
        state = 0
        for i in range(_ROUND):
            state = zlib.crc32(data, state) ^ i
        best = min(best, time.perf_counter() - start)
    return 1 / best


# ---- what this process may use ---------------------------------------------------------------------------------------


def cores(root: str = "/") -> int:
    """The cores this process may use: its affinity, and the quota of its control groups rounded up."""
    quota = min((share for share in _cpu_quotas(root)), default=math.inf)
    return max(1, min(available_cpus(), math.ceil(quota) if quota < math.inf else sys.maxsize))


def memory(root: str = "/") -> int:
    """Bytes this process may use: those of the machine, or the least limit of its control groups."""
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
    """The numbers in a file of this process's control groups, nearest first; those without a limit are left out."""
    for folder in _groups(root, controller):
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(folder, name), encoding="ascii") as file:
                words = file.read().split()
            if words and words[0] != "max":
                yield [float(word) for word in words]


def _groups(root: str, controller: str) -> Iterator[str]:
    """The folders of the control groups that this process is in, and those above them."""
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


# ---- what is kept ----------------------------------------------------------------------------------------------------


def _key() -> str:
    """Stands for the kind of machine and the versions; not for its name, so that equal ones may share a home."""
    import pyarrow as pa

    facts = (_processor(), os.cpu_count(), platform.machine(), platform.system(), platform.release())
    versions = (platform.python_version(), cedar.__version__, pa.__version__)
    return " | ".join(str(fact) for fact in (*facts, *versions))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.lower().startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _folder() -> str | None:
    """``$XDG_CACHE_HOME/cedar`` or ``~/.cache/cedar``, where it is ours alone; None otherwise."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        return None
    folder = os.path.join(base, "cedar")
    try:
        os.makedirs(base, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError:
        return None
    ours = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if stat.S_ISDIR(found.st_mode) and ours else None


def _kept(key: str) -> dict[str, float]:
    """The figures of an earlier process; empty where there are none, or none that make sense."""
    folder = _folder()
    return _sound(_read(os.path.join(folder, "machine.json")).get(key)) if folder else {}


def _sound(found: Any) -> dict[str, float]:
    if not isinstance(found, dict) or set(found) != set(_MEASURED):
        return {}
    good = all(isinstance(v, float) and math.isfinite(v) and v > 0 for v in found.values())
    return dict(found) if good else {}


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    good = isinstance(found, dict) and found.get("version") == _VERSION and isinstance(found.get("machines"), dict)
    return found["machines"] if good else {}


def _keep(key: str, figures: dict[str, float]) -> None:
    """Add them to the file, as a whole; where that cannot be written, this process alone knows them."""
    folder = _folder()
    if folder is None:
        return
    path = os.path.join(folder, "machine.json")
    text = json.dumps({"version": _VERSION, "machines": {**_read(path), key: figures}}, indent=2)
    try:
        number, temporary = tempfile.mkstemp(dir=folder, prefix="machine.", suffix=".tmp")
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(temporary, path)
    except OSError as error:
        _log.info("%s cannot be written: %s", path, error)
