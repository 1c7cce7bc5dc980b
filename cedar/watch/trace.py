"""A run as a trace that Perfetto and chrome://tracing open: tasks by process and thread, and the trainer's waits."""

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
MOST = 200_000  # tasks, and waits of the trainer, that are kept: the last ones
BASE = "baseTimeNanoseconds"
_SHARE = 0.01  # of the time, for writing while a run continues


Shown: TypeAlias = tuple[str, str, float, float]  # lane, name, and seconds: begin, length


@dataclass(frozen=True)
class TraceRecord:
    """What there is to write: in seconds of ``time.perf_counter``.

    Args:
        tasks, waits: of a recording.
        labels: of operators, by their ordinals.
    """

    tasks: list[Span]
    waits: list[TrainerWait]
    labels: Mapping[int, str]

    @staticmethod
    def of(metrics: Metrics, since: float = 0.0) -> TraceRecord:
        """What is recorded so far, of what ended after ``since``."""
        recording = metrics.time.recording
        if recording is None:
            return TraceRecord([], [], metrics.display_labels)
        tasks = [span for span in recording.tasks() if span.began + span.took >= since]
        return TraceRecord(tasks, [wait for wait in recording.waits() if wait.arrived >= since], metrics.display_labels)

    def lines(self, report: Report | None = None) -> Iterator[str]:
        """A JSON file, line by line; ``report`` goes with it, for ``cedar view``.

        Times are microseconds since ``baseTimeNanoseconds`` of the Unix epoch, as those of torch's profiler.
        """
        base = time.time_ns() - time.perf_counter_ns()
        head: dict[str, Any] = {"displayTimeUnit": "ms", BASE: base}
        head |= {} if report is None else {"cedar": to_json(report)}
        yield f'{json.dumps(head)[:-1]}, "traceEvents": [\n'
        yield from self._events()
        yield _named("process_name", os.getpid(), "trainer and threads").rstrip(",\n") + "]}\n"

    def _events(self) -> Iterator[str]:
        """A line an event. The parts of a task follow each other as they were counted; seconds are the report's."""
        own = os.getpid()
        threads = dict.fromkeys((span.process, span.thread) for span in self.tasks)
        yield _named("thread_name", own, "loader")
        for process in {process for process, _ in threads} - {own}:
            yield _named("process_name", process, f"worker {process}")
        places = {each: f'"pid":{each[0]},"tid":{number}' for number, each in enumerate(threads, 1)}
        heads: dict[Part, str] = {}  # what names a part
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
            yield _arrow("s", number, read - _INSIDE, where)
            yield _arrow("f", number, wait.arrived - _INSIDE, at)

    def _loader(self) -> Iterator[tuple[str, float, float]]:
        """The trainer's waits, and its work between them: name, begin, seconds."""
        given = None
        for wait in self.waits:
            if given is not None and wait.asked > given:
                yield TRAINER, given, wait.asked - given
            yield DATA, wait.asked, wait.arrived - wait.asked
            given = wait.arrived

    def spans(self) -> Iterator[Shown]:
        """What the threads, the workers and the trainer did, to be drawn."""
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
        """Of each batch, the tasks that read its first row and its last one."""
        tasks: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # (first row, last row, place) by source and file
        for place, span in enumerate(self.tasks):
            if span.ends:
                source, file, first, _, _, last = span.ends
                tasks.setdefault((source, file), []).append((first, last, place))
        for spans in tasks.values():
            spans.sort()
        for wait in self.waits:
            rows = wait.ends[:3], wait.ends[3:]
            places = [self._read(tasks.get(row[:2], []), row[2], wait.arrived) for row in rows if row]
            for place in dict.fromkeys(each for each in places if each is not None):
                yield self.tasks[place], wait

    def _read(self, spans: list[tuple[int, int, int]], row: int, delivered: float) -> int | None:
        """The last task before the delivery that read the row: epochs read it again."""
        upto = bisect_right(spans, row, key=lambda span: span[0])
        latest = None
        for first, last, place in reversed(spans[max(upto - _EPOCHS, 0) : upto]):
            if first <= row <= last and self.tasks[place].began <= delivered:
                latest = place if latest is None else max(latest, place)
        return latest


_EPOCHS = 64  # readings of a row that are looked through
_INSIDE = 1e-7  # seconds that the end of an arrow is inside of its slice


class TraceWriter(Observer):
    """Keeps the spans of a run, and writes them when an iteration ends, if that is seldom enough, and at the end.

    Args:
        path: of the file; it is replaced.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.report: Any = lambda: None  # a weak reference to what tells the report
        self._metrics: Metrics | None = None
        self._due, self._written = 0.0, -1  # not before that time; batches that were written

    def begin(self, metrics: Metrics) -> None:
        """Keep the spans of a run that is to begin."""
        self._metrics = metrics
        metrics.time.recording = Recording(MOST)

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
                file.writelines(TraceRecord.of(self._metrics).lines(_report_of(self.report)))
            os.replace(f"{self.path}.part", self.path)
        except OSError as error:  # the run is worth more
            _log.warning("the trace was not written: %s", error)


def spans_of(events: list[dict[str, Any]]) -> list[Shown]:
    """What a file has, which anyone may have written.

    Raises:
        ValueError: invalid events.
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
        raise ValueError(f"an event without {error}") from error
    if not all(isfinite(start) and isfinite(seconds) for _, _, start, seconds in spans):
        raise ValueError("an event at no time")
    return spans


def _report_of(asked: Any) -> Report | None:
    make_report = asked()
    return None if make_report is None else make_report()


def _head(name: str, kind: str) -> str:
    return f'"name":{json.dumps(name)},"cat":"{kind}"'


_TASK = _head("task", "task")
_HEADS = {name: _head(name, "loader") for name in (TRAINER, DATA)}


def _span(head: str, began: float, seconds: float, at: str) -> str:
    return f'{{"ph":"X",{head},"ts":{began * 1e6:.3f},"dur":{seconds * 1e6:.3f},{at}}},\n'


def _arrow(phase: str, number: int, when: float, at: str) -> str:
    """One end of it, bound to the slice around."""
    return f'{{"ph":"{phase}","bp":"e","name":"rows","cat":"rows","id":{number},"ts":{when * 1e6:.3f},{at}}},\n'


def _named(kind: str, process: int, name: str) -> str:
    return f'{{"ph":"M","name":"{kind}","pid":{process},"tid":0,"args":{{"name":"{name}"}}}},\n'
