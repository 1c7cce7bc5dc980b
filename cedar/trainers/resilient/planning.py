"""Choose a generation's plan: one for its dead workers after a failure, a precomputed one at a step boundary.

Precomputed plans are for the best distribution of a number of failures over the stages, and may take longer to make.
They are in the run's folder, and in its store, where all workers find the same ones. Version 0 assumes that F,
B_INPUT and B_WEIGHT take equally long. Version 1, made in a separate process, uses measured instruction times. Between
failures, such a process also prepares a plan for each worker that may fail next, which makes recovery faster.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cedar.trainers.common import launch
from cedar.trainers.resilient.control import protocol as keys
from cedar.trainers.resilient.control.board import Board, Epoch
from cedar.trainers.resilient.control.protocol import Key
from cedar.trainers.resilient.executor import Waiting
from cedar.trainers.resilient.planner import Change, Plan, Problem, ahead, fitted, from_torch, keep, moves, plan
from cedar.trainers.resilient.schedule import Costs, Durations, Schedule, Worker, from_plain, grid, to_plain

_MAX_FAILURES = 4  # max number of failures to plan for
_SMALL_GRID = 256  # max micro-batches, summed over stages, for which workers share plans through the store
_SETTLED = 3  # number of steps with one plan before moves are considered


@dataclass(frozen=True)
class PlannedSteps:
    """The parts of a plan that a worker needs."""

    schedule: Schedule
    period: float  # time of a step, in units of the costs


def schedule_of(
    board: Board, epoch: Epoch, problem_of: Callable[..., Problem], me: Worker, waiting: Waiting | None = None
) -> PlannedSteps:  # fmt: skip
    """Return the plan of a generation; every worker gets the same one.

    After a failure, this is the plan for the current dead workers, prepared or computed now. At a step boundary, it is
    a precomputed plan if one fits. For small grids, one worker plans for all, as there may be fewer cores than workers.
    For large grids, each worker plans, since sharing takes longer. ``problem_of``: returns the run's problem for given
    dead workers and costs. ``waiting``: waits for another worker's plan; None: this worker makes its own plan.
    """
    costs = costs_of(board, epoch.plans)
    whole = problem_of(frozenset(), costs)
    dead = epoch.dead(grid(whole.stages, whole.replicas))
    # after a lost connection or a replay, no worker may be dead
    failed = dead and (epoch.detected > 0 or epoch.lost)
    plain = None if failed else board.get(keys.PLAN(epoch.plans, len(dead)))
    if plain is not None:
        schedule = fitted(from_plain(plain["schedule"]), dead)
        if schedule is not None:
            return PlannedSteps(schedule, plain["period"])
    problem = problem_of(dead, costs)
    small = _is_small(problem)
    plain = board.get(_prepared_key(epoch.plans, dead)) if failed and small else None
    if plain is not None:
        return PlannedSteps(from_plain(plain["schedule"]), plain["period"])
    if waiting is not None and small and me != epoch.members[0]:
        made_key = keys.MADE(epoch.number)
        ready_key = _prepared_key(epoch.plans, dead)  # instead of planning, the first member may use a prepared plan
        reported = waiting.poll(lambda: board.get(made_key) or board.get(ready_key), f"the plan of {epoch.members[0]}")
        return PlannedSteps(from_plain(reported["schedule"]), reported["period"])
    planned = plan(problem)
    if small:
        board.put(keys.MADE(epoch.number), _to_plain(planned))
    return PlannedSteps(planned.schedule, planned.period)


def _is_small(problem: Problem) -> bool:
    return problem.stages * problem.replicas * problem.micro_batches <= _SMALL_GRID


def _prepared_key(version: int, dead: frozenset[Worker]) -> Key[dict[str, Any]]:
    return keys.PREPARED(version, " ".join(map(str, sorted(dead))))


def prepare(board: Board, epoch: Epoch, version: int, problem: Problem) -> None:
    """For each worker that may fail next, make the plan without it. ``version``: version of the plans in the generation
    that begins after this failure.
    """
    if not _is_small(problem):
        return
    costs, dead = costs_of(board, version), epoch.dead(grid(problem.stages, problem.replicas))
    live = Counter(worker.stage for worker in epoch.members)
    wanted = {_prepared_key(version, dead | {w}): dead | {w} for w in epoch.members if live[w.stage] > 1}
    board.delete(*(set(board.get(keys.PREPARED_KEYS()) or ()) - set(wanted)))
    board.put(keys.PREPARED_KEYS(), [str(key) for key in wanted])
    for key, then in wanted.items():
        if board.get(key) is None:
            board.put(key, _to_plain(plan(replace(problem, dead=then, costs=costs))))


def _to_plain(planned: Plan) -> dict[str, Any]:
    return {"schedule": to_plain(planned.schedule), "period": planned.period}


def costs_of(board: Board, version: int) -> Costs:
    """Return the instruction costs that a version of the plans was made with."""
    plain: dict[str, Any] | None = board.get(keys.COSTS(version))
    if plain is None:
        return Costs()
    kept: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()}
    return Costs(**kept)


def publish(board: Board, version: int, problem: Problem, plans: Mapping[int, Plan], folder: str) -> None:
    """Write plans to the store, from which all workers read them, and to the run's folder."""
    keep(plans, folder)
    board.put(keys.COSTS(version), asdict(problem.costs))
    for count, planned in plans.items():
        board.put(keys.PLAN(version, count), _to_plain(planned))
    board.put(keys.PLANS(), version)


class Planning:
    """Precomputes plans, in the coordinator's process. ``calibrate``: make them again with measured times of
    instructions. ``schedule``: a torch CSV file to use while no worker is dead; empty: use cedar's plan.
    """

    def __init__(
        self, problem: Problem, folder: str, steps: int, *, calibrate: bool = True, schedule: str = "",
        exact: float = 0.0,
    ) -> None:  # fmt: skip
        self.problem, self.folder, self.steps, self.calibrate = problem, folder, steps, calibrate
        self.schedule, self.exact = schedule, exact
        self.failures = min(problem.stages * (problem.replicas - 1), _MAX_FAILURES)
        began = time.perf_counter()
        self.plans = self._make_plans(problem)
        self.seconds = time.perf_counter() - began
        self.durations: Durations | None = None
        self._process: Any = None
        self._checked_generation = -1
        self._ready = (-1, -1)

    def _make_plans(self, problem: Problem) -> dict[int, Plan]:
        given = {0: from_torch(self.schedule, problem)} if self.schedule else {}
        return ahead(problem, self.failures, self.exact) | given

    def publish(self, board: Board) -> None:
        """Publish version 0 of the plans."""
        publish(board, 0, self.problem, self.plans, self.folder)

    def learn(self, durations: Durations, connect: Callable[[], Any]) -> None:
        """Make version 1 of the plans in a separate process, so that supervision continues meanwhile."""
        self.durations = durations
        if not self.calibrate:
            return
        problem = replace(self.problem, costs=durations.costs(self.problem.stages))
        self._start_process(lambda: publish(Board(connect()), 1, problem, self._make_plans(problem), self.folder))

    def prepare(self, generation: int, version: int, connect: Callable[[], Any]) -> None:
        """Prepare plans for the next failure, once per generation and version, unless a planning process is already
        running. ``version``: version of the plans that the next generation will use.
        """
        if self._ready == (generation, version) or (self._process is not None and self._process.is_alive()):
            return
        self._ready = generation, version

        def work() -> None:
            board = Board(connect())
            prepare(board, board.epoch(generation), version, self.problem)

        self._start_process(work)

    def _start_process(self, work: Callable[[], None]) -> None:
        """Run ``work`` in a separate process with low priority, so that it does not slow down the workers."""
        self.stop()
        parent = os.getpid()

        def run() -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            launch.end_with(parent)
            os.nice(10)
            work()
            os._exit(0)

        self._process = multiprocessing.get_context("fork").Process(target=run, name="planner", daemon=True)
        self._process.start()

    def stop(self) -> None:
        """Stop the planning process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._process = None

    def find_change(
        self, board: Board, epoch: Epoch, since: int, intervals: list[float], seconds: float
    ) -> Change | None:
        """Return moves that save more time than they cost, or None; decides once per generation. ``since``: steps that
        this generation has done. ``intervals``: seconds of each step so far. ``seconds``: cost of the moves.
        """
        problem = replace(self.problem, dead=epoch.dead(grid(self.problem.stages, self.problem.replicas)))
        if not problem.dead or self._checked_generation == epoch.number or since < _SETTLED:
            return None
        self._checked_generation = epoch.number
        now = board.get(keys.PERIOD(epoch.number))
        then = board.get(keys.PLAN(epoch.plans, len(problem.dead)))
        if now is None or then is None or not now:
            return None
        change = Change(moves(problem), now, then["period"])
        slot = statistics.median(intervals[-since:]) / now
        remaining = self.steps - (len(intervals) + 1)
        return change if change.pays(seconds, slot, remaining) else None
