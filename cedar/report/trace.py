"""A run as a trace that Perfetto and chrome://tracing open: tasks by process and thread, and the trainer's waits."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from cedar.control.timeline import DATA, TRAINER, Timeline, name_of
from cedar.engine.delivery.options import Observer
from cedar.engine.metrics import Metrics

_log = logging.getLogger("cedar")
_MOST = 200_000  # tasks, and waits of the trainer, that are kept: the last ones
_LOADER = "loader"


class Trace(Observer):
    """Keeps the spans of a run, and writes them whenever an iteration ends.

    Args:
        path: of the file; it is replaced.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._metrics: Metrics | None = None

    def begin(self, metrics: Metrics) -> None:
        """Keep the spans of a run that is to begin."""
        self._metrics = metrics
        metrics.time.recent, metrics.time.waits = deque(maxlen=_MOST), deque(maxlen=_MOST)

    def ended(self) -> None:
        """Write the file."""
        if self._metrics is not None:
            events = list(_events(self._metrics.time, self._metrics.labels))
            try:
                with open(f"{self.path}.part", "w", encoding="utf-8") as file:
                    json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
                os.replace(f"{self.path}.part", self.path)
            except OSError as error:  # the run is worth more
                _log.warning("the trace was not written: %s", error)


def _events(time: Timeline, labels: dict[int, str]) -> Iterator[dict[str, Any]]:
    """The parts of a task follow each other as they were counted; seconds are those of the report."""
    own = os.getpid()
    tasks = list(time.recent or ())
    threads = dict.fromkeys((task.process, task.thread) for task in tasks)
    yield {"ph": "M", "name": "process_name", "pid": own, "tid": 0, "args": {"name": "trainer and threads"}}
    yield {"ph": "M", "name": "thread_name", "pid": own, "tid": 0, "args": {"name": _LOADER}}
    for process in {process for process, _ in threads} - {own}:
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": f"worker {process}"}}
    numbers = {each: number for number, each in enumerate(threads, 1)}
    for task in tasks:
        at = {"pid": task.process, "tid": numbers[task.process, task.thread]}
        yield _span("task", "task", task.began, task.took, at)
        began = task.began
        for part, wall, cpu in task.parts:
            yield _span(name_of(part, labels), part[0], began, wall, at) | {"args": {"cpu_ms": round(cpu * 1e3, 3)}}
            began += wall
    at, given = {"pid": own, "tid": 0}, None
    for asked, there in list(time.waits):
        if given is not None and asked > given:
            yield _span(TRAINER, _LOADER, given, asked - given, at)
        yield _span(DATA, _LOADER, asked, there - asked, at)
        given = there


def _span(name: str, kind: str, began: float, seconds: float, at: dict[str, int]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": kind, "ts": round(began * 1e6, 3), "dur": round(seconds * 1e6, 3), **at}
