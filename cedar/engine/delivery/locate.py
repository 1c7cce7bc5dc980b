"""Where the rows of a batch come from, and the part of a pipeline that determines it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cedar.core.errors import RowRef
from cedar.datasets.base import Read
from cedar.operators.expressions import Select
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.scan import Scan


@dataclass(frozen=True)
class Located:
    """A row that a loader delivers, and its origin.

    Args:
        step, index: row ``index`` of batch ``step`` of the epoch; without batches, ``step`` is the row's number.
        row: URL of the file, row in the file (byte offset in text), item of a ``flat_map``, repeat and epoch.
        rows: all source rows that it consists of, such as the documents of a packed row.
        source: the label of the source, and the user's line.
        operators: labels of the operators between source and loader, in the order as written.
        plan: how the loader's latest plan was found.
        ran: whether files were read and functions run to find the row, because they determine which rows exist.
    """

    step: int
    index: int
    row: RowRef
    source: str
    operators: tuple[str, ...]
    plan: str
    ran: bool
    rows: tuple[RowRef, ...] = ()

    def __str__(self) -> str:
        how = "all of it was run again" if self.ran else "from row counts alone"
        return "\n".join(
            [
                f"step {self.step}, row {self.index}: {self.row}",
                f"  source     {self.source}",
                *(f"  made of    {row}" for row in self.rows if len(self.rows) > 1),
                *(f"  operator   {label}" for label in self.operators),
                f"  plan       {self.plan}; found {how}",
            ]
        )


@dataclass(frozen=True)
class Location:
    """The position at which a row of a file is delivered.

    Args:
        epoch, rank, step, index: row ``index`` of batch ``step`` of ``rank`` in this epoch; without batches, ``step``
            is the row's number and ``index`` is 0.
        row: the row; see ``Located``.
    """

    epoch: int
    rank: int
    step: int
    index: int
    row: RowRef

    def __str__(self) -> str:
        return f"epoch {self.epoch}, rank {self.rank}, step {self.step}, row {self.index}: {self.row}"


def path(root: Node, ordinal: int) -> Iterator[Node]:
    """Yield the nodes on the way from source ``ordinal`` to the root."""
    on = {id(graph.sources(root)[ordinal])}
    for node in graph.walk(root):
        if id(node) in on or any(id(child) in on for child in node.inputs):
            on.add(id(node))
            yield node


def without_kernels(root: Node) -> Node | None:
    """Return the pipeline without operators that only change values; None if values determine which rows exist."""
    for node in graph.walk(root):
        effects = node.effects
        if effects.rows == "stream" and (effects.random or effects.reads is None or effects.reads):
            return None
        if effects.rows not in ("stream", "1:1"):
            return None

    def without(node: Node) -> Node | None:
        if not node.inputs:
            return Node(Select(()), (node,), node.site)
        return node.inputs[0] if node.effects.rows == "1:1" else None

    return graph.replace(root, without)


def without_columns(root: Node) -> Node:
    """Return a plan's graph whose scans read no columns."""
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        operator = Scan(node.operator.source, ()) if isinstance(node.operator, Read) else node.operator
        inputs = tuple(done[id(child)] for child in node.inputs)
        done[id(node)] = replace(node, operator=operator, inputs=inputs, origin=node)
    return done[id(root)]
