"""The planner: makes schedules for a grid in which some workers are dead. Imports no torch.

``plan(Problem(...))`` is fast enough to call after a failure, and returns the same schedule on every worker. ``exact``
is slow, but proves a bound on the step time (needs the extra ``schedules``). ``ahead`` makes plans for 0, 1, .. dead
workers before any failure. ``moves``, ``roles`` and ``Change`` describe how workers can move to match such a plan, and
whether this saves time. ``fitted`` adapts such a plan to the workers that are alive.
"""

from cedar.trainers.resilient.planner.ahead import Change, Move, ahead, fitted, keep, moves, normal, roles
from cedar.trainers.resilient.planner.exact import exact
from cedar.trainers.resilient.planner.foreign import from_torch
from cedar.trainers.resilient.planner.problem import Memory, Problem
from cedar.trainers.resilient.planner.search import Plan, plan

__all__ = [
    "Change", "Memory", "Move", "Plan", "Problem", "ahead", "exact", "fitted", "from_torch", "keep", "moves", "normal",
    "plan", "roles",
]  # fmt: skip
