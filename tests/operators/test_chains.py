"""Chains: neighbors of a family run as one."""

from __future__ import annotations

import cedar
from tests.operators.toy_transforms import ROWS, AddNoise, Refuse, ran


def test_neighbors_of_a_family_run_as_one_and_draw_as_alone():
    p = cedar.from_items(ROWS).map(AddNoise(), "x").map(Refuse(-1), "x").map(AddNoise(7), "x")
    ran().clear()
    together = [row["x"] for row in p]
    assert max(ran()) == 3
    apart = cedar.from_items(ROWS).map(AddNoise(), "x").map(lambda x: x, "x", dtype="int64")
    apart = apart.map(AddNoise(7), "x")
    assert together == [row["x"] for row in apart]
