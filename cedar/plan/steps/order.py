"""Steps that change the order of operators: Reorder, and Cross and Group, which move them past stream operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cedar.operators.base import Algebra, Operator, StreamOperator
from cedar.operators.batch import MakesBatches
from cedar.operators.dedup import MakesGroups
from cedar.operators.expressions import ColumnEdit
from cedar.plan import graph as graphs
from cedar.plan.graph import Node
from cedar.plan.steps.step import Facts, Refusal, Step, is_inserted, rebuilt, run_below, shared

_COMMUTING: frozenset[frozenset[Algebra]] = frozenset(
    {frozenset({"spatial", "pointwise"}), frozenset({"length", "per-value"})}
)


def may_swap(below: Node, above: Node, facts: Facts) -> Refusal | None:
    """Return why ``above`` may not run before ``below``, its input; None if it may.

    A swap may change the order of columns, which ``KeepOrder`` restores later. It may also change on which rows a
    function is called, so the function may fail on rows that a filter dropped before the swap.
    """
    for check in _CHECKS:
        reason = check(below, above, facts)
        if reason is not None:
            return Refusal(reason, facts.label(above))
    return None


def rivals(run: Sequence[Node], facts: Facts) -> list[Collection[int]]:
    """Return, for each operator of a run (inputs first), the earlier ones that ``may_swap`` might not swap with it.

    Operators that do no more than use columns may swap unless one writes a column that the other reads or writes.
    """
    writers, users = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    others: list[int] = []  # operators that do more than use columns
    found: list[Collection[int]] = []
    for i, node in enumerate(run):
        effects, reads, writes = node.effects, node.effects.reads, node.effects.writes
        simple = effects.rows in ("1:1", "1:0..1") and effects.survivors is None and not may_skip(node, facts)
        simple = simple and _kinds(node, node, facts) is None and not isinstance(node.operator, MakesGroups)
        if not simple or reads is None or writes is None or (writes - reads and node.inputs[0].schema is None):
            found.append(range(i))
            others.append(i)
            continue
        found.append(set(others).union(*(users[name] for name in writes), *(writers[name] for name in reads)))
        for name in writes:
            writers[name].append(i)
        for name in reads | writes:
            users[name].append(i)
    return found


def batch_rows(node: Node) -> int | None:
    """Return the batch size if the node creates batches of equal size."""
    return node.operator.batch_rows if isinstance(node.operator, MakesBatches) else None


def may_skip(node: Node, facts: Facts) -> bool:
    """Return whether a policy may skip rows on which the operator fails."""
    return node.operator.may_fail and facts.skips(node)


def pads(node: Node) -> bool:
    """Return whether the node's units come from ``batch(last="pad")``, so that ranks may get all-padding batches."""
    while node.inputs:
        if isinstance(node.operator, MakesBatches) and node.operator.batch_rows is not None:
            return node.operator.last == "pad"
        node = node.inputs[0]
    return False


def _kinds(below: Node, above: Node, facts: Facts) -> str | None:
    for node in (below, above):
        if not node.is_row_operator:
            return f"{facts.label(node)} works across rows"
        if node.storage is not None:
            return f"{facts.label(node)} would keep other columns"
    return None


def _walls(below: Node, above: Node, facts: Facts) -> str | None:
    for node, other in ((below, above), (above, below)):
        mine, theirs = node.effects, other.effects
        if mine.writes is None:
            return f"{facts.label(node)} may write any column"
        if mine.reads is None and (theirs.writes is None or theirs.writes or theirs.survivors is not None):
            return f"{facts.label(node)} may read any column"
    return None


def _runs_once(below: Node, above: Node, facts: Facts) -> str | None:
    """Refuse to move an operator before a ``dedup`` if it runs only once for rows that this ``dedup`` finds equal."""
    if not isinstance(below.operator, MakesGroups) or above.operator.group_use != "once":
        return None
    groups, reads = below.operator.grouping, above.effects.reads
    if reads is None or (groups and not any(reads <= set(group) for group in groups)):
        return None
    return f"it runs once for equal rows above {facts.label(below)}"


def _columns(below: Node, above: Node, facts: Facts) -> str | None:
    first, second = below.effects, above.effects
    own, *others = {first.reads, first.writes, second.reads, second.writes}
    if not others and own is not None and len(own) == 1:  # they read and write this column and no other
        return _algebra(below, above, facts)
    for node, mine, other, theirs in ((below, first, above, second), (above, second, below, first)):
        touched = (mine.writes or frozenset()) & ((theirs.reads or frozenset()) | (theirs.writes or frozenset()))
        if touched:
            doing = "uses" if touched & (theirs.reads or frozenset()) else "writes, too"
            return f"{facts.label(node)} writes {_named(touched)}, which {facts.label(other)} {doing}"
    return None


def _algebra(below: Node, above: Node, facts: Facts) -> str | None:
    first, second = below.effects, above.effects
    if first.rows == second.rows == "1:1" and first.algebra and second.algebra:
        if frozenset({first.algebra, second.algebra}) in _COMMUTING:
            return None
        return f"{first.algebra} and {second.algebra} operators do not commute"
    column = _named(first.writes or frozenset())
    return f"{facts.label(below)} and {facts.label(above)} both change {column}, and do not say how"


def _survivors(below: Node, above: Node, facts: Facts) -> str | None:
    """Refuse a swap if one operator keeps only some columns, and the other reads different ones or adds columns."""
    for node, other in ((below, above), (above, below)):
        survivors, theirs = node.effects.survivors, other.effects
        if survivors is None:
            continue
        if theirs.writes or theirs.survivors is not None:
            return f"{facts.label(node)} drops what {facts.label(other)} writes"
        lost = (theirs.reads or frozenset()) - survivors
        if lost:
            return f"{facts.label(node)} drops {_named(lost)}, which {facts.label(other)} uses"
    return None


def _order(below: Node, above: Node, _facts: Facts) -> str | None:
    """Refuse a swap of operators that both append columns if column names, and so the original order, are unknown."""
    if below.inputs[0].schema is not None:
        return None
    for node in (below, above):
        effects = node.effects
        new = (effects.writes or frozenset()) - (effects.reads or frozenset())
        if not new or isinstance(node.operator, ColumnEdit):
            return None
    return "both may add columns to rows whose columns are not known, and their order would change"


def _rows(below: Node, above: Node, facts: Facts) -> str | None:
    first, second = below.effects, above.effects
    if first.rows == second.rows == "1:n":
        return "both make rows of a row, and their order would change"
    for node, mine, theirs in ((below, first, second), (above, second, first)):
        if (mine.random or node.by_keys) and theirs.rows == "1:n":
            return f"{facts.label(node)} draws by row key, and the other makes new keys"
    return None


def _skipped(below: Node, above: Node, facts: Facts) -> str | None:
    """Refuse a swap that changes which operator skips a failing row or which rows other operators process."""
    skips = may_skip(below, facts), may_skip(above, facts)
    for node, other in ((below, above), (above, below)):
        if not skips[node is above]:
            continue
        if all(skips):
            return f"{facts.label(node)} and {facts.label(other)} may both skip rows"
        if other.effects.rows != "1:1":
            return f"{facts.label(node)} may skip rows that {facts.label(other)} drops or repeats"
        if below.batched:
            return f"{facts.label(node)} may skip rows out of the batch that {facts.label(other)} sees"
    return None


def _named(names: frozenset[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


_CHECKS: tuple[Callable[[Node, Node, Facts], str | None], ...] = (
    _kinds, _walls, _runs_once, _columns, _survivors, _order, _rows, _skipped,
)  # fmt: skip


@dataclass(frozen=True)
class Reorder(Step):
    """Put adjacent row operators into another order.

    A row operator processes each row independently of other rows. ``may_swap`` decides for two adjacent operators
    whether they give the same rows in either order: neither may read or drop a column that the other writes, and the
    same operator must skip each failing row. Any order can be reached by swapping neighbors, so it suffices to check
    each pair of operators whose order changes, and of those only ``rivals``.

    The step removes selections that the optimizer inserted only for the order of columns, which is restored after all
    steps. It keeps selections that drop columns, because a later ``drop`` may rely on these columns being gone.

    Args:
        order: the new order, as indices of the operators in the current order (inputs first).
    """

    order: tuple[int, ...]

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        found = self._run(graph, facts)
        if found is None or sorted(self.order) != list(range(len(self.order))):
            return Refusal("the graph has no such run of operators")
        run, between, _ = found
        if self.order == tuple(range(len(run))) and len(between) < len(run):
            return Refusal("the operators are already in this order")
        for node in between:
            if (why := shared(node, facts)) is not None:
                return Refusal(why, facts.label(graph))
        earlier, done = rivals(run, facts), set[int]()
        for i in self.order:
            for below in sorted(set(earlier[i]) - done):
                if (refused := may_swap(run[below], run[i], facts)) is not None:
                    return refused
            done.add(i)
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        found = self._run(graph, facts)
        assert found is not None
        run, _, current = found
        for i in self.order:
            current = rebuilt(run[i], (current,), facts)
        return current

    def _run(self, top: Node, facts: Facts) -> tuple[list[Node], list[Node], Node] | None:
        """Return the operators (inputs first), the other nodes between them, and the input of the first operator."""
        run, between = [top], list[Node]()
        while len(run[-1].inputs) == 1:
            below = run[-1].inputs[0]
            inserted = []
            while falls_away(below, facts):
                inserted.append(below)
                below = below.inputs[0]
            between += inserted
            if len(run) == len(self.order):
                return run[::-1], between, below
            run.append(below)
            between.append(below)
        return None


def falls_away(node: Node, facts: Facts) -> bool:
    """Return whether the optimizer inserted the node only to change the order of columns."""
    if not is_inserted(node, facts):
        return False
    schema = node.inputs[0].schema
    return schema is not None and set(schema) == set(node.projection or ())


# ---- past stream operators -------------------------------------------------------------------------------------------

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
        if current.is_row_operator:
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
    moves = node.is_row_operator and node.storage is None and not is_inserted(node, facts)
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
    if not below.is_row_operator or below.storage is not None:
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
    if not node.is_row_operator or node.storage is not None or isinstance(operator, MakesGroups):
        return False
    if effects.writes is None or effects.rows not in ("1:1", "1:0..1"):
        return False
    independent = not effects.writes if grouped is None else not effects.writes & grouped
    return independent or operator.group_use == "once"
