"""The fast planner: runs list scheduling with many policies, and returns the best order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Literal

from cedar.trainers.resilient.planner.graph import Graph, Order, Times, emit, measure
from cedar.trainers.resilient.planner.problem import Problem
from cedar.trainers.resilient.schedule import Facts, Schedule, validate


@dataclass(frozen=True)
class Policy:
    """How an idle worker chooses its next task. Unless ``forward_first``, B_INPUT has priority: other stages need it.

    Args:
        lead: prefer B_WEIGHT to F once this many micro-batches per remaining stage wait for B_INPUT.
        eager: run F beyond the lead if no other task is ready.
        first: the F to run if several are ready: ``number``: of the lowest micro-batch; ``own``: of the worker's own
            pipeline; ``away``: of another pipeline.
        forward_first: prefer F to B_INPUT until the lead is reached.
    """

    lead: float = 1.0
    eager: bool = True
    first: Literal["number", "own", "away"] = "number"
    forward_first: bool = False


def policies() -> Iterator[Policy]:
    """Yield the policies to try, starting with the most promising ones."""
    leads = (float("inf"), 1.0, 2.0, 1.5)
    yield Policy(lead=float("inf"))
    yield Policy(lead=1.0)
    for first, lead, eager, forward in product(("number", "away", "own"), leads, (True, False), (False, True)):
        if not (first == "number" and eager and not forward and lead in {float("inf"), 1.0}):
            yield Policy(lead, eager, first, forward)  # type: ignore[arg-type]


def schedule(graph: Graph, policy: Policy, steps: int = 3) -> list[Order]:
    """Simulate ``steps`` steps in a row, and return each one's order. Later orders fit repeated steps better."""
    return _Run(graph, policy, steps).orders()


class _Run:
    def __init__(self, graph: Graph, policy: Policy, steps: int) -> None:
        problem = graph.problem
        count = len(graph.workers)
        self.graph, self.policy, self.steps = graph, policy, steps
        self.ends = 1 if graph.fused else 2
        self.transfer, self.after = problem.costs.transfer, problem.costs.reduce + problem.costs.step
        self.forward: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self.backward: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self.weight: list[list[int]] = [[] for _ in range(count)]
        self.early: list[list[int]] = [[] for _ in range(count)]  # F of the next step whose inputs have arrived
        self.lead = [self._lead(stage) for stage in graph.stage]
        self.live, self.ahead, self.busy = [0] * count, [0] * count, bytearray(count)
        self.step_of = [0] * problem.stages
        self.unfinished = [graph.size] * problem.stages
        self.scheduled: list[Order] = [[[] for _ in range(count)] for _ in range(steps)]
        self.urgency = self._urgency()
        self.events: list[tuple[float, int, int]] = []  # time, kind (0 end, 1 arrival, 2 new step), node or group
        self.group_of = {stage: number for number, group in enumerate(graph.groups) for stage in group}

    def _lead(self, stage: int) -> float:
        ahead = self.policy.lead * (self.graph.problem.stages - stage)
        return max(1.0, ahead)

    def _urgency(self) -> list[int]:
        """Return the priority of each cell; the lowest value runs first."""
        graph, per, replicas = self.graph, self.graph.problem.micro_batches, self.graph.problem.replicas
        away = {"number": 0, "own": 1, "away": -1}[self.policy.first] * per * replicas
        urgency = []
        for cell, owner in enumerate(graph.owner):
            home, number = divmod(cell % graph.size, per)
            other = away if graph.workers[owner].replica != home else 0
            urgency.append(number * replicas + home + other)
        return urgency

    def orders(self) -> list[Order]:
        owner = self.graph.owner
        for cell in range(self.graph.size):
            heapq.heappush(self.forward[owner[cell]], (self.urgency[cell], 3 * cell))
        for worker in range(len(self.graph.workers)):
            self._dispatch(worker, 0.0)
        events, pop = self.events, heapq.heappop
        while events:
            now = events[0][0]
            touched: dict[int, None] = {}
            while events and events[0][0] <= now + 1e-9:
                _, kind, node = pop(events)
                if kind == 0:
                    self._ended(node, now, touched)
                elif kind == 1:
                    self._arrived(node, touched)
                else:
                    self._opened(node, touched)
            for worker in touched:
                self._dispatch(worker, now)
        return self.scheduled

    def _ended(self, node: int, now: float, touched: dict[int, None]) -> None:
        graph = self.graph
        cell, kind = divmod(node, 3)
        worker = graph.owner[cell]
        self.busy[worker] = 0
        touched[worker] = None
        if kind == 0:
            if cell + graph.size < len(graph.owner):
                self._send(node + 3 * graph.size, now, touched)
            else:
                heapq.heappush(self.backward[worker], (self.urgency[cell], node + 1))
        elif kind == 1:
            self.ahead[worker] -= 1
            if cell >= graph.size:
                self._send(node - 3 * graph.size, now, touched)
            if self.ends == 2:
                self.weight[worker].append(node + 1)
        if kind == self.ends:
            self.live[worker] -= 1
            stage = graph.stage[worker]
            self.unfinished[stage] -= 1
            group = self.group_of[stage]
            if not self.unfinished[stage] and not any(self.unfinished[s] for s in graph.groups[group]):
                heapq.heappush(self.events, (now + self.after, 2, group))

    def _send(self, node: int, now: float, touched: dict[int, None]) -> None:
        if self.transfer:
            heapq.heappush(self.events, (now + self.transfer, 1, node))
        else:
            self._arrived(node, touched)

    def _arrived(self, node: int, touched: dict[int, None]) -> None:
        cell, kind = divmod(node, 3)
        worker = self.graph.owner[cell]
        if kind == 1:
            heapq.heappush(self.backward[worker], (self.urgency[cell], node))
        else:
            stage = self.graph.stage[worker]
            if self.step_of[stage] == self.step_of[stage - 1]:
                heapq.heappush(self.forward[worker], (self.urgency[cell], node))
            else:
                self.early[worker].append(node)
        touched[worker] = None

    def _opened(self, group: int, touched: dict[int, None]) -> None:
        graph = self.graph
        for stage in graph.groups[group]:
            self.step_of[stage] += 1
            if self.step_of[stage] >= self.steps:
                continue
            self.unfinished[stage] = graph.size
            if stage == 0:
                for cell in range(graph.size):
                    heapq.heappush(self.forward[graph.owner[cell]], (self.urgency[cell], 3 * cell))
        for worker, stage in enumerate(graph.stage):
            if stage in graph.groups[group] and self.step_of[stage] < self.steps:
                for node in self.early[worker]:
                    heapq.heappush(self.forward[worker], (self.urgency[node // 3], node))
                self.early[worker].clear()
                touched[worker] = None

    def _dispatch(self, worker: int, now: float) -> None:
        if self.busy[worker]:
            return
        forward, backward, weight = self.forward[worker], self.backward[worker], self.weight[worker]
        can_forward = bool(forward) and self.live[worker] < self.graph.caps[worker]
        within_lead = can_forward and self.ahead[worker] < self.lead[worker]
        if backward and not (within_lead and self.policy.forward_first):
            node = heapq.heappop(backward)[1]
        elif within_lead or (can_forward and self.policy.eager and not weight):
            node = heapq.heappop(forward)[1]
            self.live[worker] += 1
            self.ahead[worker] += 1
        elif weight:
            node = weight.pop(0)
        else:
            return
        stage = self.graph.stage[worker]
        self.busy[worker] = 1
        self.scheduled[self.step_of[stage]][worker].append(node)
        heapq.heappush(self.events, (now + self.graph.costs[stage][node % 3], 0, node))


# max tasks to schedule in total over all policies, to limit the planning time of a large grid
_ONLINE, _AHEAD = 120_000, 600_000
_SMALL = 20_000


@dataclass(frozen=True)
class Plan:
    """A validated schedule, and its properties."""

    schedule: Schedule  # the instruction lists
    period: float  # time per step when steps repeat, in the units of the problem's costs (slots by default)
    makespan: float  # time of the first step
    bound: float  # lower bound of the period of any schedule
    facts: Facts  # the result of the validator
    method: str = "heuristic"  # ``heuristic`` or ``exact``
    optimal: bool = False  # whether the period is proven to be the shortest

    @property
    def peak(self) -> int:
        """Return the max number of activations that any worker keeps."""
        return max(self.facts.live.values())


def plan(problem: Problem, *, thorough: bool = False) -> Plan:
    """Make a schedule for the workers that are alive, fast enough to call after a failure.

    It assigns micro-batches of dead workers to live workers of their stage, and splits the backward. In ``staggered``
    mode, stages step separately. Every worker computes the same plan from the same problem. ``problem``: grid, dead
    workers, memory, costs. ``thorough``: try all policies on large grids, too, which is too slow during a failure.

    Examples:
        >>> from cedar.trainers.resilient.schedule import Worker
        >>> plan(Problem(4, 3, 6, frozenset({Worker(2, 1)}))).period
        27.0
    """
    graph = Graph.from_problem(problem)
    return make_plan(problem, graph, search(graph, _AHEAD if thorough else _ONLINE)[0])


def search(graph: Graph, tasks: int = _AHEAD) -> tuple[Order, Times]:
    """Return the best order that list scheduling finds; stop when its period reaches the lower bound."""
    small = graph.nodes <= _SMALL
    steps = 3 if small else 1
    best: tuple[tuple[float, float], Order, Times] | None = None
    for policy in islice(policies(), max(1, tasks // (graph.nodes * steps))):
        tried: list[Order] = []
        for order in schedule(graph, policy, steps):
            if order in tried:
                continue
            tried.append(order)
            times = measure(graph, order, 12 if small else 4)
            if times is not None and (best is None or (times.period, times.spread) < best[0]):
                best = (times.period, times.spread), order, times
        if best is not None and best[2].period <= graph.problem.bound + 1e-9:
            break
    assert best is not None, "list scheduling always ends with an order that can be carried out"
    return best[1], best[2]


def make_plan(
    problem: Problem, graph: Graph, order: Order, method: str = "heuristic", bound: float | None = None
) -> Plan:
    """Make the plan of an order: convert it to a schedule, validate it, and measure its step time."""
    emitted = emit(problem, graph.tasks(order))
    facts = validate(emitted)
    times = measure(graph, order, 12 if graph.nodes <= _SMALL else 4)
    assert times is not None, "a schedule that was proven can be carried out"
    lower_bound = max(problem.bound, bound or 0)
    return Plan(emitted, times.period, times.makespan, lower_bound, facts, method, times.period <= lower_bound + 1e-9)
