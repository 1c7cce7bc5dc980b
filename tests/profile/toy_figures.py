"""Profiles of one operator a wall time per row."""

from __future__ import annotations

from cedar.core.block import Observation
from cedar.profile import Machine, OperatorProfile, Profile


def call(rows, wall, out=None, cpu=None, columns=None):
    out = rows if out is None else out
    return Observation(rows, out, 8 * rows, 16 * out, wall, wall if cpu is None else cpu, columns or {"x": 8 * out})


HERE = Machine(cores=2, memory=8 << 30, speed=100.0)


def profile(*walls, rows=1000, machine=HERE, pipeline="abc", **more):
    """One operator a wall time per row."""
    operators = {i: OperatorProfile(f"map(f{i})", 10, rows, wall, wall) for i, wall in enumerate(walls)}
    return Profile(pipeline, operators, machine, rows=rows, seconds=1.0, **more)
