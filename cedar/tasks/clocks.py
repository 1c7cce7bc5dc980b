"""Clocks that exclude waiting for a core, imports and compilation, so that operators do not appear slower.

Linux counts how long each thread was ready to run but had no core. On other systems, the operator's time includes
that waiting time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cedar.control.timeline import Kind, Part

_NANO = 1e-9
_thread = threading.local()


@dataclass(frozen=True)
class Reading:
    """Seconds of one thread: wall time without waiting for a core, and CPU time."""

    wall: float
    cpu: float

    def since(self, earlier: Reading) -> Reading:
        """Return the difference to an earlier reading."""
        return Reading(self.wall - earlier.wall, self.cpu - earlier.cpu)

    def plus(self, other: Reading) -> Reading:
        """Return the sum of two readings."""
        return Reading(self.wall + other.wall, self.cpu + other.cpu)


def ship(since: float) -> None:
    """Add the time since ``since`` to the time that this thread spent sending rows to or from this worker."""
    _thread.ship = getattr(_thread, "ship", 0.0) + time.perf_counter() - since


def shipped() -> float:
    """Return the seconds that ``ship`` has added in this thread since the last call of this function."""
    seconds: float = getattr(_thread, "ship", 0.0)
    _thread.ship = 0.0
    return seconds


def seconds_waited_for_core() -> float:
    """Return the seconds that the calling thread has waited for a core since its last call of this function."""
    seconds = crowded()
    before, _thread.crowded = getattr(_thread, "crowded", seconds), seconds
    return seconds - before


def now() -> Reading:
    """Return the reading of the calling thread."""
    return Reading(time.perf_counter() - crowded(), time.thread_time())


def spent_by(threads: Iterable[threading.Thread]) -> tuple[float, float]:
    """Return the seconds in which the threads had a core, and in which they waited for one; (0, 0) if not counted."""
    cpu = crowded = 0.0
    for thread in threads:
        with suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
            had, waited, *_ = map(int, file.read().split())
            cpu, crowded = cpu + had * _NANO, crowded + waited * _NANO
    return cpu, crowded


def crowded() -> float:
    """Return the total seconds that the calling thread has waited for a core."""
    try:
        counters: _ThreadCounters = _thread.counters
    except AttributeError:
        counters = _thread.counters = _ThreadCounters()
    try:
        return int(os.pread(counters.file, 64, 0).split()[1]) * _NANO
    except (OSError, ValueError, IndexError):
        return 0.0


class _ThreadCounters:
    """The system's counters of the thread that creates this object. The file stays open while the thread exists."""

    def __init__(self) -> None:
        self.file = -1
        with suppress(OSError):
            self.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.file >= 0:
            os.close(self.file)


# ---- imports and compilation, which happen once per process, are measured separately from work on rows ---------------


@dataclass
class _ThreadSpan:
    """One import or compilation in a thread. ``worked``: the thread's CPU seconds at the start; ``cpu``: since then."""

    kind: Kind
    module: str = ""
    thread: int = field(default_factory=threading.get_ident)
    began: float = field(default_factory=time.perf_counter)
    worked: float = field(default_factory=time.thread_time)
    ended: float = 0.0
    cpu: float = 0.0

    def extend(self) -> None:
        last_preparation[0] = self.ended = time.perf_counter()
        self.cpu = time.thread_time() - self.worked


last_preparation = [0.0]  # the latest end time of any span
_spans: deque[_ThreadSpan] = deque(maxlen=256)  # spans of all threads
_current = threading.local()


class _Imports:
    """An import hook that finds no modules. Python calls it for each module to load, so it can time imports."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> None:
        span = getattr(_current, "span", None)
        outer = None if span is None else sys.modules.get(span.module)
        if span is None or not getattr(getattr(outer, "__spec__", None), "_initializing", False):
            _current.span = span = _ThreadSpan("import", name)
            _spans.append(span)
        span.extend()


def watch_compilation() -> None:
    """Record numba's compilations from now on, if numba is loaded."""
    events: Any = sys.modules.get("numba.core.event")
    if events is not None and not hasattr(events, "cedar_listens"):
        open_spans = threading.local()

        class Compiles(events.Listener):  # type: ignore[misc]
            def on_start(self, _event: Any) -> None:
                open_spans.depth = getattr(open_spans, "depth", 0) + 1
                if open_spans.depth == 1:
                    open_spans.span = _ThreadSpan("compile")

            def on_end(self, _event: Any) -> None:
                open_spans.depth -= 1
                if not open_spans.depth:
                    open_spans.span.extend()
                    _spans.append(open_spans.span)

        events.cedar_listens = Compiles()
        events.register("numba:compile", events.cedar_listens)


def separate_preparation(parts: list[tuple[Part, float, float]], since: float) -> None:
    """Move the time of imports and compilation since ``since`` from the longest part to separate parts.

    Spans of other threads count only while this thread was waiting.
    """
    own, now = threading.get_ident(), time.perf_counter()
    for span in [span for span in _spans.copy() if span.ended > since] if parts else ():
        longest = max(range(len(parts)), key=lambda i: parts[i][1])
        part, wall, cpu = parts[longest]
        overlap = max(min(span.ended, now) - max(span.began, since), 0.0)
        took = min(overlap, wall if span.thread == own else max(wall - cpu, 0.0))
        used = min(span.cpu, took, cpu) if span.thread == own else 0.0
        if took > 0 and part[0] not in ("import", "compile"):
            parts[longest] = part, wall - took, cpu - used
            parts.append(((span.kind, ()), took, used))


sys.meta_path.insert(0, _Imports)
