"""Live columns: find the columns of each node's output that later operators read."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.operators.base import Operator, Schema
from cedar.operators.cache import StoresRows
from cedar.plan import graph
from cedar.plan.graph import Node

Names: TypeAlias = "frozenset[str] | None"  # None means all columns


def live_columns(root: Node, schemas: dict[int, Schema], out: Names = None) -> dict[int, Names]:
    """Return the columns that the output of each node must have, by the node's ``id()``.

    ``drop`` and ``rename`` do not count as readers: ``fitted`` adapts them if a column is missing.
    """
    live: dict[int, Names] = {id(root): all_of(schemas[id(root)]) if out is None else out}
    for node in reversed(list(graph.walk(root))):  # consumers come before their inputs
        spread(node, live, schemas)
    return live


def leave_unread(root: Node, out: Names = None) -> Node:
    """Return the pipeline with sources that skip the parsing of unread columns, such as in JSON Lines.

    Such a column stays in the output, but contains nulls. Unoptimized runs and samples also use these sources.

    Args:
        root: the pipeline's last node.
        out: the output columns that are read; None means all.
    """
    read = [(node, graph.source_of(node)) for node in graph.sources(root)]
    lazy = [(node, source) for node, source in read if isinstance(source, FileSource) and source.can_skip_parsing]
    if not lazy:
        return root
    schemas = graph.schemas(root)
    live = live_columns(root, schemas, out)
    made: dict[int, Node] = {}
    for node, source in lazy:
        needed = live[id(node)]
        if needed is not None and (unread := frozenset(schemas[id(node)] or ()) - needed):
            made[id(node)] = dataclasses.replace(node, operator=Read(source.leaving(unread)))
    return graph.replace(root, lambda node: made.get(id(node)))


def spread(node: Node, live: dict[int, Names], schemas: dict[int, Schema]) -> None:
    """Add the columns that ``node`` needs from its inputs to ``live``."""
    for child, needed in zip(node.inputs, needs_each(node, live[id(node)], schemas), strict=True):
        live[id(child)] = needed if id(child) not in live else union(live[id(child)], needed)


def needs_each(node: Node, out: Names, schemas: dict[int, Schema]) -> list[Names]:
    """Return the columns that ``node`` needs from each input to deliver the columns ``out``."""
    if alike(node) and any(schemas[id(child)] is None for child in node.inputs):
        return [
            all_of(schemas[id(child)]) for child in node.inputs
        ]  # inputs must have the same columns, and some columns are unknown
    return [needs(node, child, out, schemas) for child in node.inputs]


def needs(node: Node, child: Node, out: Names, schemas: dict[int, Schema]) -> Names:
    """Return the columns that ``node`` needs from one of its inputs."""
    operator, effects, schema = node.operator, node.effects, schemas[id(child)]
    if effects.reads is None or effects.writes is None or _keeps_for_others(operator):
        return all_of(schema)
    if effects.survivors is not None:
        return effects.reads
    if out is None:
        return all_of(schema)
    if new := node.renames:
        names = out - set(new.values()) if schema is None else frozenset(schema) - set(new)
        return frozenset(n for n in names if n in out) | {old for old in new if new[old] in out}
    needed = (out - effects.writes) | effects.reads
    return needed if schema is None else needed & frozenset(schema)


def _keeps_for_others(operator: Operator) -> bool:
    """Return whether a cache stores rows for other pipelines too, so that it must keep all columns."""
    return isinstance(operator, StoresRows) and operator.storage != "auto" and not operator.layout


def alike(node: Node) -> bool:
    """Return whether the inputs must have the same columns: each output row is a row of any one of them."""
    return node.operator.inputs is None and node.row_use.rows != "paired"


def all_of(schema: Schema) -> Names:
    """Return the names of all columns."""
    return None if schema is None else frozenset(schema)


def union(first: Names, second: Names) -> Names:
    """Return the columns that are in either set."""
    return None if first is None or second is None else first | second
