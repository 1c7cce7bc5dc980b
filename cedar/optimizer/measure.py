"""Measure: what every rewrite must lower, so that rewriting comes to an end whatever the rules are.

The measure of a graph is a tuple that is compared part by part, from left to right; each part has no endless descent.
A rule lowers one part and raises none before it. What does not lower the measure is not done (see ``rewrite``),
so no cap on the number of changes is needed, and two rules that undo each other stop at once.

| part | of which rule | what it is |
|---|---|---|
| exact | ``inexact`` | transforms that may still do less |
| grouping | ``dedup_place`` | for each ``dedup``, the operators below it, filters apart |
| functions | ``push_filter`` | for each filter by a function, highest first, the operators below it, filters apart |
| filters | ``push_filter``, ``scan_filter`` | for each filter by expression, highest first, the operators below it |
| nodes | ``common`` | operators of the user |
| limits | ``limit`` | for each ``take``, the operators below it |
| batches | ``late`` | for each ``batch``, the functions below it |
| sizes | ``late`` | for each ``shuffle``, by how much the functions below it make rows larger |
| results | ``dead_results`` | results of expressions |
| queries | ``group_expressions`` | for each expression, the other operators below it |
| fields | ``scan_columns`` | fields that sources give |
| caches | ``cache_place`` | caches that had better stand elsewhere |
| carried | ``dead_columns`` | columns that nobody reads, where rows are held |

Lists are compared as multisets are: one element may be replaced by any number of smaller ones, as a filter that goes
into every input of a ``concat`` is. What the optimizer put in, and caches, count in no part but their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from cedar.datasets.base import Read
from cedar.optimizer.commute import batch_rows, first, is_row_operator, moves_rows
from cedar.optimizer.facts import Facts
from cedar.plan import graph
from cedar.plan.graph import Node

Measure: TypeAlias = tuple[Any, ...]
_Counts: TypeAlias = Callable[[Node], bool]


def measure(facts: Facts, caches: int, carried: int) -> Measure:
    """The measure of ``facts.root``.

    Args:
        facts: of the graph.
        caches: how many nodes ``cache_place`` would change.
        carried: columns that ``dead_columns`` would drop.
    """
    nodes = list(graph.walk(facts.root))
    below = _Descent(nodes, facts)
    return (
        sum(1 for n in nodes if n.operator.link is not None and n.operator.link.exact),
        below.counts(_groups, lambda n: not n.operator.filters and not _groups(n)),
        below.counts(lambda n: n.operator.filters and n.operator.condition is None, lambda n: not n.operator.filters),
        below.counts(lambda n: n.operator.condition is not None, lambda n: n.operator.condition is None),
        sum(1 for n in nodes if facts.ordinal(n) is not None),
        below.counts(lambda n: first(n) is not None, lambda n: first(n) is None),
        below.counts(lambda n: batch_rows(n) is not None, lambda n: moves_about(n, facts)),
        _sizes(nodes, below, facts),
        sum(len(n.operator.results) for n in nodes if _written(n, facts)),
        below.counts(_queries, lambda n: not n.operator.by_expressions or not n.operator.code()),
        sum(_leaves(facts.schemas[id(n)]) for n in nodes if isinstance(n.operator, Read)),
        caches,
        carried,
    )


def moves_about(node: Node, facts: Facts) -> bool:
    """An operator that ``late`` may move to the other side of a ``shuffle`` or ``batch``."""
    return (
        is_row_operator(node) and node.operator.storage is None and _written(node, facts) and node.effects.rows == "1:1"
    )


def growth(node: Node, facts: Facts) -> float:
    """How many times larger rows are behind an operator than before it, as measured; 1 where that is not known."""
    figures = facts.figures(node)
    if figures is None or figures.bytes_in <= 0 or figures.bytes_out <= 0:
        return 1.0
    return figures.bytes_out / figures.bytes_in


def declares_growth(node: Node) -> bool:
    """A transform that is known to make rows larger, such as one that decodes."""
    link = node.operator.link
    return link is not None and link.transform.larger


def _groups(node: Node) -> bool:
    return node.operator.grouping is not None


def _queries(node: Node) -> bool:
    return node.operator.by_expressions and not node.operator.filters


def _written(node: Node, facts: Facts) -> bool:
    return facts.ordinal(node) is not None


class _Descent:
    """Which nodes stand below which."""

    def __init__(self, nodes: list[Node], facts: Facts) -> None:
        self._nodes = nodes
        self._bits: dict[int, int] = {}
        masks: dict[int, int] = {}
        for number, node in enumerate(nodes):
            counted = _written(node, facts) and node.operator.storage is None
            self._bits[id(node)] = 1 << number if counted else 0
            masks[id(node)] = 0
            for child in node.inputs:
                masks[id(node)] |= masks[id(child)] | self._bits[id(child)]
        self._masks = masks

    def counts(self, kind: _Counts, counted: _Counts) -> list[int]:
        """For each node of a kind, how many of the nodes below it count; the most first."""
        tops = [n for n in self._nodes if kind(n) and self._bits[id(n)]]
        if not tops:
            return []
        mask = self.mask(counted)
        return sorted(((self._masks[id(n)] & mask).bit_count() for n in tops), reverse=True)

    def mask(self, counted: _Counts) -> int:
        return sum(self._bits[id(n)] for n in self._nodes if self._bits[id(n)] and counted(n))

    def of(self, top: Node) -> list[Node]:
        """The nodes below one."""
        return [n for n in self._nodes if self._masks[id(top)] & self._bits[id(n)]]


def _sizes(nodes: list[Node], below: _Descent, facts: Facts) -> float:
    """The logarithms of what operators below a shuffle make of a row's size; before any figure, those that declare it.

    There are as many values as there are sets of operators: an endless descent there is not.
    """
    total = 0.0
    for shuffle in nodes:
        if moves_rows(shuffle) and batch_rows(shuffle) is None:
            moving = [n for n in below.of(shuffle) if moves_about(n, facts)]
            if facts.profile is None:
                total += sum(map(declares_growth, moving))
            else:
                total += sum(math.log(growth(n, facts)) for n in moving)
    return round(total, 6)


def _leaves(schema: dict[str, Any] | None) -> int:
    return 0 if schema is None else sum(map(_leaves_of, schema.values()))


def _leaves_of(kind: Any) -> int:
    if isinstance(kind, pa.DataType) and pa.types.is_struct(kind):
        return 1 + sum(_leaves_of(f.type) for f in kind)
    return 1
