"""Convert schedules of torch.distributed.pipelining to plans."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from cedar.trainers.resilient.planner.graph import Task, emit
from cedar.trainers.resilient.planner.problem import Problem
from cedar.trainers.resilient.planner.search import Plan
from cedar.trainers.resilient.schedule import Kind, ScheduleError, Worker, timeline, validate

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_KINDS: dict[str, Kind] = {"F": "F", "B": "B", "I": "B_INPUT", "W": "B_WEIGHT"}


def from_torch(path: str, problem: Problem) -> Plan:
    """Read a plan from a CSV of torch.distributed.pipelining: for each rank, a line of actions such as ``0F3``.

    Each rank is one stage, and all replicas execute its actions. ``F`` is a forward, ``B`` a whole backward, ``I`` the
    backward for the input, and ``W`` for the weights. Empty cells are bubbles and are ignored.

    Args:
        path: path of the file.
        problem: the problem of a run without dead workers.

    Raises:
        ScheduleError: the file cannot be read, an action is unknown, or it is not a schedule for this problem.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = [[cell.strip() for cell in line if cell.strip()] for line in csv.reader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ScheduleError(f"the schedule {path} cannot be read: {error}", fix="give a CSV file") from error
    lines = [line for line in lines if line]
    if len(lines) != problem.stages:
        raise ScheduleError(f"{path} is for {len(lines)} ranks", fix=f"give a line for each of {problem.stages} stages")
    stages = [_tasks(path, stage, line, problem.micro_batches) for stage, line in enumerate(lines)]
    orders = {
        Worker(stage, replica): [(kind, replica * problem.micro_batches + number) for kind, number in tasks]
        for stage, tasks in enumerate(stages) for replica in range(problem.replicas)
    }  # fmt: skip
    emitted = emit(problem, orders)
    facts, times = validate(emitted), timeline(emitted, problem.costs, iterations=6)
    optimal = times.period <= problem.bound + 1e-9
    return Plan(emitted, times.period, times.makespan, problem.bound, facts, "torch", optimal)


def _tasks(path: str, stage: int, line: Sequence[str], count: int) -> list[Task]:
    tasks: list[Task] = []
    for cell in line:
        match = _ACTION.fullmatch(cell)
        if match is None or int(match[1]) != stage:
            raise ScheduleError(
                f"{path}, rank {stage}: {cell!r} is not a F, B, I or W of stage {stage}",
                fix="give a schedule with one stage for each rank, of what is computed alone",
            )
        tasks.append((_KINDS[match[2]], int(match[3])))
    for part in ({"F"}, {"B", "B_INPUT"}, {"B", "B_WEIGHT"}):
        if sorted(number for kind, number in tasks if kind in part) != list(range(count)):
            raise ScheduleError(
                f"{path}, rank {stage}: {' or '.join(sorted(part))} does not occur exactly once for each of {count}"
                " micro-batches",
                fix="set pipeline.micro_batches to those of the schedule",
            )
    return tasks
