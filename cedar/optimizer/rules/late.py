"""late: runs operators that enlarge rows after shuffles and batches, and operators that shrink rows before shuffles."""

from __future__ import annotations

from cedar.optimizer.facts import Change, Facts, Outcome
from cedar.plan.graph import Node
from cedar.plan.steps.cross import Cross, fixed, held, movable, stays
from cedar.plan.steps.reorder import batch_rows
from cedar.plan.steps.single import joins
from cedar.plan.steps.step import shared

_LARGER, _SMALLER = 1.1, 0.9  # measured growth in bytes per row; in between, a move does not pay off
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
