"""dead_columns: columns that nobody reads any more are dropped before rows are held, kept, cut, shipped or gathered."""

from __future__ import annotations

from cedar.operators.base import Schema
from cedar.operators.chains import Chain
from cedar.optimizer.edit import only, rebuilt
from cedar.optimizer.facts import Change, Facts, Outcome, downward
from cedar.optimizer.live import Names, alike, needs_each
from cedar.plan import graph
from cedar.plan.graph import Node


@downward
def dead_columns(node: Node, facts: Facts) -> Outcome:
    """Below stream operators and ``cache("auto")``, and below functions that run once per row.

    There rows are held, tasks may be cut, and rows shipped.
    """
    kept = _kept_of(node, facts)
    if not any(kept):
        return None
    inputs = tuple(only(c, names) if names else c for c, names in zip(node.inputs, kept, strict=True))
    gone = set().union(*_gone(node, kept, facts))
    listed = sorted(gone)[:6] + ([f"{len(gone) - 6} more"] if len(gone) > 6 else [])
    return Change(rebuilt(node, inputs, facts), facts.label(node), f"{', '.join(listed)} dropped below it")


def carried(facts: Facts) -> int:
    """How many columns the rule would still drop."""
    return sum(len(gone) for node in graph.walk(facts.root) for gone in _gone(node, _kept_of(node, facts), facts))


def _kept_of(node: Node, facts: Facts) -> list[tuple[str, ...]]:
    """The columns to keep of each input, as ``_kept`` says; nothing where the rule leaves the node alone."""
    effects = node.effects
    holds = effects.rows == "stream" or node.operator.storage is not None
    if not node.inputs or not (holds or effects.per_row) or _chained(node):
        return []
    live = needs_each(node, facts.live.get(id(node)), facts.schemas)
    kept = [_kept(facts.schemas[id(child)], names) for child, names in zip(node.inputs, live, strict=True)]
    if alike(node.operator) and not all(kept):
        return []  # its inputs have the same columns
    return kept


def _gone(node: Node, kept: list[tuple[str, ...]], facts: Facts) -> list[set[str]]:
    """The columns of each input that are dropped below the node."""
    return [set(_names(child, facts)) - set(names) for child, names in zip(node.inputs, kept, strict=False) if names]


def _chained(node: Node) -> bool:
    """It may run as one kernel with the operator below, which nothing should part."""
    chain = _chain(node)
    return chain is not None and all(_chain(child) is chain for child in node.inputs)


def _chain(node: Node) -> Chain | None:
    link = node.operator.link
    return None if link is None else link.transform.chain


def _kept(schema: Schema, live: Names) -> tuple[str, ...]:
    """The columns to keep of an input; none where all are needed, or where it is not known."""
    if schema is None or live is None or live >= set(schema):
        return ()
    return tuple(name for name in schema if name in live)


def _names(child: Node, facts: Facts) -> tuple[str, ...]:
    return tuple(facts.schemas[id(child)] or ())
