"""What a search says of what it did not do."""

from __future__ import annotations

import cedar
from cedar import col
from cedar.optimizer.budget import Budget
from cedar.optimizer.search import search
from tests.optimizer.toy_profiles import facts_of, figures, names
from tests.optimizer.toy_searches import ROWS, work


def test_a_filter_that_may_not_move_says_why():
    root = cedar.from_items(ROWS).map(work, "a").filter(col("a") > 0).node
    found = {0: figures(1e-6), 1: figures(40e-6), 2: figures(0.2e-6, keep=0.1)}
    chosen = search(root, facts_of(root, found), Budget(), ("threads",), 4)
    (decision,) = chosen.decisions
    assert not decision.applied
    assert "before map(work)" in decision.what
    assert "'a'" in decision.why


def test_an_operator_that_no_row_reached_says_so():
    root = cedar.from_items(ROWS).map(work, "a").filter(col("b") > 0).node
    facts = facts_of(root, {0: figures(1e-6), 1: figures(1e-5)})
    chosen = search(root, facts, Budget(), ("threads",), 4)
    assert names(chosen.root) == names(root)
    assert [(d.rule, d.applied) for d in chosen.decisions] == [("profile", False)]
