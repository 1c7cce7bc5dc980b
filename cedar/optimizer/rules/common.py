"""common: the same operator twice on the same rows is computed once."""

from __future__ import annotations

import dataclasses
from typing import Any

from cedar.datasets.base import Read
from cedar.graph import Node
from cedar.operators.cache import Cache
from cedar.operators.columns_ops import Drop, Rename
from cedar.operators.expressions import FilterExpression, Select, WithColumns
from cedar.operators.filter_function import FilterFunction
from cedar.operators.flat_map import FlatMap
from cedar.operators.map import Map
from cedar.operators.map_batches import MapBatches
from cedar.operators.pad import Pad
from cedar.optimizer.commute import is_row_operator, may_skip
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, read_from

_KNOWN = (Drop, Rename, FilterExpression, Select, WithColumns, FilterFunction, FlatMap, Map, MapBatches, Pad)


def common(node: Node, facts: Facts) -> Outcome:
    """The earlier of two equal row operators on one and the same input.

    Sources and stream operators stay apart, since the state of each is its own; so do two random operators, which draw
    differently, unless they are one object.
    """
    if isinstance(node.operator, Read):
        return _read_twice(node, facts)
    if not is_row_operator(node) or isinstance(node.operator, Cache):
        return None
    below = node.inputs[0]
    if len(facts.consumers[id(below)]) < 2:
        return _computed_before(node, facts)
    for other in facts.consumers[id(below)]:
        if other is node:
            break
        if len(other.inputs) == 1 and other.inputs[0] is below and _equal(other, node):
            if node.effects.random:
                return Refusal(f"it is random, and draws other numbers than {facts.label(other)}")
            if may_skip(node, facts) or may_skip(other, facts):
                return Refusal(f"both it and {facts.label(other)} count the rows that they skip")
            return Change(other, facts.label(node), f"is {facts.label(other)}, computed once")
    return None


def _read_twice(node: Node, facts: Facts) -> Refusal | None:
    """Two sources number their rows apart: with one of them gone, the other's rows are drawn for and sorted as its."""
    assert isinstance(node.operator, Read)
    for other in facts.readers[read_from(node)]:
        if other is node:
            break
        assert isinstance(other.operator, Read)
        if node.operator.source == other.operator.source:
            why = "its rows have keys of their own, which decide draws and order: use one pipeline in both places"
            return Refusal(f"it reads what {facts.label(other)} reads, but {why}", facts.label(node))
    return None


def _computed_before(node: Node, facts: Facts) -> Refusal | None:
    """The same function of the same columns, into others: two results, each of which may be changed in place."""
    operator, current = node.operator, node.inputs[0]
    while isinstance(operator, Map) and not operator.random and isinstance(current.operator, Map):
        before = current.operator
        if not before.written or set(before.written) & set(operator.columns):
            break
        if before.columns == operator.columns and _but_into(operator) == _but_into(before):
            return Refusal(f"it computes what {facts.label(current)} does: with_columns() gives a result a second name")
        current = current.inputs[0]
    return None


def _but_into(operator: Map) -> Any:
    return tuple(_key(getattr(operator, f.name)) for f in dataclasses.fields(operator) if f.name != "into")


def _equal(first: Node, second: Node) -> bool:
    a, b = first.operator, second.operator
    if a is b or (type(a) is type(b) and isinstance(a, _KNOWN) and _key(a) == _key(b)):
        return first.place == second.place
    return False


def _key(value: Any) -> Any:
    """Stands for an operator: its expressions by content, its functions by identity, with the types of constants."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_key(getattr(value, f.name)) for f in dataclasses.fields(value))
    if hasattr(value, "meta") and hasattr(value.meta, "serialize"):
        return value.meta.serialize(format="binary")
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, str | int | float | bool | None):
        return type(value), repr(value)
    return id(value)
