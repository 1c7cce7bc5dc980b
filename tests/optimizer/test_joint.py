"""Chains that share a machine are searched together: against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.optimizer import joint
from tests.optimizer.toy_profiles import facts_of, model_of
from tests.optimizer.toy_searches import BOTH, least, pipelines, precedences_of


@given(pipelines(most=2), pipelines(most=2), st.sampled_from([("threads",), BOTH]))
def test_chains_are_searched_together(first, second, places):
    (left, found), (right, more) = first, second
    root = cedar.concat(cedar.Pipeline(left), cedar.Pipeline(right)).node
    facts = facts_of(root, found | {i + len(found): each for i, each in more.items()})
    model = model_of(root, facts, places)
    precedences = precedences_of(model, facts)
    plan, _ = joint.best(model, precedences)
    assert plan.slowest == pytest.approx(least(model, precedences), rel=1e-6)
