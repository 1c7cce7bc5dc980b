"""common and dedup_place: rules that compute equal operators, and functions of equal rows, only once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from cedar.datasets.base import Read
from cedar.operators.base import Mergeable
from cedar.operators.dedup import MakesGroups
from cedar.operators.dedup_estimate import PAYS
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, read_from
from cedar.plan.graph import Node
from cedar.plan.steps.cross import Group, features, passes_groups
from cedar.plan.steps.reorder import is_row_operator
from cedar.plan.steps.single import Share, equal_before


def common(node: Node, facts: Facts) -> Outcome:
    """Replace a row operator by an earlier equal one with the same input.

    The rule does not merge sources or stream operators, since each has its own state. It merges random operators only
    if they are the same object, since two random operators draw different numbers.
    """
    if isinstance(node.operator, Read):
        return _refuse_sources(node, facts)
    if not is_row_operator(node) or node.storage is not None:
        return None
    if len(facts.consumers[id(node.inputs[0])]) < 2:
        return _refuse_copies(node, facts)
    other = equal_before(node, facts)
    return None if other is None else Change(Share(), facts.label(node), f"is {facts.label(other)}, computed once")


def _refuse_sources(node: Node, facts: Facts) -> Refusal | None:
    """Refuse to merge two equal sources: their rows have different keys, which determine random draws and order."""
    assert isinstance(node.operator, Read)
    for other in facts.readers[read_from(node)]:
        if other is node:
            break
        assert isinstance(other.operator, Read)
        if node.operator.source == other.operator.source:
            why = "its rows have their own keys, which decide draws and order: use one pipeline in both places"
            return Refusal(f"it reads what {facts.label(other)} reads, but {why}", facts.label(node))
    return None


def _refuse_copies(node: Node, facts: Facts) -> Refusal | None:
    """Refuse to merge equal functions that write different columns, since each result may later be changed in place."""
    wanted, current = None if node.effects.random else _computes(node), node.inputs[0]
    while wanted is not None and (before := _computes(current)) is not None:
        writes = current.effects.writes
        if not writes or writes & (node.effects.reads or frozenset()):
            break
        if before == wanted:
            return Refusal(f"it computes what {facts.label(current)} does: with_columns() gives a result a second name")
        current = current.inputs[0]
    return None


def _computes(node: Node) -> Hashable | None:
    return node.operator.computes() if isinstance(node.operator, Mergeable) else None


def dedup_place(node: Node, facts: Facts) -> Outcome:
    """Move a ``dedup()`` below transforms of its features that map each value independently, if that saves time.

    ``dedup()`` changes no values, so it can also move past operators that do not touch its features.
    """
    if not isinstance(node.operator, MakesGroups) or facts.factors is None:
        return None
    grouped = features(node.operator)
    way = _passable(node, grouped, facts)
    touching = [(i, n) for i, n in enumerate(way) if _runs_once(n, grouped)]
    if not touching:
        return _blocked(way[-1].inputs[0] if way else node.inputs[0], grouped, facts)
    factors = facts.factors(node)
    whys = {i: _why_not(n, node, factors, facts) for i, n in touching}
    lowest = max((i for i, why in whys.items() if not why), default=None)
    if lowest is None:
        i, why = next(iter(whys.items()))
        return Refusal(f"before {facts.label(way[i])}: {why}", facts.label(node))
    below = [facts.label(n) for i, n in touching if i <= lowest and not whys[i]]
    return Change(Group(lowest + 1), facts.label(node), f"below {', '.join(below)}")


def _passable(node: Node, grouped: frozenset[str] | None, facts: Facts) -> list[Node]:
    """Return the operators below that a ``dedup()`` may pass, from the top down."""
    way = []
    current = node.inputs[0]
    while len(current.inputs) == 1 and len(facts.consumers[id(current)]) < 2 and passes_groups(current, grouped):
        way.append(current)
        current = current.inputs[0]
    return way


def _runs_once(node: Node, grouped: frozenset[str] | None) -> bool:
    """Return whether the operator would run only once for rows that are equal in these features."""
    reads = node.effects.reads
    return node.operator.group_use == "once" and reads is not None and (grouped is None or grouped >= reads)


def _blocked(node: Node, grouped: frozenset[str] | None, facts: Facts) -> Refusal | None:
    """Return a refusal if the operator below is an unmarked function of a feature."""
    effects = node.effects
    if grouped is None or not node.inputs or not effects.writes or not effects.writes & grouped or not effects.per_row:
        return None
    why = "draws for each row" if effects.random else "is not marked as changing one value by itself"
    return Refusal(f"{facts.label(node)} {why}, so it sees every row")


def _why_not(passed: Node, node: Node, factors: Mapping[str, float], facts: Facts) -> str:
    """Return why a transform should still process every row; "" if grouping saves time."""
    reads = sorted(passed.effects.reads or ())
    factor = min(factors.get(name, 1.0) for name in reads)
    if factor < PAYS:
        return f"rows of {', '.join(map(repr, reads))} repeat {factor:.3g} times, below {PAYS:g}"
    figures, own = facts.figures(passed), facts.figures(node)
    if figures is None or own is None:
        return ""  # not measured: assume that a function costs more than an index
    saved, again = figures.wall * (1 - 1 / factor), own.wall / factor
    if saved < again:
        return f"it saves {saved * 1e6:.3g} us a row, and grouping again takes {again * 1e6:.3g}"
    return ""
