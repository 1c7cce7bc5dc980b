"""A run as a trace that Perfetto and chrome://tracing open: tasks by process and thread, and the trainer's waits."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Iterator

from cedar.control.timeline import DATA, TRAINER, Part, Timeline, name_of
from cedar.engine.delivery.options import Observer
from cedar.engine.metrics import Metrics

_log = logging.getLogger("cedar")
_MOST = 200_000  # tasks, and waits of the trainer, that are kept: the last ones
_SHARE = 0.01  # of the time, for writing while a run goes on


class Trace(Observer):
    """Keeps the spans of a run, and writes them when an iteration ends, if that is seldom enough, and at the end.

    Args:
        path: of the file; it is replaced.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._metrics: Metrics | None = None
        self._due, self._written = 0.0, -1  # not before that time; batches that were written

    def begin(self, metrics: Metrics) -> None:
        """Keep the spans of a run that is to begin."""
        self._metrics = metrics
        metrics.time.recent, metrics.time.waits = deque(maxlen=_MOST), deque(maxlen=_MOST)

    def ended(self) -> None:
        """Write the file, if it is time to."""
        began = time.perf_counter()
        if began >= self._due:
            self.close()
            now = time.perf_counter()
            self._due = now + (now - began) / _SHARE

    def close(self) -> None:
        """Write what there is."""
        if self._metrics is None or self._written == self._metrics.batches:
            return
        self._written = self._metrics.batches
        try:
            with open(f"{self.path}.part", "w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                file.writelines(_events(self._metrics.time, self._metrics.labels))
                file.write(_named("process_name", os.getpid(), "trainer and threads").rstrip(",\n") + "]}\n")
            os.replace(f"{self.path}.part", self.path)
        except OSError as error:  # the run is worth more
            _log.warning("the trace was not written: %s", error)


def _events(timeline: Timeline, labels: dict[int, str]) -> Iterator[str]:
    """A line an event. The parts of a task follow each other as they were counted; seconds are those of the report."""
    own = os.getpid()
    tasks = list(timeline.recent or ())
    threads = dict.fromkeys((process, thread) for _, _, process, thread, _ in tasks)
    yield _named("thread_name", own, "loader")
    for process in {process for process, _ in threads} - {own}:
        yield _named("process_name", process, f"worker {process}")
    numbers = {each: number for number, each in enumerate(threads, 1)}
    heads: dict[Part, str] = {}  # what names a part
    for began, took, process, thread, parts in tasks:
        at = f'"pid":{process},"tid":{numbers[process, thread]}'
        yield _span(_TASK, began, took, at)
        for part, wall, _ in parts:
            head = heads.get(part) or heads.setdefault(part, _head(name_of(part, labels), part[0]))
            yield _span(head, began, wall, at)
            began += wall
    at, given = f'"pid":{own},"tid":0', None
    for asked, there in list(timeline.waits):
        if given is not None and asked > given:
            yield _span(_WORKING, given, asked - given, at)
        yield _span(_WAITING, asked, there - asked, at)
        given = there


def _head(name: str, kind: str) -> str:
    return f'"name":{json.dumps(name)},"cat":"{kind}"'


_TASK, _WORKING, _WAITING = _head("task", "task"), _head(TRAINER, "loader"), _head(DATA, "loader")


def _span(head: str, began: float, seconds: float, at: str) -> str:
    return f'{{"ph":"X",{head},"ts":{began * 1e6:.3f},"dur":{seconds * 1e6:.3f},{at}}},\n'


def _named(what: str, process: int, name: str) -> str:
    return f'{{"ph":"M","name":"{what}","pid":{process},"tid":0,"args":{{"name":"{name}"}}}},\n'
