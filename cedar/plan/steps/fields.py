"""Fields: find the fields of a node's struct columns that later operators read."""

from __future__ import annotations

from typing import TypeAlias

from cedar.operators.expression_nodes import columns_of, fields_of
from cedar.operators.expressions import ByExpressions
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts
from cedar.plan.steps.live import alike, needs_each

Fields: TypeAlias = "frozenset[tuple[str, ...]] | None"  # paths of fields inside a column; None means the whole column

_NOTHING: frozenset[tuple[str, ...]] = frozenset()


def live_fields(node: Node, column: str, facts: Facts) -> Fields:
    """Return the fields of ``column`` that nodes after ``node`` read; None (all) if the column is in the output."""
    names: dict[int, dict[str, None]] = {id(node): {column: None}}  # the column's names in the outputs of later nodes
    fields: Fields = _NOTHING
    for current in graph.walk(facts.root):
        if names.keys().isdisjoint(map(id, current.inputs)):
            continue
        needed = needs_each(current, facts.live.get(id(current)), facts.schemas)
        for child, wanted in zip(current.inputs, needed, strict=True):
            for name in names.get(id(child), ()):
                if wanted is not None and name not in wanted:
                    continue
                fields = _union(fields, _read(current, name))
                above = _passed_on(current, name)
                if above is not None:
                    names.setdefault(id(current), {})[above] = None
        if fields is None:
            return None
    delivered = names.get(id(facts.root), {})
    return None if any(_delivered(name, facts) for name in delivered) else fields


def fields_read(node: Node, column: str) -> Fields:
    """Return the fields of ``column`` that an expression operator reads."""
    operator = node.operator
    fields: Fields = _NOTHING
    for expr in operator.code():
        fields = None if columns_of(expr) is None else _union(fields, fields_of(expr).get(column, _NOTHING))
    return fields


def _union(first: Fields, second: Fields) -> Fields:
    return None if first is None or second is None else first | second


def _delivered(name: str, facts: Facts) -> bool:
    live = facts.live.get(id(facts.root))
    return live is None or name in live


def _read(node: Node, name: str) -> Fields:
    """Return the fields that the operator reads; None (all) for caches and operators whose inputs must be alike."""
    operator, effects = node.operator, node.effects
    if effects.reads is None or effects.writes is None or node.storage is not None or alike(node):
        return None
    if isinstance(operator, ByExpressions):
        return fields_read(node, name)
    return _NOTHING if name in node.renames or name not in effects.reads else None


def _passed_on(node: Node, name: str) -> str | None:
    """Return the column's name after the operator; None if it is dropped."""
    effects = node.effects
    if pairs := node.renames:
        return pairs.get(name) or (None if name in pairs.values() else name)
    if name in (effects.writes or ()) or (effects.survivors is not None and name not in effects.survivors):
        return None
    return name
