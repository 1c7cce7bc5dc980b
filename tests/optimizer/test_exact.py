"""The exact search against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.optimizer import joint
from tests.optimizer.toy_profiles import facts_of, model_of
from tests.optimizer.toy_searches import BOTH, least, pipelines, precedences_of


@given(pipelines(), st.sampled_from([("threads",), BOTH, ("processes",)]))
def test_the_exact_search_finds_the_best_of_all_plans(made, places):
    root, found = made
    facts = facts_of(root, found)
    model = model_of(root, facts, places)
    precedences = precedences_of(model, facts)
    plan, method = joint.best(model, precedences)
    assert method == "exact"
    assert plan.slowest == pytest.approx(least(model, precedences), rel=1e-6)
