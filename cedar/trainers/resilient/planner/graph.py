"""Represent a planning problem as integer arrays, measure the step time of an order, and convert it to a schedule.

A *cell* is a micro-batch at a stage, ``stage * size + replica * micro_batches + number``. A *node* is one of its three
tasks, ``3 * cell + 0, 1, 2`` for F, B_INPUT and B_WEIGHT. A fused backward is node 1, without a node 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cedar.trainers.resilient.planner.problem import Problem
from cedar.trainers.resilient.schedule import Instruction, Kind, Schedule, Worker

Task: TypeAlias = tuple[Kind, int]  # kind, and the micro-batch's index: replica * micro_batches + number
Orders: TypeAlias = Mapping[Worker, Sequence[Task]]


def emit(problem: Problem, orders: Orders) -> Schedule:
    """Make the schedule in which each worker runs its tasks in the given order.

    A worker sends a message as soon as it is computed, and receives it right before it is needed. It first receives all
    earlier messages of the same sender, because receives follow the order of sends. ``problem``: determines the routes.
    ``orders``: for each live worker, every task of its micro-batches exactly once.
    """
    stages, per_replica = problem.stages, problem.micro_batches
    routes = problem.routes
    sent: dict[tuple[Worker, Worker], list[int]] = {}
    for worker, tasks in orders.items():
        stage = worker.stage
        for kind, index in tasks:
            if kind == "F" and stage + 1 < stages:
                sent.setdefault((worker, Worker(stage + 1, routes[stage + 1][index])), []).append(index)
            elif kind in {"B", "B_INPUT"} and stage:
                sent.setdefault((worker, Worker(stage - 1, routes[stage - 1][index])), []).append(index)
    taken = dict.fromkeys(sent, 0)
    work = {}
    for worker, tasks in orders.items():
        stage, replica = worker
        steps: list[Instruction] = []
        received: set[int] = set()  # a micro-batch's index for its activations, -1 - index for its gradients
        for kind, index in tasks:
            home, number = divmod(index, per_replica)
            forward = kind == "F"
            source = -1 if kind == "B_WEIGHT" else stage - 1 if forward else stage + 1
            if 0 <= source < stages and (index if forward else -1 - index) not in received:
                peer = routes[source][index]
                channel = (Worker(source, peer), worker)
                messages, at = sent[channel], taken[channel]
                receive: Kind = "RECV_F" if forward else "RECV_B"
                while True:
                    got = messages[at]
                    at += 1
                    steps.append(Instruction(receive, *divmod(got, per_replica), peer))
                    received.add(got if forward else -1 - got)
                    if got == index:
                        break
                taken[channel] = at
            steps.append(Instruction(kind, home, number))
            if forward and stage + 1 < stages:
                steps.append(Instruction("SEND_F", home, number, routes[stage + 1][index]))
            elif kind != "B_WEIGHT" and not forward and stage:
                steps.append(Instruction("SEND_B", home, number, routes[stage - 1][index]))
        steps += (Instruction("ALL_REDUCE"), Instruction("STEP"))
        work[Worker(stage, replica)] = tuple(steps)
    return Schedule(
        problem.stages, problem.replicas, per_replica, work, problem.dead, problem.mode,
        problem.caps, tied=problem.tied,
    )  # fmt: skip


Order = list[list[int]]  # for each live worker, its nodes in the order of execution
_ROUNDS = 12


@dataclass(frozen=True)
class Graph:
    """A planning problem as arrays."""

    problem: Problem
    fused: bool  # whether B_INPUT and B_WEIGHT are one task
    size: int  # number of micro-batches in all pipelines
    workers: Sequence[Worker]  # the live workers; other arrays refer to them by index
    stage: Sequence[int]
    caps: Sequence[int]  # for each worker, how many activations it may keep
    costs: Sequence[tuple[float, float, float]]  # for each stage, the costs of F, B_INPUT and B_WEIGHT
    owner: Sequence[int]  # for each cell, the worker that computes it
    groups: Sequence[Sequence[int]]  # groups of stages whose optimizer steps wait for each other

    @classmethod
    def from_problem(cls, problem: Problem, *, fused: bool = False) -> Graph:
        """Make the graph of a problem."""
        size = problem.replicas * problem.micro_batches
        workers = [Worker(stage, replica) for stage in range(problem.stages) for replica in problem.alive(stage)]
        numbers = {worker: number for number, worker in enumerate(workers)}
        costs = [problem.costs.stage(stage) for stage in range(problem.stages)]
        if fused:
            costs = [(forward, on_input + on_weight, 0) for forward, on_input, on_weight in costs]
        return cls(
            problem, fused, size, workers, [worker.stage for worker in workers],
            [problem.caps[worker.stage] or size for worker in workers], costs,
            [numbers[Worker(s, replica)] for s, routes in enumerate(problem.routes) for replica in routes],
            _groups(problem),
        )  # fmt: skip

    @property
    def nodes(self) -> int:
        return len(self.owner) * (2 if self.fused else 3)

    def source(self, node: int) -> int:
        """Return the node in another stage whose result this node needs; -1 if there is none."""
        cell, kind = divmod(node, 3)
        if kind == 0:
            return node - 3 * self.size if cell >= self.size else -1
        if kind == 1:
            return node + 3 * self.size if cell + self.size < len(self.owner) else -1
        return -1

    def tasks(self, order: Order) -> Orders:
        """Convert an order to a list of tasks for each worker."""
        kinds: tuple[Kind, Kind, Kind] = ("F", "B" if self.fused else "B_INPUT", "B_WEIGHT")

        def describe(node: int) -> Task:
            cell, kind = divmod(node, 3)
            return kinds[kind], cell % self.size

        return {worker: [describe(node) for node in nodes] for worker, nodes in zip(self.workers, order, strict=True)}


def _groups(problem: Problem) -> list[list[int]]:
    """Return the groups of stages whose optimizer steps wait for each other."""
    if problem.mode == "sync":
        return [list(range(problem.stages))]
    single_stages = [[stage] for stage in range(problem.stages) if stage not in problem.tied]
    return [*single_stages, list(problem.tied)] if problem.tied else single_stages


@dataclass(frozen=True)
class Times:
    """The step time of an order."""

    period: float  # time per step when steps repeat
    makespan: float
    # sum over the stages of the time from the first F to the end of the step; breaks ties between equal periods
    spread: float
    starts: dict[int, float]  # start of each node, in the last simulated step


def sorted_nodes(graph: Graph, order: Order) -> list[tuple[int, int, int]] | None:
    """Return (node, its source or -1, its worker) sorted by dependencies; None if dependencies form a cycle."""
    position = [0] * len(order)
    done = bytearray(3 * len(graph.owner))
    waiting: dict[int, int] = {}
    arranged: list[tuple[int, int, int]] = []
    ready = list(range(len(order)))
    size3, total = 3 * graph.size, 3 * len(graph.owner)
    while ready:
        worker = ready.pop()
        nodes, at = order[worker], position[worker]
        while at < len(nodes):
            node = nodes[at]
            kind = node % 3
            source = -1 if kind == 2 else node - size3 if kind == 0 else node + size3
            if 0 <= source < total:
                if not done[source]:
                    waiting[source] = worker
                    break
            else:
                source = -1
            if kind and not done[node - 1]:
                return None
            done[node] = 1
            arranged.append((node, source, worker))
            at += 1
            if node in waiting:
                ready.append(waiting.pop(node))
        position[worker] = at
    return arranged if not waiting and all(p == len(n) for p, n in zip(position, order, strict=True)) else None


def measure(graph: Graph, order: Order, rounds: int = _ROUNDS) -> Times | None:
    """Return the step time when the order is repeated and each task starts as soon as possible.

    Simulates up to ``rounds`` steps, until all stages take equally long. Returns None if the order cannot be executed.
    """
    nodes = sorted_nodes(graph, order)
    if nodes is None:
        return None
    problem = graph.problem
    stages, transfer = problem.stages, problem.costs.transfer
    after = problem.costs.reduce + problem.costs.step
    stage_of = graph.stage
    planned = [(node, source, worker, graph.costs[stage_of[worker]][node % 3]) for node, source, worker in nodes]
    opens = [0.0] * stages
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    history: list[list[float]] = []
    before: list[float] = opens
    for _ in range(rounds):
        before = opens
        clock = [before[stage] for stage in stage_of]
        for node, source, worker, cost in planned:
            start = clock[worker]
            if source >= 0:
                arrives = ends[source] + transfer
                start = max(start, arrives)
            starts[node] = start
            clock[worker] = ends[node] = start + cost
        opens = [0.0] * stages
        for group in graph.groups:
            end = max(clock[worker] for worker, stage in enumerate(stage_of) if stage in group) + after
            for stage in group:
                opens[stage] = end
        history.append(opens)
        steps = [b - a for a, b in zip(before, opens, strict=True)]
        if len(history) > 2 and max(steps) - min(steps) < 1e-9:
            break
    period = max(opens) - max(before) if len(history) < rounds else _mean(history)
    firsts = [float("inf")] * stages
    for node, _, worker, _ in planned:
        stage = stage_of[worker]
        firsts[stage] = min(firsts[stage], starts[node])
    spread = sum(end - first for end, first in zip(opens, firsts, strict=True))
    return Times(period, max(history[0]), spread, starts)


def _mean(history: list[list[float]]) -> float:
    """Return the mean step time over the second half of the steps, for orders whose step times do not converge."""
    half = len(history) // 2
    return (max(history[-1]) - max(history[half - 1])) / (len(history) - half)
