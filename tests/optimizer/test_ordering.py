"""Orders: how many sets of operators there are, and moves that gain nothing."""

from __future__ import annotations

import cedar
from cedar import col
from cedar.optimizer.budget import Budget
from cedar.optimizer.ordering import count_sets, find_precedence
from cedar.optimizer.search import search
from cedar.plan.steps.commute import may_swap
from tests.optimizer.toy_profiles import MACHINE, facts_of, figures, model_of, names
from tests.optimizer.toy_searches import ROWS, late, work


def test_the_sets_of_free_operators_are_counted():
    pipeline = cedar.from_items(ROWS)
    for name in "abcd":
        pipeline = pipeline.filter(late, name)
    root = pipeline.node
    facts = facts_of(root, {0: figures(1e-6)}, machine=MACHINE)
    (cost,) = model_of(root, facts).costs
    assert count_sets(find_precedence(cost.chain, facts, may_swap), 100) == 16
    assert count_sets(find_precedence(cost.chain, facts, may_swap), 10) > 10


def test_what_gains_nothing_stays():
    root = cedar.from_items(ROWS).map(work, "a").filter(col("c") > 0).filter(col("b") > 0).node
    found = {0: figures(1e-3), 1: figures(1e-6), 2: figures(1e-6, keep=0.9), 3: figures(1e-6, keep=0.5)}
    chosen = search(root, facts_of(root, found), Budget(), ("threads",), 4)
    assert names(chosen.root) == names(root)
    assert chosen.decisions == ()
