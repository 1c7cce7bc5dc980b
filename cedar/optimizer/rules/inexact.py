"""inexact: with ``exact=False``, lets a transform use a cheaper method within its declared tolerance."""

from __future__ import annotations

from cedar.optimizer.facts import Change, Facts, Outcome
from cedar.plan.graph import Node
from cedar.plan.steps.single import Loosen, joins


def inexact(node: Node, facts: Facts) -> Outcome:
    """Allow approximation in the lowest transform of the chain that ends in ``node``, if those above it permit it."""
    if facts.exact:
        return None
    above: list[Node] = []
    current = node
    while (link := current.link) is not None:
        how = link.transform.tolerance([each.transform for n in above if (each := n.link) is not None])
        if how and link.exact:
            return Change(Loosen(len(above)), facts.label(current), how)
        above.insert(0, current)
        (below,) = current.inputs
        lower = below.link
        if lower is None or len(facts.consumers[id(below)]) > 1 or not joins(lower, link):
            return None
        current = below
    return None
