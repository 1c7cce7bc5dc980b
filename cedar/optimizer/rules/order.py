"""late, group_expressions and inexact: rules that run operators where rows are smaller, or in one call or kernel."""

from __future__ import annotations

from cedar.operators.expressions import ByExpressions
from cedar.optimizer.rewrite import Change, Outcome
from cedar.plan.graph import Node
from cedar.plan.steps.order import (
    Cross,
    Reorder,
    batch_rows,
    falls_away,
    fixed,
    held,
    may_swap,
    movable,
    stays,
)
from cedar.plan.steps.single import Loosen, joins
from cedar.plan.steps.step import Facts, Refusal, shared

_LARGER, _SMALLER = 1.1, 0.9  # measured growth in bytes per row; in between, a move does not pay off
_WORTH = 0.05  # minimum fraction of a block's time to save; a changed order needs audits, which cost about 3%
_SAME_SIZE = 0.6  # minimum growth for an operator to move above a batch in order to form one kernel there
_TASK_BYTES = 64 << 10  # bytes that can be moved in the time an extra task costs
_TASK_ROWS = 1024  # minimum rows of a task above a shuffle


def late(node: Node, facts: Facts) -> Outcome:
    """Move operators that keep the number of rows above shuffle and batch, or below shuffle, by measured sizes. They
    always move above operators that distribute rows over ranks, because below those they process all ranks' rows.
    """
    below = node.inputs[0] if len(node.inputs) == 1 else None
    if below is None:
        return None
    if node.row_use.rows == "balanced":
        return _move_above_ranks(node, facts)
    if below.row_use.rows == "balanced":
        return None
    if facts.profile is None:
        return _move_declared(node, below, facts)
    if node.ordering.moves_rows:
        first = _first_grown(below, node, facts)
        if first is not None:  # all operators from there move in one step, since rows may be largest between them
            how = f"above {facts.label(node)} ({_sizes(first, below, facts)})"
            return Change(Cross("up", _count(below, first)), facts.label(below), how)
    if batch_rows(node) is not None:
        return _join_kernel(node, facts)
    if (
        below.ordering.moves_rows
        and batch_rows(below) is None
        and movable(node, facts)
        and _growth(node, node, facts) < _SMALLER
    ):
        how = f"below {facts.label(below)} ({_sizes(node, node, facts)})"
        return Change(Cross("down"), facts.label(node), how)
    return None


def _move_declared(stream: Node, below: Node, facts: Facts) -> Outcome:
    """Before any measurement, move decoding operators, and those after them, above a batch."""
    if not stream.ordering.moves_rows:
        return None
    current = below
    while movable(current, facts) and held(current, stream, facts) is None and shared(current, facts) is None:
        if current.link is not None and current.link.transform.larger:
            if fixed(stream, facts) is not None:
                return None
            how = f"above {facts.label(stream)} ({facts.label(current)} makes rows larger)"
            return Change(Cross("up", _count(below, current)), facts.label(below), how)
        current = current.inputs[0]
    return None


def _move_above_ranks(balance: Node, facts: Facts) -> Outcome:
    """Move the operator below ``balance``, and below any shuffles and batch in between, above them."""
    streams = [balance]
    while (below := streams[-1].inputs[0]).ordering.moves_rows:
        streams.append(below)
    if not movable(below, facts) or below.projection is not None:
        return None
    how = f"above {facts.label(balance)} (for a rank's own rows alone)"
    return Change(Cross("up", 1, len(streams)), facts.label(below), how)


def _first_grown(top: Node, stream: Node, facts: Facts) -> Node | None:
    """Return the first operator, from ``top`` down, whose input rows are so much smaller than the output of ``top``
    that moving all operators from it to ``top`` above ``stream`` saves time, such as a decoder below a crop.
    """
    current = top
    while movable(current, facts) and (current is top or held(current, stream, facts) is None):
        if _growth(current, top, facts) > _LARGER and _pays(current, top, stream, facts):
            return current if current is top or fixed(stream, facts) is None else None
        current = current.inputs[0]
        if len(facts.consumers[id(current)]) > 1:
            break
    return None


def _join_kernel(batch: Node, facts: Facts) -> Outcome:
    """Move an operator above a batch if it forms one kernel with the next operator, and row sizes are about equal."""
    moving, above = batch.inputs[0], facts.consumers[id(batch)]
    node = above[0] if len(above) == 1 else None
    if node is None or not movable(moving, facts) or moving.link is None or node.link is None:
        return None
    if not joins(moving.link, node.link):
        return None
    if _growth(moving, moving, facts) <= _SAME_SIZE or stays(moving, batch, facts) or shared(moving, facts):
        return None
    why = f"above {facts.label(batch)} (one kernel with {facts.label(node)})"
    return Change(Cross("up"), facts.label(moving), why)


def _growth(node: Node, top: Node, facts: Facts) -> float:
    """Return the size of rows after ``top`` relative to their size before ``node``, which is below it."""
    factor = growth(top, facts)
    while top is not node:
        top = top.inputs[0]
        factor *= growth(top, facts)
    return factor


def _pays(node: Node, top: Node, stream: Node, facts: Facts) -> bool:
    """Return whether moving fewer bytes saves more time than extra tasks above the stream operator cost."""
    before, after = facts.figures(node), facts.figures(top)
    if before is None or after is None:
        return False
    rows = batch_rows(stream) or _TASK_ROWS
    return (after.bytes_out - before.bytes_in) * rows > _TASK_BYTES


def _count(top: Node, lowest: Node) -> int:
    """Return the number of operators from one down to another, both included."""
    count = 1
    while top is not lowest:
        top, count = top.inputs[0], count + 1
    return count


def _sizes(first: Node, last: Node, facts: Facts) -> str:
    before, after = facts.figures(first), facts.figures(last)
    assert before is not None
    assert after is not None
    sizes = f"{before.bytes_in:,.0f} to {after.bytes_out:,.0f} bytes a row"
    return sizes if first is last else f"{sizes} from {facts.label(first)} on"


def growth(node: Node, facts: Facts) -> float:
    """Return the measured size of an operator's output rows relative to its input rows; 1 if unknown."""
    figures = facts.figures(node)
    if figures is None or figures.bytes_in <= 0 or figures.bytes_out <= 0:
        return 1.0
    return figures.bytes_out / figures.bytes_in


# ---- expressions and kernels -----------------------------------------------------------------------------------------


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
    while current.is_row_operator and len(facts.consumers[id(current)]) == 1 and current.place == node.place:
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
