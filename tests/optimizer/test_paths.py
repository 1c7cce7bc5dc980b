"""Orders of one chain: exact and local search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.optimizer import joint, paths
from tests.optimizer.toy_profiles import facts_of, figures, model_of
from tests.optimizer.toy_searches import BOTH, ROWS, late, least, pipelines, precedences_of, work


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
def test_the_local_search_comes_near(made, places):
    root, found = made
    facts = facts_of(root, found)
    model = model_of(root, facts, places)
    precedences = precedences_of(model, facts)
    exact, _ = joint.best(model, precedences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "exact_paths", lambda *_: None)
        near, method = joint.best(model, precedences)
    assert method == "local"
    assert near.slowest <= exact.slowest * 1.1
    for path, precedence in zip(near.paths, precedences, strict=True):
        done = 0
        for i in path.order:
            assert not precedence.before[i] & ~done
            done |= 1 << i


def test_a_long_chain_runs_filters_first_with_what_they_read():
    rows = [dict.fromkeys("abcdefghijklmnopqrst", 1.0)]
    pipeline, found = cedar.from_items(rows), {0: figures(1e-7, columns=dict.fromkeys(rows[0], 8.0))}
    for number, name in enumerate(rows[0]):
        pipeline = pipeline.map(work, name)
        found[number + 1] = figures(1e-5, gil=1.0, columns={name: 8.0})
    root = pipeline.filter(late, "k").filter(late, "r").node
    found |= {21: figures(1e-7, keep=0.5), 22: figures(1e-7, keep=0.1)}
    facts = facts_of(root, found)
    model = model_of(root, facts, BOTH)
    plan, method = joint.best(model, precedences_of(model, facts))
    assert method == "local"
    (path,) = plan.paths
    assert path.order[:4] == (17, 21, 10, 20)


def test_a_chain_with_too_many_orders_is_not_searched_exactly(monkeypatch):
    pipeline = cedar.from_items(ROWS)
    for name in "abcd":
        pipeline = pipeline.filter(late, name)
    facts = facts_of(pipeline.node, {0: figures(1e-6)})
    model = model_of(pipeline.node, facts)
    (precedence,) = precedences_of(model, facts)
    for sets, searched in ((15, False), (16, True)):  # of four operators in any order
        monkeypatch.setattr(paths, "MAX_SETS", sets)
        assert bool(paths.exact_paths(model.costs[0], precedence, model.base, 1.0)) is searched
