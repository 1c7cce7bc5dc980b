"""Commute: whether two adjacent row operators may change places, from what they declare."""

from __future__ import annotations

from collections.abc import Callable

from cedar.graph import Node
from cedar.operators.base import Algebra, Effects, RowOperator
from cedar.operators.batch import Batch
from cedar.operators.cache import Cache
from cedar.operators.columns_ops import Drop, Rename
from cedar.operators.dedup import Dedup
from cedar.operators.dedup_kernels import unique_reads
from cedar.operators.expressions import Select
from cedar.optimizer.facts import Facts, Refusal

_COMMUTING: frozenset[frozenset[Algebra]] = frozenset(
    {frozenset({"spatial", "pointwise"}), frozenset({"length", "per-value"})}
)


def may_swap(below: Node, above: Node, facts: Facts) -> Refusal | None:
    """Whether ``above`` may run before ``below``, on which it stands; None is yes.

    A swap may change the order of columns, which is for ``restore_order`` to mend, and the rows on which a function
    is called, so a function may fail where it did not before.
    """
    for check in _CHECKS:
        reason = check(below, above, facts)
        if reason is not None:
            return Refusal(reason, facts.label(above))
    return None


def is_row_operator(node: Node) -> bool:
    """True for what works on each row by itself, so not for functions on groups of exactly so many rows."""
    return isinstance(node.operator, RowOperator) and getattr(node.operator, "size", None) is None


def may_skip(node: Node, facts: Facts) -> bool:
    """Whether rows may go missing here because the operator fails on them."""
    operator = node.operator
    if not facts.skips(node) or (isinstance(operator, Select) and not operator.code()):
        return False
    return not isinstance(operator, Drop | Rename | Cache | Dedup)


def pads(node: Node) -> bool:
    """Units here are batches of ``last="pad"``: a rank that has fewer than others gets some of padding, made here."""
    while node.inputs:
        if isinstance(node.operator, Batch):
            return node.operator.last == "pad"
        node = node.inputs[0]
    return False


def _kinds(below: Node, above: Node, facts: Facts) -> str | None:
    for node in (below, above):
        if not is_row_operator(node):
            return f"{facts.label(node)} works across rows"
        if isinstance(node.operator, Cache):
            return f"{facts.label(node)} would keep other columns"
    return None


def _walls(below: Node, above: Node, facts: Facts) -> str | None:
    for node, other in ((below, above), (above, below)):
        mine, theirs = node.effects, other.effects
        if mine.writes is None:
            return f"{facts.label(node)} may write any column"
        if mine.reads is None and (theirs.writes is None or theirs.writes or theirs.keeps is not None):
            return f"{facts.label(node)} may read any column"
    return None


def _once(below: Node, above: Node, facts: Facts) -> str | None:
    """What is done once for equal rows stays above the ``dedup`` that finds them."""
    if not isinstance(below.operator, Dedup):
        return None
    reads, groups = unique_reads(above.operator), below.operator.groups
    if reads is None or (groups is not None and not any(set(reads) <= set(group) for group in groups)):
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
    """Both turn one and the same column into itself."""
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
    """Where one keeps only some columns, the other must use those alone, and add none."""
    for node, other in ((below, above), (above, below)):
        keeps, theirs = node.effects.keeps, other.effects
        if keeps is None:
            continue
        if theirs.writes or theirs.keeps is not None:
            return f"{facts.label(node)} drops what {facts.label(other)} writes"
        lost = (theirs.reads or frozenset()) - keeps
        if lost:
            return f"{facts.label(node)} drops {_named(lost)}, which {facts.label(other)} uses"
    return None


def _order(below: Node, above: Node, facts: Facts) -> str | None:
    """New columns come in the order in which they are made; where no names are known, nothing can mend it later."""
    if facts.schemas.get(id(below.inputs[0])) is not None:
        return None
    for node in (below, above):
        effects = node.effects
        new = (effects.writes or frozenset()) - (effects.reads or frozenset())
        if not new or isinstance(node.operator, Drop | Rename):
            return None
    return "both may add columns to rows whose columns are not known, and their order would change"


def _rows(below: Node, above: Node, facts: Facts) -> str | None:
    first, second = below.effects, above.effects
    if first.rows == second.rows == "1:n":
        return "both make rows of a row, and their order would change"
    for node, mine, theirs in ((below, first, second), (above, second, first)):
        if mine.random and theirs.rows == "1:n":
            return f"{facts.label(node)} draws by row key, and the other makes new keys"
    return None


def _skipped(below: Node, above: Node, facts: Facts) -> str | None:
    """A row must be skipped by the same operator, and be missing to the same others."""
    for node, other in ((below, above), (above, below)):
        if not may_skip(node, facts):
            continue
        if may_skip(other, facts):
            return f"{facts.label(node)} and {facts.label(other)} may both skip rows"
        if other.effects.rows != "1:1":
            return f"{facts.label(node)} may skip rows that {facts.label(other)} drops or repeats"
        if facts.batched[id(below)]:
            return f"{facts.label(node)} may skip rows out of the batch that {facts.label(other)} sees"
    return None


def _named(names: frozenset[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


_CHECKS: tuple[Callable[[Node, Node, Facts], str | None], ...] = (
    _kinds, _walls, _once, _columns, _survivors, _order, _rows, _skipped,
)  # fmt: skip
