"""Plans for 0, 1, .. failures, made before they happen; and how to get to them by moving a stage's state.

Workers of a stage hold the same weights, so only the number of the dead of each stage matters, and of all ways to
spread so many over the stages one is best: the *normal* one. Its plan is made ahead, with more time than a failure
has. When workers die in another way, the step continues under ``plan`` for those who are dead; at a later
boundary, live workers may take roles of other stages, by copying a peer's state, until the spread is the normal one.
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
    """A live worker leaves its place, which then counts as dead, and takes the role of a dead one in another stage."""

    worker: Worker
    role: Worker


def normal(problem: Problem, failures: int) -> frozenset[Worker]:
    """The dead of the best spread of so many failures: the slowest stage is as fast as can be.

    Among equals, failures go to the stages with the most room for activations, and to different pipelines.

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
    # by failures so far: time of the slowest stage, of all, room that is not used, and how many die at each stage
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
    """For each stage, its cap against how long an activation stays."""
    each = [problem.costs.stage(stage) for stage in range(problem.stages)]
    stays = [sum(each[s]) + sum(f + b for f, b, _ in each[s + 1 :]) for s in range(problem.stages)]
    return [0.0 if cap is None else round(cap / stay, 9) for cap, stay in zip(problem.caps, stays, strict=True)]


def _cost(problem: Problem, stage: int, dead: int) -> float:
    extra = -(-problem.micro_batches * dead // (problem.replicas - dead))
    return sum(problem.costs.stage(stage)) * (problem.micro_batches + extra)


def ahead(problem: Problem, failures: int, seconds: float = 0.0) -> dict[int, Plan]:
    """The plans for 0 to ``failures`` dead workers in their normal spread.

    Args:
        problem: its ``dead`` are left out of account.
        failures: the most that is planned for.
        seconds: that CP-SAT may take for each; 0: list scheduling alone.
    """
    spreads = [replace(problem, dead=normal(problem, count)) for count in range(failures + 1)]
    return {n: exact(one, seconds) if seconds else plan(one, thorough=True) for n, one in enumerate(spreads)}


def keep(plans: Mapping[int, Plan], folder: str) -> None:
    """Write the schedules of plans into a folder, ``plan_<failures>.json``, as ``schedule.load`` reads them."""
    os.makedirs(folder, exist_ok=True)
    for count, made in plans.items():
        save(made.schedule, os.path.join(folder, f"plan_{count}.json"))


def moves(problem: Problem) -> tuple[Move, ...]:
    """The fewest moves after which the dead are spread as in the normal plan for so many.

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
    """Which live worker plays which role of a plan whose dead are others of the same stages; home stays home if it can.

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
    """A plan whose dead are others of the same stages, with its roles given to those who are alive; proven again.

    None if a stage has another number of dead.

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
    """What moving would bring."""

    moves: tuple[Move, ...]  # who takes which role
    before: float  # the period of the plan for those who are dead now
    after: float  # the period once the moves are made

    def pays(self, seconds: float, slot: float, steps: float) -> bool:
        """Whether ``seconds`` for the moves are won back within ``steps``, at ``slot`` seconds for a unit of time."""
        return bool(self.moves) and (self.before - self.after) * slot * steps > seconds
