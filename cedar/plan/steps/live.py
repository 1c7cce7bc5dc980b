"""Live columns: what of each node's output is read further up."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from cedar.datasets.base import Read
from cedar.operators.base import Operator, Schema, StreamOperator
from cedar.plan import graph
from cedar.plan.graph import Node

Names: TypeAlias = "frozenset[str] | None"  # None is all columns


def live_columns(root: Node, schemas: dict[int, Schema], out: Names = None) -> dict[int, Names]:
    """The columns that the output of each node must have, by id.

    A ``drop`` and a ``rename`` do not count as reading: what nothing reads need not be there for them (see ``fit``).
    """
    live: dict[int, Names] = {id(root): all_of(schemas[id(root)]) if out is None else out}
    for node in reversed(list(graph.walk(root))):  # any reader of a node comes before it
        spread(node, live, schemas)
    return live


def leave_unread(root: Node, out: Names = None) -> Node:
    """The pipeline, whose sources do not parse what nothing reads where it may hold anything, as in JSON lines.

    Not even where it runs as written, or on sample rows: the column stays, with nulls in it.

    Args:
        root: the pipeline's last node.
        out: the columns of its output that are read.
    """
    lazy = [node for node in graph.sources(root) if getattr(node.operator.source, "leaves_unread", False)]  # type: ignore[attr-defined]
    if not lazy:
        return root
    schemas = graph.schemas(root)
    live = live_columns(root, schemas, out)
    made: dict[int, Node] = {}
    for node in lazy:
        needed = live[id(node)]
        if needed is not None and (unread := frozenset(schemas[id(node)] or ()) - needed):
            made[id(node)] = dataclasses.replace(node, operator=Read(node.operator.source.leaving(unread)))  # type: ignore[attr-defined]
    return graph.replace(root, lambda node: made.get(id(node)))


def spread(node: Node, live: dict[int, Names], schemas: dict[int, Schema]) -> None:
    """Adds to ``live`` what ``node`` needs of its inputs."""
    for child, needed in zip(node.inputs, needs_each(node, live[id(node)], schemas), strict=True):
        live[id(child)] = needed if id(child) not in live else union(live[id(child)], needed)


def needs_each(node: Node, out: Names, schemas: dict[int, Schema]) -> list[Names]:
    """The columns that ``node`` needs of each of its inputs, where ``out`` is what its own output must have."""
    if alike(node.operator) and any(schemas[id(child)] is None for child in node.inputs):
        return [all_of(schemas[id(child)]) for child in node.inputs]  # alike, and some cannot tell what they have
    return [needs(node, child, out, schemas) for child in node.inputs]


def needs(node: Node, child: Node, out: Names, schemas: dict[int, Schema]) -> Names:
    """The columns that ``node`` needs of one of its inputs."""
    operator, effects, schema = node.operator, node.effects, schemas[id(child)]
    if effects.reads is None or effects.writes is None or _keeps_for_others(operator):
        return all_of(schema)
    if effects.survivors is not None:
        return effects.reads
    if out is None:
        return all_of(schema)
    if new := operator.renames:
        names = out - set(new.values()) if schema is None else frozenset(schema) - set(new)
        return frozenset(n for n in names if n in out) | {old for old in new if new[old] in out}
    needed = (out - effects.writes) | effects.reads
    return needed if schema is None else needed & frozenset(schema)


def _keeps_for_others(operator: Operator) -> bool:
    """A cache keeps what is written, for other pipelines too; what the optimizer puts in serves this one alone."""
    return operator.storage not in (None, "auto") and not getattr(operator, "layout", False)


def alike(operator: Operator) -> bool:
    """Its inputs have the same columns."""
    return isinstance(operator, StreamOperator) and operator.alike


def all_of(schema: Schema) -> Names:
    """The names of all columns."""
    return None if schema is None else frozenset(schema)


def union(first: Names, second: Names) -> Names:
    """What either needs."""
    return None if first is None or second is None else first | second
