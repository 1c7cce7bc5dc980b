"""Precompute plans for 0, 1, .. failures, and find the moves of workers that make such a plan usable.

Workers of a stage have the same weights, so only the number of dead workers in each stage matters. For each number of
failures, the *normal* distribution is the best way to spread them over the stages. Its plan is computed in advance. If
the failures are spread differently, the step continues with a plan made at that moment. At a later step boundary, live
workers may move to other stages by copying a peer's state, until the normal distribution is reached.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from cedar.trainers.resilient.planner.exact import exact
from cedar.trainers.resilient.planner.problem import Problem
from cedar.trainers.resilient.planner.search import Plan, plan
from cedar.trainers.resilient.schedule import Schedule, ScheduleError, Worker, save, validate


class Move(NamedTuple):
    """A live worker replaces a dead worker in another stage. Its own position then counts as dead."""

    worker: Worker
    role: Worker


def normal(problem: Problem, failures: int) -> frozenset[Worker]:
    """Return the dead workers of the normal distribution: the one that makes the slowest stage as fast as possible.

    Among equally fast ones, it prefers dead workers in stages with much activation memory, and in different pipelines.

    Examples:
        >>> sorted(normal(Problem(2, 3, 6), 3))
        [Worker(stage=0, replica=2), Worker(stage=1, replica=0), Worker(stage=1, replica=1)]
    """
    stages, replicas = problem.stages, problem.replicas
    if not 0 <= failures <= stages * (replicas - 1):
        raise ScheduleError(
            f"{failures} failures leave a stage of {replicas} replicas without a live worker",
            fix=f"plan for {stages * (replicas - 1)} at most",
        )
    room = _room(problem)
    # by failures so far: time of the slowest stage, total time, minus the room of dead workers, dead workers per stage
    best: dict[int, tuple[float, float, float, tuple[int, ...]]] = {0: (0.0, 0.0, 0.0, ())}
    for stage in range(stages):
        after: dict[int, tuple[float, float, float, tuple[int, ...]]] = {}
        for dead in range(replicas):
            cost = _cost(problem, stage, dead)
            for so_far, (slowest, total, used, counts) in best.items():
                spread = max(slowest, cost), total + cost, used - dead * room[stage], (*counts, dead)
                if so_far + dead <= failures and (so_far + dead not in after or spread < after[so_far + dead]):
                    after[so_far + dead] = spread
        best = after
    dying = [stage for stage, count in enumerate(best[failures][3]) for _ in range(count)]
    return frozenset(Worker(stage, replicas - 1 - turn % replicas) for turn, stage in enumerate(dying))


def _room(problem: Problem) -> list[float]:
    """Return for each stage its activation cap, divided by how long it keeps an activation."""
    each = [problem.costs.stage(stage) for stage in range(problem.stages)]
    stays = [sum(each[s]) + sum(f + b for f, b, _ in each[s + 1 :]) for s in range(problem.stages)]
    return [0.0 if cap is None else round(cap / stay, 9) for cap, stay in zip(problem.caps, stays, strict=True)]


def _cost(problem: Problem, stage: int, dead: int) -> float:
    extra = -(-problem.micro_batches * dead // (problem.replicas - dead))
    return sum(problem.costs.stage(stage)) * (problem.micro_batches + extra)


def ahead(problem: Problem, failures: int, seconds: float = 0.0) -> dict[int, Plan]:
    """Make the plans for the normal distributions of 0 to ``failures`` dead workers.

    Args:
        problem: the problem; its ``dead`` are ignored.
        failures: max number of failures to plan for.
        seconds: time that CP-SAT may spend on each plan; 0: list scheduling only.
    """
    spreads = [replace(problem, dead=normal(problem, count)) for count in range(failures + 1)]
    return {n: exact(one, seconds) if seconds else plan(one, thorough=True) for n, one in enumerate(spreads)}


def keep(plans: Mapping[int, Plan], folder: str) -> None:
    """Write the schedules of plans to ``plan_<failures>.json`` in a folder, in the format of ``schedule.load``."""
    os.makedirs(folder, exist_ok=True)
    for count, made in plans.items():
        save(made.schedule, os.path.join(folder, f"plan_{count}.json"))


def moves(problem: Problem) -> tuple[Move, ...]:
    """Return the smallest set of moves that leads to the normal distribution of dead workers.

    Examples:
        >>> moves(Problem(2, 3, 6, frozenset({Worker(0, 0), Worker(0, 1)})))
        (Move(worker=Worker(stage=1, replica=2), role=Worker(stage=0, replica=0)),)
    """
    have = Counter(worker.stage for worker in problem.dead)
    want = Counter(worker.stage for worker in normal(problem, len(problem.dead)))
    roles, leaving = [], []
    for stage in range(problem.stages):
        surplus = have[stage] - want[stage]
        if surplus > 0:
            roles += sorted(worker for worker in problem.dead if worker.stage == stage)[:surplus]
        else:
            leaving += [Worker(stage, replica) for replica in problem.alive(stage)][surplus or problem.replicas :]
    return tuple(Move(worker, role) for worker, role in zip(leaving, roles, strict=True))


def roles(dead: frozenset[Worker], planned: frozenset[Worker], stages: int, replicas: int) -> dict[Worker, Worker]:
    """Assign a plan's roles to live workers of the same stages. A worker keeps its own role if the plan has it.

    Examples:
        >>> roles(frozenset({Worker(0, 0)}), frozenset({Worker(0, 1)}), 1, 2)
        {Worker(stage=0, replica=1): Worker(stage=0, replica=0)}
    """
    played: dict[Worker, Worker] = {}
    for stage in range(stages):
        places = {Worker(stage, replica) for replica in range(replicas)}
        live, wanted = places - dead, places - planned
        if len(live) != len(wanted):
            raise ScheduleError(
                f"stage {stage} has {len(live)} live workers, the plan is for {len(wanted)}",
                fix="plan for those who are alive, or move workers first",
            )
        played |= {worker: worker for worker in sorted(live & wanted)}
        played |= dict(zip(sorted(live - wanted), sorted(wanted - live), strict=True))
    return played


def fitted(made: Schedule, dead: frozenset[Worker]) -> Schedule | None:
    """Adapt a plan to other dead workers of the same stages, by assigning its roles to live workers, and validate it.

    Return None if a stage has more or fewer dead workers than in the plan.

    Examples:
        >>> made = plan(Problem(2, 2, 2, frozenset({Worker(0, 0)}))).schedule
        >>> fitted(made, frozenset({Worker(0, 1)})).route(0, 1, 1)
        Worker(stage=0, replica=0)
        >>> fitted(made, frozenset({Worker(1, 1)})) is None
        True
    """
    if Counter(worker.stage for worker in dead) != Counter(worker.stage for worker in made.dead):
        return None
    if dead == made.dead:
        return made
    played = roles(dead, made.dead, made.stages, made.replicas)
    player = {role: worker for worker, role in played.items()}
    work = {
        worker: tuple(
            done if done.peer < 0 else done._replace(peer=player[done.other(role)].replica) for done in made.work[role]
        )
        for worker, role in played.items()
    }
    schedule = replace(made, work=work, dead=dead)
    validate(schedule)
    return schedule


@dataclass(frozen=True)
class Change:
    """A set of moves and their effect on the step time."""

    moves: tuple[Move, ...]  # the moves to make
    before: float  # step time of the plan for the workers that are dead now
    after: float  # step time after the moves

    def pays(self, seconds: float, slot: float, steps: float) -> bool:
        """Whether the moves save more than they cost, ``seconds``, in ``steps``. ``slot``: seconds per time unit."""
        return bool(self.moves) and (self.before - self.after) * slot * steps > seconds
