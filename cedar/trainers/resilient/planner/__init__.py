"""Plans: schedules for a grid of workers of which some are dead. Imports no torch.

``plan(Problem(...))`` is fast enough to be called when a worker has just died, and gives the same schedule on every
worker that calls it. ``exact`` is slow, and proves how good a plan can be (needs the extra ``schedules``). ``ahead``
makes the plans for 0, 1, .. failures before they happen; ``moves``, ``roles`` and ``Change`` tell how to get from those
who died to such a plan, and whether it pays; ``fitted`` gives its roles to those who are alive.
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
