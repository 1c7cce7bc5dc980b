"""From the order in which workers compute to a schedule: put in what is sent and received, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from cedar.trainers.resilient.planner.problem import Problem
from cedar.trainers.resilient.schedule import Instruction, Kind, Schedule, Worker

Task: TypeAlias = tuple[Kind, int]  # what, and of which micro-batch: replica * micro_batches + number
Orders: TypeAlias = Mapping[Worker, Sequence[Task]]


def emit(problem: Problem, orders: Orders, caps: tuple[int | None, ...] | None = None) -> Schedule:
    """A schedule that computes in these orders.

    A message is sent as soon as it is computed. It is received right before it is needed, and so is, before it, what
    the same worker has sent earlier: receives are in the order of sends.

    Args:
        problem: whose routes the orders follow.
        orders: of each live worker, every task of its micro-batches once.
        caps: what the schedule promises of memory; by default the problem's.
    """
    stages, per = problem.stages, problem.micro_batches
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
        received: set[int] = set()  # micro-batch, or -1 - micro-batch for gradients
        for kind, index in tasks:
            home, number = divmod(index, per)
            forward = kind == "F"
            source = -1 if kind == "B_WEIGHT" else stage - 1 if forward else stage + 1
            if 0 <= source < stages and (index if forward else -1 - index) not in received:
                peer = routes[source][index]
                channel = (Worker(source, peer), worker)
                messages, at = sent[channel], taken[channel]
                what: Kind = "RECV_F" if forward else "RECV_B"
                while True:
                    got = messages[at]
                    at += 1
                    steps.append(Instruction(what, *divmod(got, per), peer))
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
        problem.stages, problem.replicas, per, work, problem.dead, problem.mode,
        problem.caps if caps is None else caps, tied=problem.tied,
    )  # fmt: skip
