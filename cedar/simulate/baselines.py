"""Published pipeline schedules to compare with: 1F1B, and zero-bubble with the memory of 1F1B."""

from __future__ import annotations

from dataclasses import replace

from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.planner.graph import Graph, emit
from cedar.trainers.resilient.planner.search import Policy, schedule
from cedar.trainers.resilient.schedule import Schedule


def one_f_one_b(problem: Problem) -> Schedule:
    """Return the 1F1B schedule (Narayanan et al., PipeDream-Flush). All workers step together.

    A stage first runs up to ``stages - stage`` forwards, fewer if memory is short. It then alternates a fused backward
    and a forward. Live workers also run the micro-batches of dead workers. Nothing else changes, so that the result
    shows the cost of re-routing without other improvements.
    """
    return _list_schedule(replace(problem, mode="sync"), fused=True)


def zero_bubble(problem: Problem) -> Schedule:
    """Return the zero-bubble schedule with the memory of 1F1B (Qi et al., ZB-H1).

    B_INPUT has priority, and stages run B_WEIGHT while they would otherwise wait. Stages step separately if the
    problem's mode is ``staggered``, together if it is ``sync``. A missing memory limit becomes that of 1F1B.
    """
    return _list_schedule(replace(problem, memory="1f1b") if problem.memory is None else problem, fused=False)


def _list_schedule(problem: Problem, *, fused: bool) -> Schedule:
    graph = Graph.from_problem(problem, fused=fused)
    policy = Policy(lead=1.0, eager=False)
    return emit(problem, graph.tasks(schedule(graph, policy, 1)[0]))
