"""Write a run as a trace for Perfetto or chrome://tracing: tasks by process and thread, and the trainer's waits."""

from __future__ import annotations

import json
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

from cedar.control.timeline import DATA, TRAINER, Part, Recording, Span, TrainerWait, name_of
from cedar.engine.delivery.options import Observer
from cedar.engine.metrics import Metrics
from cedar.watch.report import Report
from cedar.watch.saved import to_json

_log = logging.getLogger("cedar")
MAX_RECORDED = 200_000  # max recorded tasks, and max recorded waits; older ones are dropped
BASE = "baseTimeNanoseconds"
_MAX_WRITE_SHARE = 0.01  # max share of a run's time to spend on writing the trace


Shown: TypeAlias = tuple[str, str, float, float]  # lane, name, start and duration in seconds


@dataclass(frozen=True)
class TraceRecord:
    """The contents of a trace, with times in seconds of ``time.perf_counter``.

    Args:
        tasks, waits: the recorded tasks, and the trainer's recorded waits.
        labels: labels of operators, by their number.
    """

    tasks: list[Span]
    waits: list[TrainerWait]
    labels: Mapping[int, str]

    @staticmethod
    def of(metrics: Metrics, since: float = 0.0) -> TraceRecord:
        """Return the recorded tasks and waits that ended after ``since``."""
        recording = metrics.time.recording
        if recording is None:
            return TraceRecord([], [], metrics.display_labels)
        tasks = [span for span in recording.tasks() if span.began + span.took >= since]
        return TraceRecord(tasks, [wait for wait in recording.waits() if wait.arrived >= since], metrics.display_labels)

    def lines(self, report: Report | None = None) -> Iterator[str]:
        """Yield the lines of the JSON file. ``report``: included in the file, for ``cedar view``.

        Times are microseconds after ``baseTimeNanoseconds``, a Unix time, as in torch's profiler.
        """
        base = time.time_ns() - time.perf_counter_ns()
        head: dict[str, Any] = {"displayTimeUnit": "ms", BASE: base}
        head |= {} if report is None else {"cedar": to_json(report)}
        yield f'{json.dumps(head)[:-1]}, "traceEvents": [\n'
        yield from self._events()
        yield _metadata_event("process_name", os.getpid(), "trainer and threads").rstrip(",\n") + "]}\n"

    def _events(self) -> Iterator[str]:
        """Yield a line per event. The parts of a task are drawn in sequence, with the durations in the report."""
        own = os.getpid()
        threads = dict.fromkeys((span.process, span.thread) for span in self.tasks)
        yield _metadata_event("thread_name", own, "loader")
        for process in {process for process, _ in threads} - {own}:
            yield _metadata_event("process_name", process, f"worker {process}")
        places = {each: f'"pid":{each[0]},"tid":{number}' for number, each in enumerate(threads, 1)}
        heads: dict[Part, str] = {}  # JSON with the name of a part
        for span in self.tasks:
            at, began = places[span.process, span.thread], span.began
            yield _span(_TASK, began, span.took, at)
            for part, wall, cpu in span.parts:
                head = heads.get(part) or heads.setdefault(part, _head(name_of(part, self.labels), part[0]))
                yield _span(head, began, wall, f'{at},"args":{{"cpu_ms":{cpu * 1e3:.3f}}}')
                began += wall
        at = f'"pid":{own},"tid":0'
        for name, began, seconds in self._loader():
            yield _span(_HEADS[name], began, seconds, at)
        for number, (span, wait) in enumerate(self.arrows(), 1):
            where, read = places[span.process, span.thread], min(span.began + span.took, wait.arrived)
            yield _arrow("s", number, read - _ARROW_INSET, where)
            yield _arrow("f", number, wait.arrived - _ARROW_INSET, at)

    def _loader(self) -> Iterator[tuple[str, float, float]]:
        """Yield the trainer's waits, and its work between them: name, start, seconds."""
        delivered_at = None
        for wait in self.waits:
            if delivered_at is not None and wait.asked > delivered_at:
                yield TRAINER, delivered_at, wait.asked - delivered_at
            yield DATA, wait.asked, wait.arrived - wait.asked
            delivered_at = wait.arrived

    def spans(self) -> Iterator[Shown]:
        """Yield the spans of threads, workers and the trainer, to be drawn."""
        for name, began, seconds in self._loader():
            yield "loader", name, began, seconds
        lanes: dict[tuple[int, int], str] = {}
        for span in self.tasks:
            lane = lanes.setdefault((span.process, span.thread), f"process {span.process}, {len(lanes) + 1}")
            began = span.began
            for part, wall, _ in span.parts:
                yield lane, name_of(part, self.labels), began, wall
                began += wall

    def arrows(self) -> Iterator[tuple[Span, TrainerWait]]:
        """Yield, for each batch, the tasks that read its first and its last row."""
        tasks: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # (first row, last row, task), by source and file
        for place, span in enumerate(self.tasks):
            if span.ends:
                source, file, first, _, _, last = span.ends
                tasks.setdefault((source, file), []).append((first, last, place))
        for spans in tasks.values():
            spans.sort()
        for wait in self.waits:
            rows = wait.ends[:3], wait.ends[3:]
            places = [self._reading_task(tasks.get(row[:2], []), row[2], wait.arrived) for row in rows if row]
            for place in dict.fromkeys(each for each in places if each is not None):
                yield self.tasks[place], wait

    def _reading_task(self, spans: list[tuple[int, int, int]], row: int, delivered: float) -> int | None:
        """Return the latest task that read the row before its delivery, since each epoch reads the row again."""
        upto = bisect_right(spans, row, key=lambda span: span[0])
        latest = None
        for first, last, place in reversed(spans[max(upto - _MAX_SEARCHED, 0) : upto]):
            if first <= row <= last and self.tasks[place].began <= delivered:
                latest = place if latest is None else max(latest, place)
        return latest


_MAX_SEARCHED = 64  # max tasks to examine when searching for the one that read a row
_ARROW_INSET = 1e-7  # seconds between an arrow's end and the edge of its slice


class TraceWriter(Observer):
    """Records a run's spans. Writes them when the loader closes, and after iterations unless that takes too much time.

    Args:
        path: the file to write or replace.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.report: Any = lambda: None  # returns the loader's ``report`` method, or None if the loader is gone
        self._metrics: Metrics | None = None
        self._due, self._written = 0.0, -1  # earliest time of the next write; number of batches at the last write

    def begin(self, metrics: Metrics) -> None:
        """Start recording the spans of a run."""
        self._metrics = metrics
        metrics.time.recording = Recording(MAX_RECORDED)

    def ended(self) -> None:
        """Write the file if enough time has passed."""
        began = time.perf_counter()
        if began >= self._due:
            self.close()
            now = time.perf_counter()
            self._due = now + (now - began) / _MAX_WRITE_SHARE

    def close(self) -> None:
        """Write the file unless it is up to date."""
        if self._metrics is None or self._written == self._metrics.batches:
            return
        self._written, report = self._metrics.batches, self.report()
        try:
            with open(f"{self.path}.part", "w", encoding="utf-8") as file:
                file.writelines(TraceRecord.of(self._metrics).lines(report and report()))
            os.replace(f"{self.path}.part", self.path)
        except OSError as error:  # a failed write must not end the run
            _log.warning("the trace was not written: %s", error)


def spans_of(events: list[dict[str, Any]]) -> list[Shown]:
    """Return the spans in a trace file's events. The events may come from an untrusted file.

    Raises:
        ValueError: an event is invalid.
    """
    try:
        spans = [
            (
                "loader" if event["cat"] == "loader" else f"process {int(event['pid'])}, {int(event['tid'])}",
                str(event["name"]),
                float(event["ts"]) / 1e6,
                float(event["dur"]) / 1e6,
            )
            for event in events
            if event.get("ph") == "X" and event.get("cat") != "task"
        ]
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"an event lacks {error}") from error
    if not all(isfinite(start) and isfinite(seconds) for _, _, start, seconds in spans):
        raise ValueError("an event has no finite time")
    return spans


def _head(name: str, kind: str) -> str:
    return f'"name":{json.dumps(name)},"cat":"{kind}"'


_TASK = _head("task", "task")
_HEADS = {name: _head(name, "loader") for name in (TRAINER, DATA)}


def _span(head: str, began: float, seconds: float, at: str) -> str:
    return f'{{"ph":"X",{head},"ts":{began * 1e6:.3f},"dur":{seconds * 1e6:.3f},{at}}},\n'


def _arrow(phase: str, number: int, when: float, at: str) -> str:
    """Return the event for one end of an arrow, bound to the slice that encloses its time."""
    return f'{{"ph":"{phase}","bp":"e","name":"rows","cat":"rows","id":{number},"ts":{when * 1e6:.3f},{at}}},\n'


def _metadata_event(kind: str, process: int, name: str) -> str:
    return f'{{"ph":"M","name":"{kind}","pid":{process},"tid":0,"args":{{"name":"{name}"}}}},\n'
