"""Cross and Group: steps that move row operators before or after stream operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from cedar.operators.base import Operator, StreamOperator
from cedar.operators.dedup import MakesGroups
from cedar.plan import graph as graphs
from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts, Refusal
from cedar.plan.steps.reorder import batch_rows, is_row_operator, may_skip, pads
from cedar.plan.steps.step import Step, is_inserted, rebuilt, run_below, shared

Way: TypeAlias = Literal["down", "up"]


@dataclass(frozen=True)
class Cross(Step):
    """Move row operators before ("down") or after ("up") the stream operators next to them.

    Down: an expression filter, or an operator that keeps the number of rows, moves into every input of a stream
    operator. Stream operators that do not count rows (such as a shuffle or a concat) order rows by key, so a filter
    may drop rows before them. It may not if shuffle windows count those rows, or if the filter may skip failing rows.

    Up: operators that keep the number of rows move after a stream operator that reads none of the columns that they
    write. The stream operator receives the same row keys as before, so its output order is unchanged. Its batches must
    not contain padding, and no earlier operator may skip failing rows.

    Args:
        way: "down" moves one operator before its input; "up" moves operators after the last of the stream operators.
        operators: the number of operators that move up.
        streams: the number of stream operators that they move past.
    """

    way: Way
    operators: int = 1
    streams: int = 1

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        return self._check_down(graph, facts) if self.way == "down" else self._check_up(graph, facts)

    def apply(self, graph: Node, facts: Facts) -> Node:
        if self.way == "down":
            (below,) = graph.inputs
            return rebuilt(below, tuple(rebuilt(graph, (child,), facts) for child in below.inputs), facts)
        run = run_below(graph, self.streams + self.operators)
        assert run is not None
        current = run[0].inputs[0]
        for each in (*run[self.operators :], *run[: self.operators]):
            current = rebuilt(each, (current,), facts)
        return current

    def _check_down(self, node: Node, facts: Facts) -> Refusal | None:
        below = node.inputs[0] if len(node.inputs) == 1 else None
        if below is None or not isinstance(below.operator, StreamOperator):
            return Refusal("its input is not a stream operator")
        if node.condition is not None:
            why = filter_stays(node, below, facts)
        elif not movable(node, facts) or len(below.inputs) != 1:
            why = "it does not give a row for each row of one input"
        elif not below.ordering.moves_rows or batch_rows(below) is not None or below.row_use.rows == "balanced":
            why = f"{facts.label(below)} does more than reorder rows"
        else:
            why = stays(node, below, facts) or shared(below, facts)
        return None if why is None else Refusal(why, facts.label(node))

    def _check_up(self, top: Node, facts: Facts) -> Refusal | None:
        run = run_below(top, self.streams + self.operators)
        if run is None or not run[0].inputs or self.operators < 1 or self.streams < 1:
            return Refusal("the graph has no such run of operators")
        moving, streams = run[: self.operators], run[self.operators :]
        for node in run[:-1]:
            if (why := shared(node, facts)) is not None:
                return Refusal(why, facts.label(moving[-1]))
        for stream in streams:
            for node in reversed(moving):
                why = under_limit(node, facts) if stream.row_use.rows == "first" else _lift(node, stream, facts)
                if why is not None:
                    return Refusal(why, facts.label(stream if stream.row_use.rows == "first" else moving[-1]))
        return None


def _lift(node: Node, stream: Node, facts: Facts) -> str | None:
    if not movable(node, facts) and not is_inserted(node, facts):
        return f"{facts.label(node)} does not give a row for each row"
    if not stream.ordering.moves_rows:
        return f"{facts.label(stream)} does more than reorder rows"
    return stays(node, stream, facts)


# ---- filters ---------------------------------------------------------------------------------------------------------


def filter_stays(node: Node, below: Node, facts: Facts) -> str | None:
    """Return why a filter may not move before a stream operator; None if it may."""
    operator, label = below.operator, facts.label(below)
    assert isinstance(operator, StreamOperator)
    if operator.row_use.counts is not None:
        return f"{label} {operator.row_use.counts}"
    if (why := shared(below, facts)) is not None:
        return why
    if may_skip(node, facts):
        return f"it may skip rows, which are distinguished by what is below {label}"
    if operator.ordering.windowed:
        counts = _counted(below.inputs)
        if counts is not None:
            return f"{label} takes its windows from the rows of {facts.label(counts)}"
    elif any(facts.streams(source) for source in graphs.sources(below)):
        return "inputs are read from their beginning, and a shuffle above would count their rows"
    above = _windowed_above(node, facts)
    if above is not None and (operator.ordering.windowed or _counted(below.inputs) is not None):
        return f"{facts.label(above)} takes its windows from the rows of {label}"
    return None


def _windowed_above(node: Node, facts: Facts) -> Node | None:
    """Return the next stream operator after this node if it works window by window; otherwise None."""
    above = list(facts.consumers[id(node)])
    while above:
        current = above.pop()
        if current.ordering.windowed:
            return current
        if is_row_operator(current):
            above += facts.consumers[id(current)]
    return None


def _counted(inputs: tuple[Node, ...]) -> Node | None:
    """Return an earlier node that forces a shuffle to form windows by counting rows; None if there is none."""
    inner = [n for node in inputs for n in graphs.walk(node)]
    streams = (n for n in inner if isinstance(n.operator, StreamOperator) and not n.ordering.preserves_windows)
    return next(streams, None) or next((n for n in inner if n.exact_rows is not None), None)


# ---- same number of rows ---------------------------------------------------------------------------------------------


def movable(node: Node, facts: Facts) -> bool:
    """Return whether a node keeps the number of rows and was not inserted by the optimizer."""
    moves = is_row_operator(node) and node.storage is None and not is_inserted(node, facts)
    return moves and node.effects.rows == "1:1"


def stays(moving: Node, stream: Node, facts: Facts) -> str | None:
    """Return why an operator may not move before or after a stream operator; None if it may."""
    return held(moving, stream, facts) or fixed(stream, facts)


def held(moving: Node, stream: Node, facts: Facts) -> str | None:
    """Return why this operator may not swap with ``stream``; None if it may."""
    reads, writes = stream.effects.reads, moving.effects.writes
    if reads is None or (reads and (writes is None or reads & writes)):
        return f"{facts.label(stream)} groups rows by what it may write"
    return "it may skip rows" if may_skip(moving, facts) else None


def fixed(stream: Node, facts: Facts) -> str | None:
    """Return why no operator may swap with ``stream``; None if some may."""
    if pads(stream):
        return f"{facts.label(stream)} pads batches, and the operator would see the padding"
    if batch_rows(stream) is not None:
        skipping = next((n for n in graphs.walk(stream) if n.inputs and may_skip(n, facts)), None)
        if skipping is not None or any(facts.skips(source) for source in graphs.sources(stream)):
            return "rows may be skipped below"
    return None


def under_limit(below: Node, facts: Facts) -> str | None:
    """Return why ``take`` may not move before an operator; None if it may."""
    label = facts.label(below)
    if not is_row_operator(below) or below.storage is not None:
        return f"{label} does more than process each row"
    if pads(below):
        return f"{label} would see the padding of ranks that have fewer batches"
    if below.effects.rows != "1:1":
        return f"{label} changes the number of rows"
    return f"{label} may skip rows" if may_skip(below, facts) else None


# ---- groups ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group(Step):
    """Move a ``dedup()`` before operators, which can then run once for equal rows.

    A ``dedup()`` changes no values; it finds rows with equal features. It may move before three kinds of operators:
    those that do not write these features; those that run once for equal rows, since equal rows stay equal; and stream
    operators that preserve deduplicated groups.

    Args:
        below: the number of operators that the ``dedup()`` moves before.
    """

    below: int

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        if not isinstance(graph.operator, MakesGroups):
            return Refusal("it finds no equal rows")
        run = run_below(graph, self.below + 1)
        if run is None or self.below < 1 or not run[0].inputs:
            return Refusal("the graph has no such run of operators")
        grouped = features(graph.operator)
        for node in run[-2::-1]:
            if len(facts.consumers[id(node)]) > 1 or not passes_groups(node, grouped):
                return Refusal(f"{facts.label(node)} may change its features, row by row", facts.label(graph))
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        run = run_below(graph, self.below + 1)
        assert run is not None
        current = rebuilt(graph, run[0].inputs, facts)
        for node in run[:-1]:
            current = rebuilt(node, (current,), facts)
        return current


def features(operator: Operator) -> frozenset[str] | None:
    """Return the names of columns that may be in a group; None if any may be."""
    groups = operator.grouping if isinstance(operator, MakesGroups) else ()
    return frozenset(name for group in groups for name in group) or None


def passes_groups(node: Node, grouped: frozenset[str] | None) -> bool:
    """Return whether a ``dedup()`` of these features may move before the node."""
    operator, effects = node.operator, node.effects
    if isinstance(operator, StreamOperator):
        return operator.group_use != "expanded"
    if not is_row_operator(node) or node.storage is not None or isinstance(operator, MakesGroups):
        return False
    if effects.writes is None or effects.rows not in ("1:1", "1:0..1"):
        return False
    independent = not effects.writes if grouped is None else not effects.writes & grouped
    return independent or operator.group_use == "once"
