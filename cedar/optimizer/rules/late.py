"""late: what makes rows larger runs after they were moved about, what makes them smaller before."""

from __future__ import annotations

from cedar.optimizer.commute import batch_rows, is_row_operator, may_skip, moves_rows, over_ranks, pads
from cedar.optimizer.edit import is_inserted, rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.optimizer.measure import declares_growth, growth
from cedar.plan import graph
from cedar.plan.graph import Node

_LARGER, _SMALLER = 1.1, 0.9  # of bytes per row, measured; what lies between is not worth a move
_ABOUT = 0.6  # rows may be larger by so much where that spares a kernel, and tasks, of its own
_TASK_BYTES = 64 << 10  # moved about in the time that a task of its own takes
_TASK_ROWS = 1024  # of a task above a shuffle, at least


def late(node: Node, facts: Facts) -> Outcome:
    """Operators that give a row for each row move above shuffle and batch, or below shuffle, by measured sizes; and
    above what deals rows to ranks, whatever their sizes: what is below it is computed for all ranks.
    """
    below = node.inputs[0] if len(node.inputs) == 1 else None
    if below is None:
        return None
    if over_ranks(node):
        return _owned(node, facts)
    if over_ranks(below):
        return None
    if facts.profile is None:
        return _declared(node, below, facts)
    if moves_rows(node):
        first = _first_grown(below, node, facts)
        if first is not None:
            return _lifted(node, below, first, facts)
    if batch_rows(below) is not None:
        return _joined(node, below, facts)
    if moves_rows(below) and _movable(node, facts) and _growth(node, node, facts) < _SMALLER:
        return _sunk(node, below, facts)
    return None


def _declared(stream: Node, below: Node, facts: Facts) -> Outcome:
    """Before anything is measured: what decodes, and what follows it, moves above a batch."""
    if not moves_rows(stream):
        return None
    current = below
    while _movable(current, facts) and _held(current, stream, facts) is None and _shared(current, facts) is None:
        if declares_growth(current):
            if _fixed(stream, facts) is not None:
                return None
            how = f"above {facts.label(stream)} ({facts.label(current)} makes rows larger)"
            return Change(_above(stream, below, current, facts), facts.label(below), how)
        current = current.inputs[0]
    return None


def _owned(balance: Node, facts: Facts) -> Outcome:
    """The operator below ``balance``, and below the shuffles and the batch there are between the two, above it."""
    streams = [balance]
    while moves_rows(below := streams[-1].inputs[0]):
        streams.append(below)
    if not _movable(below, facts) or below.operator.projection is not None:
        return None
    for stream in streams:
        shared = None if stream is balance else _shared(stream, facts)
        if (reason := _reason(below, stream, facts) or shared) is not None:
            return Refusal(reason, facts.label(below))
    if (reason := _shared(below, facts)) is not None:
        return Refusal(reason, facts.label(below))
    current = below.inputs[0]
    for stream in reversed(streams):
        current = rebuilt(stream, (current,), facts)
    how = f"above {facts.label(balance)} (for a rank's own rows alone)"
    return Change(rebuilt(below, (current,), facts), facts.label(below), how)


def _first_grown(top: Node, stream: Node, facts: Facts) -> Node | None:
    """The operator that ``top``, right below ``stream``, has to move above it for: rows that enter it are so small that
    it pays to move them instead. It is ``top`` itself, or one below it that may follow it, as decoding follows a crop.
    """
    current = top
    while _movable(current, facts) and (current is top or _held(current, stream, facts) is None):
        if _growth(current, top, facts) > _LARGER and _pays(current, top, stream, facts):
            return current if current is top or _fixed(stream, facts) is None else None
        current = current.inputs[0]
        if len(facts.consumers[id(current)]) > 1:
            break
    return None


def _joined(node: Node, batch: Node, facts: Facts) -> Outcome:
    """What would run as one kernel with an operator above a batch goes there, too, where rows are about as large."""
    moving = batch.inputs[0]
    if not (_movable(moving, facts) and _one_kernel(moving, node) and _growth(moving, moving, facts) > _ABOUT):
        return None
    if _reason(moving, batch, facts) or _shared(moving, facts) or _shared(batch, facts):
        return None
    lower = rebuilt(moving, (rebuilt(batch, moving.inputs, facts),), facts)
    why = f"above {facts.label(batch)} (one kernel with {facts.label(node)})"
    return Change(rebuilt(node, (lower,), facts), facts.label(moving), why)


def _one_kernel(below: Node, above: Node) -> bool:
    one, other = below.operator.link, above.operator.link
    chain = None if one is None else one.transform.chain
    if one is None or other is None or chain is None:
        return False
    return other.transform.chain is chain and chain.joins([one], other)


def _movable(node: Node, facts: Facts) -> bool:
    movable = is_row_operator(node) and node.operator.storage is None and not is_inserted(node, facts)
    return movable and node.effects.rows == "1:1"


def _growth(node: Node, top: Node, facts: Facts) -> float:
    """How many times larger rows are behind ``top`` than they were before ``node``, below it."""
    factor = growth(top, facts)
    while top is not node:
        top = top.inputs[0]
        factor *= growth(top, facts)
    return factor


def _pays(node: Node, top: Node, stream: Node, facts: Facts) -> bool:
    """What is not moved about is worth the tasks that the operators then need: above a batch, one for each."""
    before, after = facts.figures(node), facts.figures(top)
    if before is None or after is None:
        return False
    rows = batch_rows(stream) or _TASK_ROWS
    return (after.bytes_out - before.bytes_in) * rows > _TASK_BYTES


def _lifted(stream: Node, top: Node, first: Node, facts: Facts) -> Outcome:
    """The operators from ``first`` up to ``top``, right below ``stream``, above it."""
    reason = _reason(top, stream, facts) or _shared(top, facts)
    if reason is not None:
        return Refusal(reason, facts.label(top))
    told = f"above {facts.label(stream)} ({_sizes(first, top, facts)})"
    return Change(_above(stream, top, first, facts), facts.label(top), told)


def _above(stream: Node, top: Node, first: Node, facts: Facts) -> Node:
    """All from ``first`` up to ``top`` at once: on the way, rows may be larger than they are at either end."""
    run = [top]
    while run[-1] is not first:
        run.append(run[-1].inputs[0])
    current = rebuilt(stream, first.inputs, facts)
    for each in reversed(run):
        current = rebuilt(each, (current,), facts)
    return current


def _sunk(node: Node, stream: Node, facts: Facts) -> Outcome:
    """``node``, right above ``stream``, below it."""
    reason = _reason(node, stream, facts) or _shared(stream, facts)
    if reason is not None:
        return Refusal(reason, facts.label(node))
    top = rebuilt(stream, (rebuilt(node, stream.inputs, facts),), facts)
    return Change(top, facts.label(node), f"below {facts.label(stream)} ({_sizes(node, node, facts)})")


def _sizes(first: Node, last: Node, facts: Facts) -> str:
    before, after = facts.figures(first), facts.figures(last)
    assert before is not None
    assert after is not None
    sizes = f"{before.bytes_in:,.0f} to {after.bytes_out:,.0f} bytes a row"
    return sizes if first is last else f"{sizes} from {facts.label(first)} on"


def _shared(below: Node, facts: Facts) -> str | None:
    return f"others draw from {facts.label(below)}, too" if len(facts.consumers[id(below)]) > 1 else None


def _reason(moving: Node, stream: Node, facts: Facts) -> str | None:
    return _held(moving, stream, facts) or _fixed(stream, facts)


def _held(moving: Node, stream: Node, facts: Facts) -> str | None:
    """What keeps an operator on its side of ``stream``."""
    reads, writes = stream.effects.reads, moving.effects.writes
    if reads is None or (reads and (writes is None or reads & writes)):
        return f"{facts.label(stream)} groups rows by what it may write"
    return "it may skip rows" if may_skip(moving, facts) else None


def _fixed(stream: Node, facts: Facts) -> str | None:
    """What keeps every operator on its side of ``stream``."""
    if pads(stream):
        return f"{facts.label(stream)} fills batches up, and it would see what they are filled with"
    if batch_rows(stream) is not None:
        skipping = next((n for n in graph.walk(stream) if n.inputs and may_skip(n, facts)), None)
        if skipping is not None or any(facts.skips(source) for source in graph.sources(stream)):
            return "rows may be skipped below"
    return None
