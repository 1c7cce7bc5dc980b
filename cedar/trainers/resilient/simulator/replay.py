"""Replay a trace: who is dead when, how long a step takes then, how much work is done in the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.schedule import Worker, grid
from cedar.trainers.resilient.simulator.systems import SYSTEMS
from cedar.trainers.resilient.simulator.traces import Trace


class Phase(NamedTuple):
    """A time in which the same workers are dead; ``dead`` is None while a stage has no live worker."""

    start: float
    end: float
    dead: frozenset[Worker] | None


def phases(problem: Problem, trace: Trace, seconds: float | None = None) -> Iterator[Phase]:
    """Who is dead when, from the trace's beginning.

    A machine that comes takes a free place of the stage with the fewest live workers, or waits as a spare; the place of
    one that goes is taken by a spare, if there is one. Before machines come, all places are free.

    Args:
        problem: the grid.
        trace: who comes and goes.
        seconds: when to end; by default with the last event.
    """
    end = trace.seconds if seconds is None else seconds
    places = list(grid(problem.stages, problem.replicas))
    at: dict[str, Worker] = {}
    spares: list[str] = []
    now = 0.0
    for event in trace.events:
        if event.seconds > end:
            break
        if event.seconds > now:
            yield Phase(now, event.seconds, _dead(problem, at))
            now = event.seconds
        if event.what == "add":
            spares.append(event.node)
        elif event.node in spares:
            spares.remove(event.node)
        else:
            del at[event.node]
        taken = set(at.values())
        free = [place for place in places if place not in taken]
        while free and spares:
            live = Counter(place.stage for place in at.values())
            place = min(free, key=lambda p: (live[p.stage], p))
            free.remove(place)
            at[spares.pop(0)] = place
    if end > now:
        yield Phase(now, end, _dead(problem, at))


def _dead(problem: Problem, at: dict[str, Worker]) -> frozenset[Worker] | None:
    live = set(at.values())
    if len({worker.stage for worker in live}) < problem.stages:
        return None
    return frozenset(set(grid(problem.stages, problem.replicas)) - live)


@dataclass(frozen=True)
class Outcome:
    """What a system makes of a trace.

    Args:
        steps: done in the whole time.
        changes: how many times the set of the dead changed.
        idle: seconds in which no step could be done.
        seconds: the whole time.
    """

    steps: float
    changes: int
    idle: float
    seconds: float

    @property
    def rate(self) -> float:
        """Steps per second, over the whole time."""
        return self.steps / self.seconds if self.seconds else 0.0


def replay(
    problem: Problem,
    trace: Trace,
    system: str | Callable[[Problem], float] = "resilient",
    *,
    slot: float = 1.0,
    pause: float = 0.0,
    seconds: float | None = None,
) -> Outcome:
    """How many steps a system does while machines come and go.

    Args:
        problem: the grid, memory, costs; its dead are those of the trace.
        trace: who comes and goes.
        system: a name of ``SYSTEMS``, or a function from a problem to the time of a step.
        slot: seconds for a unit of the problem's costs.
        pause: seconds that each change costs; the step at hand is lost, too: half of one, on average.
        seconds: when to end; by default with the last event.

    Example:
        >>> from cedar.trainers.resilient.simulator import random_trace
        >>> replay(Problem(2, 2, 2), random_trace(4, 1e9, 1, 100), seconds=70).steps
        10.0
    """
    time_of = SYSTEMS[system] if isinstance(system, str) else system
    known: dict[frozenset[Worker], float] = {}
    steps = idle = whole = 0.0
    changes, before = -1, None
    for start, end, dead in phases(problem, trace, seconds):
        whole = end
        if dead is None:
            idle += end - start
            before = None
            continue
        if dead not in known:
            known[dead] = time_of(replace(problem, dead=dead)) * slot
        each = known[dead]
        lost = 0.0
        if dead != before:
            changes += 1
            lost = pause + each / 2 if changes and math.isfinite(each) else 0.0
        before = dead
        useful = max(0.0, end - start - lost) if math.isfinite(each) else 0.0
        steps += useful / each if useful else 0.0
        idle += end - start - useful
    return Outcome(steps, max(0, changes), idle, whole)
