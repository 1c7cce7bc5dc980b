"""The machine: cores and memory that this process may use, and what processes cost here, measured once and kept."""

from __future__ import annotations

import functools
import logging
import math
import os
import platform
import threading
import time
import zlib
from concurrent.futures import BrokenExecutor
from typing import Any

import cedar
from cedar.core.quota import cores, memory
from cedar.executors import processes
from cedar.profile import Machine
from cedar.store.keep import load, save, user_place
from cedar.store.place import name_of

_MEASURED = ("ship_seconds", "ship_bytes", "start_seconds", "speed")
_ROUND = 20_000
_PATIENCE = 60.0  # seconds until a worker that does not answer is given up
_log = logging.getLogger("cedar")
_lock = threading.Lock()
_known: dict[str, dict[str, float]] = {}  # what this process measured or read, by machine


def machine(measure: bool = True) -> Machine:
    """This machine, as far as this process may use it.

    Args:
        measure: measure what processes cost here if nothing has yet: about two seconds, once for each machine and
            set of versions, kept in the user's store. False never measures or waits: it takes
            what is kept, else the defaults.

    Examples:
        >>> machine(measure=False).cores > 0
        True
    """
    key = _key()
    if measure:
        with _lock:
            figures = _known.get(key) or _kept(key) or _measured(key)
            _known[key] = figures
    else:
        figures = _known.get(key) or _kept(key)
        if figures:
            _known[key] = figures
    return Machine(cores(), memory(), **figures)


def _measured(key: str) -> dict[str, float]:
    """Measure and keep; what cannot be measured is not kept, and is at its default."""
    figures = {"speed": _speed()}
    try:
        ship_seconds, ship_bytes, start_seconds = ship_costs()
    except (OSError, BrokenExecutor, TimeoutError) as error:
        _log.info("what a process costs cannot be measured here (%s); defaults are taken", error)
        return figures
    figures |= {"ship_seconds": ship_seconds, "ship_bytes": ship_bytes, "start_seconds": start_seconds}
    save(user_place(), name_of("machine", key), lambda _: figures)
    return figures


def ship_costs() -> tuple[float, float, float]:
    """What other processes cost: seconds a task next to its work, bytes per second, seconds until a worker is ready.

    Measured on the pool that runs use, with one worker; where that is warm already, nothing can tell any more how long
    it took to start, and the default stands.

    Raises:
        OSError, BrokenExecutor, TimeoutError: no worker can be started, or it does not answer.
    """
    cold, began = not processes.ready(1), time.perf_counter()
    processes.warm(1).submit(os.getpid).result(_PATIENCE)
    start = time.perf_counter() - began if cold else Machine.start_seconds
    return (*processes.ship_costs(), start)


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


# ---- what is kept ----------------------------------------------------------------------------------------------------


@functools.cache
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


def _kept(key: str) -> dict[str, float]:
    """The figures of an earlier process; empty if there are none, or none that make sense."""
    return load(user_place(), name_of("machine", key), lambda entry: _sound(entry.about)) or {}


def _sound(figures: Any) -> dict[str, float]:
    if not isinstance(figures, dict) or set(figures) != set(_MEASURED):
        return {}
    good = all(isinstance(v, float) and math.isfinite(v) and v > 0 for v in figures.values())
    return dict(figures) if good else {}
