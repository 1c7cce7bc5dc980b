"""Orders of one chain: exact and beam search."""

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


@pytest.mark.heavy
@given(pipelines(most=7, least=4), st.sampled_from([("threads",), BOTH]))
def test_the_beam_comes_near(made, places):
    root, found = made
    facts = facts_of(root, found)
    model = model_of(root, facts, places)
    precedences = precedences_of(model, facts)
    exact, _ = joint.best(model, precedences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "MAX_SETS", 0)
        near, method = joint.best(model, precedences)
    assert method == "beam"
    assert near.slowest <= exact.slowest * 1.1
