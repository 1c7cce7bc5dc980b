"""The cores and memory that this process may use, and the cost of worker processes, which is measured and stored."""

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
from cedar.core.process import cores, memory
from cedar.profile import Machine
from cedar.store.keep import load, save, user_place
from cedar.store.place import name_of

_MEASURED = ("ship_seconds", "ship_bytes", "start_seconds", "speed")
_ROUND = 20_000
_PATIENCE = 60.0  # maximum seconds to wait for a worker's answer
_log = logging.getLogger("cedar")
_lock = threading.Lock()
_known: dict[str, dict[str, float]] = {}  # figures that this process measured or loaded, by machine key


def machine(measure: bool = True) -> Machine:
    """Return the resources of this machine that this process may use.

    Args:
        measure: if the cost of worker processes is not stored, measure it. That takes about two seconds, once per
            machine and set of versions. If False, use stored figures or defaults, without waiting.

    Examples:
        >>> machine(measure=False).cores > 0
        True
    """
    key = machine_key()
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
    """Measure the figures. Store them, once and for all, unless other programs keep the cores busy meanwhile.

    If processes cannot be measured, return only the speed, and store nothing.
    """
    figures = {"speed": _speed()}
    try:
        ship_seconds, ship_bytes, start_seconds = ship_costs()
    except (OSError, BrokenExecutor, TimeoutError) as error:
        _log.info("the cost of worker processes cannot be measured here (%s); using defaults", error)
        return figures
    figures |= {"ship_seconds": ship_seconds, "ship_bytes": ship_bytes, "start_seconds": start_seconds}
    if os.getloadavg()[0] < cores():
        save(user_place(), name_of("machine", key), lambda _: figures)
    return figures


def ship_costs() -> tuple[float, float, float]:
    """Return the cost of worker processes: seconds of overhead per task, bytes per second, and seconds to start one.

    The measurement uses one worker of the pool that runs use. If that worker is already running, its start time cannot
    be measured, and the default is returned.

    Raises:
        OSError, BrokenExecutor, TimeoutError: no worker can be started, or it does not answer.
    """
    from cedar.executors import processes

    cold, began = not processes.ready(1), time.perf_counter()
    processes.warm(1).submit(os.getpid).result(_PATIENCE)
    start = time.perf_counter() - began if cold else Machine.start_seconds
    return (*processes.ship_costs(), start)


def _speed() -> float:
    """Return how often per second this machine runs a small fixed computation; the best of seven trials."""
    data = bytes(range(256))
    best = math.inf
    for _ in range(7):
        start = time.perf_counter()
        state = 0
        for i in range(_ROUND):
            state = zlib.crc32(data, state) ^ i
        best = min(best, time.perf_counter() - start)
    return 1 / best


# ---- stored figures --------------------------------------------------------------------------------------------------


@functools.cache
def machine_key() -> str:
    """Return a key of the hardware and versions. It omits the host name, so that equal machines share figures."""
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
    """Return the figures that an earlier process stored; empty if they are missing or invalid."""
    return load(user_place(), name_of("machine", key), lambda entry: _sound(entry.about)) or {}


def _sound(figures: Any) -> dict[str, float]:
    if not isinstance(figures, dict) or set(figures) != set(_MEASURED):
        return {}
    good = all(isinstance(v, float) and math.isfinite(v) and v > 0 for v in figures.values())
    return dict(figures) if good else {}
