"""What the compiler asks of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from cedar.graph import Node
from cedar.operators.base import RowOperator, StreamOperator
from cedar.operators.batch import Batch
from cedar.operators.cache import Cache
from cedar.stream import Stream


def group_size(node: Node) -> int | None:
    """The ``size`` of a map_batches that sees exactly so many rows."""
    return getattr(node.operator, "size", None) if isinstance(node.operator, RowOperator) else None


def by_place(chain: Sequence[Node]) -> list[list[Node]]:
    """Runs of operators that one executor does; what has no place of its own goes with what is below it."""
    runs: list[list[Node]] = []
    here = next((node.place for node in chain if node.place), "")
    for node in chain:
        if not runs or node.place not in ("", here):
            here = node.place or here
            runs.append([])
        runs[-1].append(node)
    return runs


def cost_note(operator: StreamOperator, inputs: Sequence[Stream]) -> str:
    """What a stream operator costs several ranks."""
    if all(stream.count is not None for stream in inputs) or operator.name in ("shuffle", "concat", "repeat"):
        return ""
    if operator.local:
        return "local to each rank"
    return "global: row counts are unknown, so every rank computes its input and keeps its share; local=True opts out"


def kept_nodes(nodes: Sequence[Node]) -> dict[int, Cache]:
    """Every node at or below a ``cache()``, and which; the nearest one above decides."""
    caches: dict[int, Cache] = {}
    for node in reversed(nodes):
        here = node.operator if isinstance(node.operator, Cache) else caches.get(id(node))
        if here is not None:
            caches[id(node)] = here
            caches.update({id(child): here for child in node.inputs})
    return caches


def batch_below(node: Node) -> Node | None:
    """The ``batch`` whose ungathered batches this node passes on."""
    current = node
    while isinstance(current.operator, StreamOperator) and current.inputs:
        if isinstance(current.operator, Batch):
            return current
        current = current.inputs[0]
    return None


def pads(base: Node) -> bool:
    batch = batch_below(base)
    return batch is not None and batch.operator.last == "pad"  # type: ignore[attr-defined]


def rows_per_unit(node: Node) -> int:
    """The size of the nearest ``batch`` below; the largest of a ``bucket_by_length``; 1 without one."""
    current = node
    while current.inputs:
        if isinstance(current.operator, Batch):
            return current.operator.size
        sizes = getattr(current.operator, "batch_sizes", None)
        if sizes:
            return int(max(sizes))
        current = current.inputs[0]
    return 1


def last_mode(node: Node) -> str:
    """How the epoch ends: the mode of the nearest ``batch`` below, "keep" without one."""
    current = node
    while current.inputs:
        if isinstance(current.operator, Batch):
            return current.operator.last
        current = current.inputs[0]
    return "keep"
