"""The fast planner: many policies of list scheduling, the best order of them improved by local search."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from cedar.trainers.resilient.planner.emit import emit
from cedar.trainers.resilient.planner.graph import Graph, Order, Times, measure
from cedar.trainers.resilient.planner.greedy import Policy, policies, schedule
from cedar.trainers.resilient.planner.improve import improve
from cedar.trainers.resilient.planner.problem import Problem
from cedar.trainers.resilient.schedule import Facts, Schedule, validate

# How many tasks may be placed, over all policies: bounds what a plan of a large grid takes.
_ONLINE, _AHEAD = 120_000, 600_000
_SMALL = 20_000


@dataclass(frozen=True)
class Plan:
    """A schedule that was proven, and what is known of it.

    Args:
        schedule: the lists.
        period: of a step, when many follow each other; in slots, or in the units of the problem's costs.
        makespan: of the first step.
        bound: no schedule has a shorter period than this.
        facts: what the validator found.
        method: ``heuristic`` or ``exact``.
        optimal: the period was proven to be the shortest.
    """

    schedule: Schedule
    period: float
    makespan: float
    bound: float
    facts: Facts
    method: str = "heuristic"
    optimal: bool = False

    @property
    def peak(self) -> int:
        """The most activations that a worker keeps."""
        return max(self.facts.live.values())


def plan(problem: Problem, effort: int = 0) -> Plan:
    """A schedule for the workers that are alive, fast enough to be made when one has just died.

    Micro-batches of dead workers go to live workers of their stage, the backward is split, and stages step on their own
    where the problem's mode is ``staggered``. The same problem and effort give the same plan everywhere.

    Args:
        problem: the grid, who is dead, memory, costs.
        effort: how many orders the local search tries after list scheduling; 0 is what a failure has time for, and
            tries fewer policies on large grids.

    Raises:
        ScheduleError: the problem cannot be planned.

    Example:
        >>> from cedar.trainers.resilient.schedule import Worker
        >>> plan(Problem(4, 3, 6, frozenset({Worker(2, 1)}))).period
        27.0
    """
    graph = Graph.of(problem)
    best, _ = search(graph, _AHEAD if effort else _ONLINE)
    if effort:
        best = improve(graph, best, effort, problem.bound)
    return proven(problem, graph, best)


def search(graph: Graph, tasks: int = _AHEAD) -> tuple[Order, Times]:
    """The best order of list scheduling; ends early at the bound, which nothing beats."""
    small = graph.nodes <= _SMALL
    steps = 3 if small else 1
    best: tuple[tuple[float, float], Order, Times] | None = None
    for policy in islice(policies(), max(1, tasks // (graph.nodes * steps))):
        for order in orders_of(graph, policy, steps):
            times = measure(graph, order, 12 if small else 4)
            if times is not None and (best is None or (times.period, times.spread) < best[0]):
                best = (times.period, times.spread), order, times
        if best is not None and best[2].period <= graph.problem.bound + 1e-9:
            break
    assert best is not None, "list scheduling always ends with an order that can be carried out"
    return best[1], best[2]


def orders_of(graph: Graph, policy: Policy, steps: int) -> list[Order]:
    """The different orders that a policy takes in a row of steps."""
    found: list[Order] = []
    for order in schedule(graph, policy, steps):
        if order not in found:
            found.append(order)
    return found


def proven(problem: Problem, graph: Graph, order: Order, method: str = "heuristic", bound: float | None = None) -> Plan:
    """The plan of an order: written down, proven, and timed as it stands."""
    made = emit(problem, graph.tasks(order))
    facts = validate(made)
    times = measure(graph, order, 12 if graph.nodes <= _SMALL else 4)
    assert times is not None, "a schedule that was proven can be carried out"
    least = max(problem.bound, bound or 0)
    return Plan(made, times.period, times.makespan, least, facts, method, times.period <= least + 1e-9)
