"""common: the same operator twice on the same rows is computed once."""

from __future__ import annotations

import dataclasses
from typing import Any

from cedar import graph
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
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal

_KNOWN = (Drop, Rename, FilterExpression, Select, WithColumns, FilterFunction, FlatMap, Map, MapBatches, Pad)


def common(node: Node, facts: Facts) -> Outcome:
    """The earlier of two equal row operators on one and the same input.

    Sources and stream operators stay apart, since the state of each is its own; so do two random operators, which draw
    differently, unless they are one object.
    """
    if not is_row_operator(node) or isinstance(node.operator, Cache) or facts.root is None:
        return None
    below = node.inputs[0]
    if facts.consumers[id(below)] < 2:
        return None
    for other in graph.walk(facts.root):
        if other is node:
            break
        if len(other.inputs) == 1 and other.inputs[0] is below and _equal(other, node):
            if node.operator.effects().random:
                return Refusal(f"it is random, and draws other numbers than {facts.label(other)}")
            if may_skip(node, facts) or may_skip(other, facts):
                return Refusal(f"both it and {facts.label(other)} count the rows that they skip")
            return Change(other, facts.label(node), f"is {facts.label(other)}, computed once")
    return None


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
