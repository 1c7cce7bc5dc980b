"""Measure imports and compilation, which happen once per process, separately from work on rows."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from cedar.control.timeline import Kind, Part


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
        last[0] = self.ended = time.perf_counter()
        self.cpu = time.thread_time() - self.worked


last = [0.0]  # the latest end time of any span
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


def watch() -> None:
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


def separate(parts: list[tuple[Part, float, float]], since: float) -> None:
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
