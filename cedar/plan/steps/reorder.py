"""Reorder: changes the order of row operators. Two adjacent operators may swap places if their effects allow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cedar.operators.base import Algebra, Effects, RowOperator
from cedar.operators.batch import MakesBatches
from cedar.operators.dedup import MakesGroups
from cedar.operators.expressions import ColumnEdit
from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts, Refusal
from cedar.plan.steps.step import Step, is_inserted, rebuilt, shared

_COMMUTING: frozenset[frozenset[Algebra]] = frozenset(
    {frozenset({"spatial", "pointwise"}), frozenset({"length", "per-value"})}
)


def may_swap(below: Node, above: Node, facts: Facts) -> Refusal | None:
    """Return why ``above`` may not run before ``below``, its input; None if it may.

    A swap may change the order of columns, which ``restore_order`` restores later. It may also change on which rows a
    function is called, so the function may fail on rows that a filter dropped before the swap.
    """
    for check in _CHECKS:
        reason = check(below, above, facts)
        if reason is not None:
            return Refusal(reason, facts.label(above))
    return None


def is_row_operator(node: Node) -> bool:
    """Return whether an operator processes each row separately. A function on groups of exactly n rows does not."""
    return isinstance(node.operator, RowOperator) and node.exact_rows is None


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
        if not is_row_operator(node):
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
    if _same_column(first, second):
        return _algebra(below, above, facts)
    for node, mine, other, theirs in ((below, first, above, second), (above, second, below, first)):
        touched = (mine.writes or frozenset()) & ((theirs.reads or frozenset()) | (theirs.writes or frozenset()))
        if touched:
            doing = "uses" if touched & (theirs.reads or frozenset()) else "writes, too"
            return f"{facts.label(node)} writes {_named(touched)}, which {facts.label(other)} {doing}"
    return None


def _same_column(first: Effects, second: Effects) -> bool:
    """Return whether both operators read and write the same single column and no other."""
    touched = {first.reads, first.writes, second.reads, second.writes}
    return len(touched) == 1 and all(names is not None and len(names) == 1 for names in touched)


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


def _order(below: Node, above: Node, facts: Facts) -> str | None:
    """Refuse a swap of operators that both append columns if column names, and so the original order, are unknown."""
    if facts.schemas.get(id(below.inputs[0])) is not None:
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
    if not any(skips):
        return None
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
    each pair of operators whose order changes.

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
        rest = list(range(len(run)))
        for i in self.order:
            for below in rest[: rest.index(i)]:
                if (refused := may_swap(run[below], run[i], facts)) is not None:
                    return refused
            rest.remove(i)
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
    schema = facts.schemas[id(node.inputs[0])]
    return schema is not None and set(schema) == set(node.projection or ())
