"""dedup_place: features are grouped before what is then done once for equal rows."""

from __future__ import annotations

from collections.abc import Mapping

from cedar.operators.base import Operator, StreamOperator
from cedar.operators.dedup_estimate import PAYS
from cedar.optimizer.commute import is_row_operator
from cedar.optimizer.edit import rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal
from cedar.plan.graph import Node


def dedup_place(node: Node, facts: Facts) -> Outcome:
    """A ``dedup()`` moves below the transforms of its features that change each value by itself, where that pays.

    It changes no value, so it may stand anywhere; what it passes must leave its features alone, or be such a transform.
    """
    if node.operator.grouping is None or facts.factors is None:
        return None
    features = _features(node.operator.grouping)
    way = _way(node, features, facts)
    touching = [(i, n) for i, n in enumerate(way) if _is_once(n.operator, features)]
    if not touching:
        return _blocked(way[-1].inputs[0] if way else node.inputs[0], features, facts)
    factors = facts.factors(node)
    whys = {i: _why_not(n, node, factors, facts) for i, n in touching}
    lowest = max((i for i, why in whys.items() if not why), default=None)
    if lowest is None:
        i, why = next(iter(whys.items()))
        return Refusal(f"before {facts.label(way[i])}: {why}", facts.label(node))
    moved = rebuilt(node, way[lowest].inputs, facts)
    for passed in reversed(way[: lowest + 1]):
        moved = rebuilt(passed, (moved,), facts)
    below = [facts.label(n) for i, n in touching if i <= lowest and not whys[i]]
    return Change(moved, facts.label(node), f"below {', '.join(below)}")


def _features(groups: tuple[tuple[str, ...], ...]) -> frozenset[str] | None:
    """Names of the columns that may be in a group; None where any may be."""
    return frozenset(name for group in groups for name in group) or None


def _way(node: Node, features: frozenset[str] | None, facts: Facts) -> list[Node]:
    """The operators below that a ``dedup()`` may pass, from the top down."""
    way = []
    current = node.inputs[0]
    while len(current.inputs) == 1 and len(facts.consumers[id(current)]) < 2 and _passes(current, features):
        way.append(current)
        current = current.inputs[0]
    return way


def _passes(node: Node, features: frozenset[str] | None) -> bool:
    operator, effects = node.operator, node.effects
    if isinstance(operator, StreamOperator):
        return operator.group_aware
    if not is_row_operator(node) or operator.storage is not None or operator.grouping is not None:
        return False
    if effects.writes is None or effects.rows not in ("1:1", "1:0..1"):
        return False
    apart = not effects.writes if features is None else not effects.writes & features
    return apart or operator.unique_reads is not None


def _is_once(operator: Operator, features: frozenset[str] | None) -> bool:
    """Whether it is done once for rows that are equal in these features."""
    reads = operator.unique_reads
    return reads is not None and (features is None or features >= set(reads))


def _blocked(node: Node, features: frozenset[str] | None, facts: Facts) -> Refusal | None:
    """Why it stays where it is: a function of a feature that is not marked."""
    effects = node.effects
    if (
        features is None
        or not node.inputs
        or not effects.writes
        or not effects.writes & features
        or not effects.per_row
    ):
        return None
    why = "draws for each row" if effects.random else "is not marked as changing one value by itself"
    return Refusal(f"{facts.label(node)} {why}, so it sees every row")


def _why_not(passed: Node, node: Node, factors: Mapping[str, float], facts: Facts) -> str:
    """Why a transform should go on seeing every row; empty where it need not."""
    reads = passed.operator.unique_reads or ()
    factor = min(factors.get(name, 1.0) for name in reads)
    if factor < PAYS:
        return f"rows of {', '.join(map(repr, reads))} repeat {factor:.3g} times, below {PAYS:g}"
    figures, own = facts.figures(passed), facts.figures(node)
    if figures is None or own is None:
        return ""  # a function costs more than an index
    saved, again = figures.wall * (1 - 1 / factor), own.wall / factor
    if saved < again:
        return f"it saves {saved * 1e6:.3g} us a row, and grouping anew takes {again * 1e6:.3g}"
    return ""
