"""Simulate step times under failures, and throughput over hours in which machines fail and are repaired.

Every system processes the same global batch, ``replicas`` x ``micro_batches``. Systems other than cedar are idealized:
their pipelines share the batch optimally, and reconfiguration takes no time. As published, they use 1F1B, with
(micro_batches + stages - 1) slots for each pipeline, and with the activation memory of 1F1B.
"""

from __future__ import annotations

import csv
import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from cedar.simulate.baselines import zero_bubble
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import ScheduleError, Worker, grid, timeline


class Event(NamedTuple):
    """A machine joins or leaves the cluster, ``seconds`` after the trace begins."""

    seconds: float
    kind: Literal["add", "remove"]
    node: str


@dataclass(frozen=True)
class Trace:
    """Events in chronological order."""

    events: tuple[Event, ...]
    name: str = "the trace"

    def __post_init__(self) -> None:
        present: set[str] = set()
        before = 0.0
        for number, event in enumerate(self.events, 1):
            if event.seconds < before:
                raise _event_error(self.name, number, f"{event.seconds:g} s is before {before:g} s")
            if (event.kind == "add") is (event.node in present):
                raise _event_error(
                    self.name,
                    number,
                    f"{event.kind} {event.node}, which is {'' if event.node in present else 'not '}there",
                )
            before = event.seconds
            present ^= {event.node}

    @property
    def seconds(self) -> float:
        """Return the time of the last event, in seconds."""
        return self.events[-1].seconds if self.events else 0.0


def read_trace(path: str) -> Trace:
    """Read a trace in the format of Bamboo's published spot traces: lines of ``milliseconds,add|remove,node``."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScheduleError(f"the trace {path} cannot be read: {error}", fix="give a CSV file") from error
    return Trace(tuple(_parse_event(path, number, row) for number, row in enumerate(rows, 1)), path)


def _parse_event(path: str, number: int, row: Sequence[str]) -> Event:
    try:
        when, kind, node = (cell.strip() for cell in row)
        milliseconds = int(when)
    except ValueError as error:
        raise _event_error(path, number, f"{','.join(row)!r} is not milliseconds,add|remove,node") from error
    if kind not in {"add", "remove"} or milliseconds < 0 or not node:
        raise _event_error(path, number, f"{','.join(row)!r} is not milliseconds,add|remove,node")
    return Event(milliseconds / 1000, "add" if kind == "add" else "remove", node)


def _event_error(name: str, number: int, problem: str) -> ScheduleError:
    return ScheduleError(f"{name}, event {number}: {problem}", fix="correct or remove that line")


def random_trace(machines: int, failure: float, repair: float, seconds: float, seed: int = 0) -> Trace:
    """Draw a trace of machines that fail and are repaired independently, with exponentially distributed times.

    Args:
        machines: number of machines; all are running at time 0.
        failure: mean seconds until a running machine fails.
        repair: mean seconds from failure to repair.
        seconds: length of the trace.
        seed: seed of the random draws.

    Examples:
        >>> random_trace(2, failure=100, repair=10, seconds=0).events
        (Event(seconds=0.0, kind='add', node='node0'), Event(seconds=0.0, kind='add', node='node1'))
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
    """Draw a fraction ``rate`` of the workers at random as dead, at least one if it is positive. Each stage keeps one.

    Examples:
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
    return frozenset(_spare_last(places, problem)[:count])


def _spare_last(places: Iterable[Worker], problem: Problem) -> list[Worker]:
    """Return the workers in the given order, without the last one of each stage, which must stay alive."""
    left = dict.fromkeys(range(problem.stages), problem.replicas)
    spared = []
    for place in places:
        left[place.stage] -= 1
        if left[place.stage]:
            spared.append(place)
    return spared


REDUNDANCY = 0.15  # assumed slowdown of a healthy pipeline by Bamboo's redundant forwards; the paper has no number


def one_f_one_b_time(problem: Problem) -> float:
    """Return the time of a 1F1B step without failures, the baseline of the systems other than cedar."""
    slot = problem.costs.slot(problem.stages)
    return _batch_time([problem.stages], problem.micro_batches, [slot]) + _closing_time(problem)


def zero_bubble_time(problem: Problem) -> float:
    """Return the time of a zero-bubble step without failures, within the problem's memory limit."""
    schedule = zero_bubble(replace(problem, dead=frozenset(), replicas=1))
    return timeline(schedule, problem.costs, iterations=6).period


def fault_free_time(problem: Problem) -> float:
    """Return the time of a step of cedar's own plan without failures."""
    return plan(replace(problem, dead=frozenset(), replicas=1), thorough=True).period


def resilient_time(problem: Problem) -> float:
    """Return the time of a step of cedar's own plan for the workers that are alive."""
    return plan(problem, thorough=True).period


def drop_replica_time(problem: Problem) -> float:
    """Return the step time when pipelines with a dead worker are dropped, and the others do their work, as in torchft.

    Examples:
        >>> from cedar.trainers.resilient.schedule import Worker
        >>> drop_replica_time(Problem(4, 3, 6, frozenset({Worker(2, 1)})))
        36
    """
    healthy = problem.replicas - len({worker.replica for worker in problem.dead})
    slot = problem.costs.slot(problem.stages)
    return _shared_time([problem.stages] * healthy, problem, [slot] * healthy)


def oobleck_time(problem: Problem) -> float:
    """Return the step time when a damaged pipeline spreads its layers over its live workers (Oobleck, idealized).

    A pipeline may split its layers anywhere, and gets an optimal share of the micro-batches. It is dropped if fewer
    than half of its workers are alive.
    """
    dead = Counter(worker.replica for worker in problem.dead)
    lengths = [problem.stages - dead[replica] for replica in range(problem.replicas)]
    lengths = [length for length in lengths if length >= max(1, problem.stages // 2)]
    slot = sum(sum(problem.costs.stage(stage)) for stage in range(problem.stages))
    return _shared_time(lengths, problem, [slot / length for length in lengths])


def bamboo_time(problem: Problem) -> float:
    """Return the step time when a dead worker's predecessor also runs its stage, from a redundant copy (Bamboo).

    Redundant forwards slow down every pipeline by ``REDUNDANCY``. A pipeline is dropped if two neighboring stages are
    dead. The model is idealized: it ignores the memory of the copies.
    """
    slots = []
    for replica in range(problem.replicas):
        dead = {worker.stage for worker in problem.dead if worker.replica == replica}
        if any((stage - 1) % problem.stages in dead for stage in dead):
            continue
        slots.append(problem.costs.slot(problem.stages) * (1 + REDUNDANCY) * (2 if dead else 1))
    return _shared_time([problem.stages] * len(slots), problem, slots)


def throughput_bound(problem: Problem) -> float:
    """Return an estimate of the fraction of 1F1B throughput that re-routing can preserve.

    The formula is min(1, (DP - f) / DP * (M + PP - 1) / M), with f dead workers in the stage that has the most. A plan
    with a split backward can exceed it, so compare plans with their own fault-free plan, too.

    Examples:
        >>> from cedar.trainers.resilient.schedule import Worker
        >>> throughput_bound(Problem(4, 8, 8, frozenset({Worker(0, i) for i in range(4)})))
        0.6875
    """
    alive = min(len(problem.alive(stage)) for stage in range(problem.stages))
    batches = problem.micro_batches
    return min(1.0, alive / problem.replicas * (batches + problem.stages - 1) / batches)


SYSTEMS: Mapping[str, Callable[[Problem], float]] = MappingProxyType(
    {"resilient": resilient_time, "oobleck": oobleck_time, "bamboo": bamboo_time, "drop a replica": drop_replica_time}
)


def _closing_time(problem: Problem) -> float:
    return problem.costs.reduce + problem.costs.step


def _shared_time(lengths: Sequence[int], problem: Problem, slots: Sequence[float]) -> float:
    if not lengths:
        return math.inf
    return _batch_time(lengths, problem.replicas * problem.micro_batches, slots) + _closing_time(problem)


def _batch_time(lengths: Sequence[int], micro_batches: int, slots: Sequence[float]) -> float:
    """Return the time of the slowest pipeline when micro-batches are distributed optimally over pipelines."""
    ends = [(length * slot, at) for at, (length, slot) in enumerate(zip(lengths, slots, strict=True))]
    heapq.heapify(ends)  # the time at which each pipeline would finish with one more micro-batch
    last = 0.0
    for _ in range(micro_batches):
        last, at = ends[0]
        heapq.heapreplace(ends, (last + slots[at], at))
    return last


class Phase(NamedTuple):
    """A period during which the set of dead workers does not change. ``dead``: None if a stage has no live worker."""

    start: float
    end: float
    dead: frozenset[Worker] | None


def phases(problem: Problem, trace: Trace, seconds: float | None = None) -> Iterator[Phase]:
    """Yield the periods between changes of the dead workers, from the beginning of the trace.

    A new machine joins the stage with the fewest live workers, or becomes a spare if all stages are full. A spare
    replaces a machine that leaves. At the start, no stage has a machine. ``seconds``: the end; default: last event.
    """
    end = trace.seconds if seconds is None else seconds
    places = list(grid(problem.stages, problem.replicas))
    place_of: dict[str, Worker] = {}
    spares: list[str] = []
    now = 0.0
    for event in trace.events:
        if event.seconds > end:
            break
        if event.seconds > now:
            yield Phase(now, event.seconds, _dead_workers(problem, place_of))
            now = event.seconds
        if event.kind == "add":
            spares.append(event.node)
        elif event.node in spares:
            spares.remove(event.node)
        else:
            del place_of[event.node]
        taken = set(place_of.values())
        free = [place for place in places if place not in taken]
        while free and spares:
            live = Counter(place.stage for place in place_of.values())
            place = min(free, key=lambda p: (live[p.stage], p))
            free.remove(place)
            place_of[spares.pop(0)] = place
    if end > now:
        yield Phase(now, end, _dead_workers(problem, place_of))


def _dead_workers(problem: Problem, place_of: dict[str, Worker]) -> frozenset[Worker] | None:
    live = set(place_of.values())
    if len({worker.stage for worker in live}) < problem.stages:
        return None
    return frozenset(set(grid(problem.stages, problem.replicas)) - live)


@dataclass(frozen=True)
class Outcome:
    """The result of replaying a trace with one system."""

    steps: float  # number of steps done in the whole trace
    changes: int  # number of changes of the set of dead workers
    idle: float  # seconds without progress
    seconds: float  # length of the whole trace

    @property
    def rate(self) -> float:
        """Return the mean number of steps per second."""
        return self.steps / self.seconds if self.seconds else 0.0


def replay(
    problem: Problem, trace: Trace, system: str | Callable[[Problem], float] = "resilient", *, slot: float = 1.0,
    pause: float = 0.0, seconds: float | None = None,
) -> Outcome:  # fmt: skip
    """Count the steps that a system does while machines join and leave.

    Args:
        problem: grid, memory and costs; the trace determines its dead workers.
        trace: when machines join and leave.
        system: a name in ``SYSTEMS``, or a function from a problem to the time of a step.
        slot: seconds per unit of the problem's costs.
        pause: seconds that each change of workers costs, in addition to the lost step (half a step on average).
        seconds: end of the simulation; default: the last event.

    Examples:
        >>> from cedar.simulate import random_trace
        >>> replay(Problem(2, 2, 2), random_trace(4, 1e9, 1, 100), seconds=70).steps
        10.0
    """
    time_of = SYSTEMS[system] if isinstance(system, str) else system
    step_times: dict[frozenset[Worker], float] = {}
    steps = idle = whole = 0.0
    changes, before = -1, None
    for start, end, dead in phases(problem, trace, seconds):
        whole = end
        if dead is None:
            idle += end - start
            before = None
            continue
        if dead not in step_times:
            step_times[dead] = time_of(replace(problem, dead=dead)) * slot
        step_time = step_times[dead]
        lost = 0.0
        if dead != before:
            changes += 1
            lost = pause + step_time / 2 if changes and math.isfinite(step_time) else 0.0
        before = dead
        useful = max(0.0, end - start - lost) if math.isfinite(step_time) else 0.0
        steps += useful / step_time if useful else 0.0
        idle += end - start - useful
    return Outcome(steps, max(0, changes), idle, whole)
