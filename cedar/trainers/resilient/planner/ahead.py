"""Plans for 0, 1, .. failures that are made before the failures happen, and the moves that lead to them.

Workers of a stage hold the same weights, so only the number of dead workers in each stage matters. The best way to
distribute a number of failures over the stages is the *normal* distribution. Its plan is made ahead, with more time
than a failure allows. If other workers die, the step continues with ``plan``. At a later step boundary, live workers
may take roles in other stages, by copying a peer's state, until the dead workers are distributed as in the normal one.
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
    """A live worker leaves its place, which then counts as dead, for the role of a dead worker in another stage."""

    worker: Worker
    role: Worker


def normal(problem: Problem, failures: int) -> frozenset[Worker]:
    """Return the dead workers of the best distribution of some failures: the one whose slowest stage is fastest.

    Ties go to the stages with the most room for activations, and to different pipelines.

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
    # by failures so far: time of the slowest stage, total time, unused room, number of dead workers per stage
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
    """Return for each stage its activation cap, divided by how long an activation stays."""
    each = [problem.costs.stage(stage) for stage in range(problem.stages)]
    stays = [sum(each[s]) + sum(f + b for f, b, _ in each[s + 1 :]) for s in range(problem.stages)]
    return [0.0 if cap is None else round(cap / stay, 9) for cap, stay in zip(problem.caps, stays, strict=True)]


def _cost(problem: Problem, stage: int, dead: int) -> float:
    extra = -(-problem.micro_batches * dead // (problem.replicas - dead))
    return sum(problem.costs.stage(stage)) * (problem.micro_batches + extra)


def ahead(problem: Problem, failures: int, seconds: float = 0.0) -> dict[int, Plan]:
    """Make the plans for 0 to ``failures`` dead workers in normal distribution.

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
    """Return the smallest set of moves after which the dead workers are distributed as in the normal plan.

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
    """Assign the roles of a plan for other dead workers of the same stages; workers keep their own role if possible.

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
    """Return a plan for other dead workers of the same stages with its roles assigned to those alive; validated again.

    Return None if a stage has a different number of dead workers.

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

    moves: tuple[Move, ...]  # which worker takes which role
    before: float  # step time of the plan for the workers that are dead now
    after: float  # step time after the moves

    def pays(self, seconds: float, slot: float, steps: float) -> bool:
        """Whether moves that cost ``seconds`` pay off within ``steps``, at ``slot`` seconds per unit of time."""
        return bool(self.moves) and (self.before - self.after) * slot * steps > seconds
