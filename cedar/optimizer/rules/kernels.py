"""group_expressions and inexact: rules about operators that run together as one query or one kernel."""

from __future__ import annotations

from cedar.operators.expressions import ByExpressions
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.plan.graph import Node
from cedar.plan.steps.reorder import Reorder, falls_away, is_row_operator, may_swap
from cedar.plan.steps.single import Loosen, joins

_WORTH = 0.05  # minimum fraction of a block's time to save; a changed order needs audits, which cost about 3%
_LARGER = 1.1  # growth in bytes per row above which an expression does not move down


def group_expressions(node: Node, facts: Facts) -> Outcome:
    """Move an expression below operators that keep the number of rows, if one call less saves enough time.

    The search does not do this: it orders operators by row counts, and keeps the order as written among equals.
    """
    if facts.profile is None or node.filters or not _is_query(node):
        return None
    passed, below = _between(node, facts)
    if not passed or below is None:
        return None
    figures = facts.figures(node)
    if figures is None or figures.bytes_out > _LARGER * figures.bytes_in:
        return None
    saved, total = _saved(node, below, facts), sum(_block(n, facts) for n in (node, *passed, below))
    if saved <= _WORTH * total:
        return Refusal(f"next to {facts.label(below)} it would save {saved * 1e6:.0f} of {total * 1e6:,.0f} us a block")
    count = sum(not falls_away(each, facts) for each in passed)
    return Change(
        Reorder((count, *range(count))),
        facts.label(node),
        f"next to {facts.label(below)} (saves {saved * 1e6:.0f} us a block)",
    )


def _is_query(node: Node) -> bool:
    return isinstance(node.operator, ByExpressions) and bool(node.operator.code())


def _between(node: Node, facts: Facts) -> tuple[list[Node], Node | None]:
    """Return the operators that ``node`` may run before, top first, and the expression below them."""
    passed: list[Node] = []
    current = node.inputs[0]
    while is_row_operator(current) and len(facts.consumers[id(current)]) == 1 and current.place == node.place:
        if _is_query(current):
            return passed, current
        if current.effects.rows != "1:1" or may_swap(current, node, facts) is not None:
            break
        passed.append(current)
        current = current.inputs[0]
    return passed, None


def _saved(node: Node, below: Node, facts: Facts) -> float:
    """Return the seconds per block that merging two calls into one saves."""
    first, second = facts.figures(node), facts.figures(below)
    return min(first.call, second.call) if first is not None and second is not None else 0.0


def _block(node: Node, facts: Facts) -> float:
    """Return the operator's seconds per block."""
    figures = facts.figures(node)
    return figures.wall * figures.rows / figures.calls if figures is not None and figures.calls else 0.0


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
