"""What was measured of operators: work, and invalid waiting."""

from __future__ import annotations

import pytest

import cedar
from cedar.optimizer.loads import find_loads
from tests.operators.toy_transforms import Refuse
from tests.optimizer.toy_costs import ROWS, first, two_maps
from tests.optimizer.toy_profiles import facts_of, figures


@pytest.mark.parametrize(("workers", "gil"), [(4, 1.0), (16, 0.0)])
def test_a_wall_time_that_others_explain_is_no_waiting(workers, gil):
    root = two_maps()
    crowded = {i: figures(10e-6, wall=39e-6, gil=gil) for i in range(4)}
    alone = facts_of(root, crowded, workers=1)
    assert find_loads(root, alone)[id(root)].wait == pytest.approx(29e-6)
    assert find_loads(root, facts_of(root, crowded, workers=workers))[id(root)].wait == 0


def test_what_only_computes_waits_for_nothing():
    root = cedar.from_items(ROWS).map(first, "a").map(Refuse(7), "a").node
    facts = facts_of(root, {i: figures(10e-6, wall=900e-6) for i in range(3)}, workers=1)
    found = find_loads(root, facts)
    assert found[id(root)].wait == 0
    assert found[id(root.inputs[0])].wait == pytest.approx(890e-6), "a function of the user's may"
