"""late: what makes rows larger runs after they were moved about, what makes them smaller before."""

from __future__ import annotations

from cedar import graph
from cedar.graph import Node
from cedar.operators.batch import Batch
from cedar.operators.cache import Cache
from cedar.operators.shuffle import Shuffle
from cedar.optimizer.commute import is_row_operator, may_skip, pads
from cedar.optimizer.edit import is_inserted, rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal

_LARGER, _SMALLER = 1.1, 0.9  # of bytes per row, measured; what lies between is not worth a move
_TASK_BYTES = 64 << 10  # moved about in the time that a task of its own takes
_TASK_ROWS = 1024  # of a task above a shuffle, at least


def late(node: Node, facts: Facts) -> Outcome:
    """Operators that give a row for each row move above shuffle and batch, or below shuffle, by measured sizes."""
    below = node.inputs[0] if len(node.inputs) == 1 else None
    if facts.profile is None or below is None:
        return None
    if isinstance(node.operator, Shuffle | Batch) and _growth(below, facts) > _LARGER and _pays(below, node, facts):
        return _swapped(below, node, below, facts, "above")
    if isinstance(below.operator, Shuffle) and _growth(node, facts) < _SMALLER:
        return _swapped(node, node, below, facts, "below")
    return None


def _growth(node: Node, facts: Facts) -> float:
    figures = facts.figures(node)
    movable = is_row_operator(node) and not isinstance(node.operator, Cache) and not is_inserted(node, facts)
    if figures is None or not movable or not figures.bytes_in or node.operator.effects().rows != "1:1":
        return 1.0
    return figures.bytes_out / figures.bytes_in


def _pays(moving: Node, stream: Node, facts: Facts) -> bool:
    """What is not moved about is worth the tasks that the operator then needs: above a batch, one for each."""
    figures = facts.figures(moving)
    assert figures is not None
    rows = stream.operator.size if isinstance(stream.operator, Batch) else _TASK_ROWS
    return (figures.bytes_out - figures.bytes_in) * rows > _TASK_BYTES


def _swapped(moving: Node, above: Node, below: Node, facts: Facts, where: str) -> Outcome:
    """``above`` and ``below`` in the other order; ``moving``, one of them, is the row operator."""
    stream = below if moving is above else above
    reason = _reason(moving, stream, facts) or _shared(below, facts)
    if reason is not None:
        return Refusal(reason, facts.label(moving))
    figures = facts.figures(moving)
    assert figures is not None
    top = rebuilt(below, (rebuilt(above, below.inputs, facts),), facts)
    sizes = f"{figures.bytes_in:,.0f} to {figures.bytes_out:,.0f} bytes a row"
    return Change(top, facts.label(moving), f"{where} {facts.label(stream)} ({sizes})")


def _shared(below: Node, facts: Facts) -> str | None:
    return f"others draw from {facts.label(below)}, too" if facts.consumers[id(below)] > 1 else None


def _reason(moving: Node, stream: Node, facts: Facts) -> str | None:
    operator, writes = stream.operator, moving.operator.effects().writes
    if isinstance(operator, Shuffle) and operator.by is not None and (writes is None or operator.by in writes):
        return f"{facts.label(stream)} groups rows by what it may write"
    if may_skip(moving, facts):
        return "it may skip rows"
    if pads(stream):
        return f"{facts.label(stream)} fills batches up, and it would see what they are filled with"
    if isinstance(operator, Batch):
        skipping = next((n for n in graph.walk(stream) if n.inputs and may_skip(n, facts)), None)
        if skipping is not None or any(facts.skips(source) for source in graph.sources(stream)):
            return "rows may be skipped below"
    return None
