"""inexact: with ``exact=False``, a transform does what is cheaper and differs no more than it says."""

from __future__ import annotations

from dataclasses import replace

from cedar.graph import Node
from cedar.operators.chains import Link
from cedar.operators.map import Map
from cedar.operators.transform import Transform
from cedar.optimizer.edit import rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome


def inexact(node: Node, facts: Facts) -> Outcome:
    """The lowest transform of a chain that ends with ``node``, where what is above it allows it to do less."""
    if facts.exact:
        return None
    above: list[Node] = []
    current = node
    while (link := _link(current)) is not None:
        operator = current.operator
        assert isinstance(operator, Map)
        how = link.transform.tolerance([each.transform for each in map(_link, above) if each is not None])
        if how and operator.exact:
            changed = rebuilt(current, current.inputs, facts, replace(operator, exact=False))
            for upper in above:
                changed = rebuilt(upper, (changed,), facts)
            return Change(changed, facts.label(current), how)
        above.insert(0, current)
        (below,) = current.inputs
        lower = _link(below)
        if lower is None or len(facts.consumers[id(below)]) > 1 or not _joins(lower, link):
            return None
        current = below
    return None


def _link(node: Node) -> Link | None:
    operator = node.operator
    if not isinstance(operator, Map) or not isinstance(operator.fn, Transform):
        return None
    return Link(operator.fn, operator.columns, operator.written, operator.exact)


def _joins(lower: Link, upper: Link) -> bool:
    chain = lower.transform.chain
    return chain is not None and upper.transform.chain is chain and chain.joins([lower], upper)
