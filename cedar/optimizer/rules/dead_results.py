"""dead_results: results of expressions that nobody reads are not computed."""

from __future__ import annotations

from cedar.graph import Node
from cedar.operators.expression_steps import never_fails
from cedar.operators.expressions import Item, Select, WithColumns, result_name
from cedar.operators.map import Map
from cedar.operators.map_batches import MapBatches
from cedar.optimizer.edit import rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, Refusal, downward


@downward
def dead_results(node: Node, facts: Facts) -> Outcome:
    """Expressions that cannot fail go; functions stay, since they may do more than return."""
    operator, live = node.operator, facts.live.get(id(node))
    if live is None:
        return None
    if isinstance(operator, Map | MapBatches):
        if operator.written and not live & set(operator.written):
            return Refusal("nobody reads its result, but a function may do more than return one")
        return None
    if not isinstance(operator, WithColumns | Select):
        return None
    dead = [item for item in operator.items if result_name(item) not in {None, *live}]
    types = facts.schemas[id(node.inputs[0])]
    gone = [item for item in dead if isinstance(item, str) or never_fails(item[1], types)]
    items = tuple(item for item in operator.items if not any(item is g for g in gone))
    if not gone or (isinstance(operator, Select) and not items):
        return Refusal(f"nobody reads {_named(dead)}, but they may fail on some row") if dead and not gone else None
    return Change(_without(node, items, facts), facts.label(node), f"{_named(gone)} not computed, as nobody reads it")


def _without(node: Node, items: tuple[Item, ...], facts: Facts) -> Node:
    operator = node.operator
    if isinstance(operator, Select):
        return rebuilt(node, node.inputs, facts, Select(items, operator.on_error))
    assert isinstance(operator, WithColumns)
    named = tuple(item for item in items if not isinstance(item, str))
    return rebuilt(node, node.inputs, facts, WithColumns(named, operator.on_error)) if items else node.inputs[0]


def _named(items: list[Item]) -> str:
    return ", ".join(str(result_name(item)) for item in items)
