"""Schedules that others work by, to compare with: 1F1B, and zero-bubble with its memory."""

from __future__ import annotations

from dataclasses import replace

from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.planner.graph import Graph, emit
from cedar.trainers.resilient.planner.search import Policy, schedule
from cedar.trainers.resilient.schedule import Schedule


def one_f_one_b(problem: Problem) -> Schedule:
    """1F1B (Narayanan et al., PipeDream-Flush): a stage is ``stages - stage`` micro-batches ahead, then does a fused B
    and an F in turn; every worker steps together.

    With dead workers their micro-batches go to live ones, and nothing else changes: what re-routing costs by itself.
    With less memory than 1F1B needs, a stage gets less far ahead.
    """
    return _strict(replace(problem, mode="sync"), fused=True)


def zero_bubble(problem: Problem) -> Schedule:
    """Zero-bubble with the memory of 1F1B (Qi et al., ZB-H1): B_INPUT first, and B_WEIGHT where a stage would wait.

    Stages step on their own if the problem's mode is ``staggered``, together if it is ``sync``. A problem without a
    limit of memory gets that of 1F1B.
    """
    return _strict(replace(problem, memory="1f1b") if problem.memory is None else problem, fused=False)


def _strict(problem: Problem, *, fused: bool) -> Schedule:
    graph = Graph.of(problem, fused=fused)
    policy = Policy(lead=1.0, eager=False)
    return emit(problem, graph.tasks(schedule(graph, policy, 1)[0]))
