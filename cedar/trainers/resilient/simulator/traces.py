"""Traces of failures: machines that come and go. Made at random, or read from a file."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.schedule import ScheduleError, Worker, grid


class Event(NamedTuple):
    """A machine comes or goes, so many seconds after the trace's beginning."""

    seconds: float
    what: Literal["add", "remove"]
    node: str


@dataclass(frozen=True)
class Trace:
    """Events in the order of time.

    Raises:
        ScheduleError: time goes back, a machine comes that is there, or goes that is not.
    """

    events: tuple[Event, ...]
    name: str = "the trace"

    def __post_init__(self) -> None:
        there: set[str] = set()
        before = 0.0
        for number, event in enumerate(self.events, 1):
            if event.seconds < before:
                raise _bad(self.name, number, f"{event.seconds:g} s is before {before:g} s")
            if (event.what == "add") is (event.node in there):
                raise _bad(
                    self.name,
                    number,
                    f"{event.what} {event.node}, which is {'' if event.node in there else 'not '}there",
                )
            before = event.seconds
            there ^= {event.node}

    @property
    def seconds(self) -> float:
        """When the last event happens."""
        return self.events[-1].seconds if self.events else 0.0


def read_trace(path: str) -> Trace:
    """A trace in the format of Bamboo's published spot traces: lines of ``milliseconds,add|remove,node``, no heading.

    Raises:
        ScheduleError: the file cannot be read, or a line is no event.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScheduleError(f"the trace {path} cannot be read: {error}", fix="give a CSV file") from error
    return Trace(tuple(_event(path, number, row) for number, row in enumerate(rows, 1)), path)


def _event(path: str, number: int, row: Sequence[str]) -> Event:
    try:
        when, what, node = (cell.strip() for cell in row)
        milliseconds = int(when)
    except ValueError as error:
        raise _bad(path, number, f"{','.join(row)!r} is not milliseconds,add|remove,node") from error
    if what not in {"add", "remove"} or milliseconds < 0 or not node:
        raise _bad(path, number, f"{','.join(row)!r} is not milliseconds,add|remove,node")
    return Event(milliseconds / 1000, "add" if what == "add" else "remove", node)


def _bad(name: str, number: int, what: str) -> ScheduleError:
    return ScheduleError(f"{name}, event {number}: {what}", fix="correct or remove that line")


def random_trace(machines: int, failure: float, repair: float, seconds: float, seed: int = 0) -> Trace:
    """Machines that fail and are repaired, each on its own, with exponentially distributed times.

    Args:
        machines: all there at second 0.
        failure: mean seconds from start or repair to failure.
        repair: mean seconds from failure to repair.
        seconds: the trace's length.
        seed: of the draws.

    Example:
        >>> random_trace(2, failure=100, repair=10, seconds=0).events
        (Event(seconds=0.0, what='add', node='node0'), Event(seconds=0.0, what='add', node='node1'))
    """
    draw = random.Random(seed)
    events = []
    for number in range(machines):
        now, up = 0.0, False
        while now <= seconds:
            events.append(Event(now, "remove" if up else "add", f"node{number}"))
            up = not up
            now += draw.expovariate(1 / (failure if up else repair))
    return Trace(tuple(sorted(events, key=lambda event: event.seconds)))


def random_dead(problem: Problem, rate: float, seed: int = 0) -> frozenset[Worker]:
    """So many dead workers, at random, at least one where the rate is more than 0; each stage keeps one.

    Example:
        >>> len(random_dead(Problem(4, 8, 8), 0.1))
        3
    """
    places = list(grid(problem.stages, problem.replicas))
    count = max(1 if rate > 0 else 0, round(rate * len(places)))
    if not 0 <= rate <= 1 or count > len(places) - problem.stages:
        raise ScheduleError(
            f"a rate of {rate:g} kills {count} of {len(places)} workers, and every stage needs one",
            fix="give a lower rate, or more replicas",
        )
    draw = random.Random(seed)
    draw.shuffle(places)
    return frozenset(_spared(places, problem)[:count])


def _spared(places: Iterable[Worker], problem: Problem) -> list[Worker]:
    """The places without the last of each stage."""
    left = dict.fromkeys(range(problem.stages), problem.replicas)
    found = []
    for place in places:
        left[place.stage] -= 1
        if left[place.stage]:
            found.append(place)
    return found
