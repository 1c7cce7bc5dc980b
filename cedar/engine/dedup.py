"""Support for ``dedup()``: sample rows for estimates, and find the columns that batches store as feature groups."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cedar.core.block import Block
from cedar.core.errors import PipelineError
from cedar.datasets.base import BaseSource, Read
from cedar.engine.streams.splits import Window
from cedar.operators.base import Mixing, RowOperator
from cedar.operators.batch import MakesBatches
from cedar.operators.dedup import DedupRows, Groups, MakesGroups
from cedar.operators.dedup_estimate import SAMPLED_ROWS, GroupEstimate, Reach
from cedar.operators.expressions import ByExpressions, ColumnEdit
from cedar.plan import graph
from cedar.plan.graph import Node

if TYPE_CHECKING:
    from cedar.engine.binding import Binding

_SLOW_ROWS = 1024  # rows to sample where an operator runs Python for every row


class Marked:
    """The feature groups in a pipeline's batches, computed on first use. Only the column names are pickled."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._lock = threading.Lock()
        self._groups: Groups | None = None

    @property
    def groups(self) -> Groups:
        """The column names of each group at the pipeline's end."""
        with self._lock:  # several threads may read this property concurrently
            if self._groups is None:
                self._groups = marked_groups(self._binding)
            return self._groups

    def __reduce__(self) -> tuple[Any, ...]:
        return _MarkedGroups, (self.groups,)


class _MarkedGroups:
    def __init__(self, groups: Groups) -> None:
        self.groups = groups


def marked_groups(binding: Binding) -> Groups:
    """Return the groups of all ``dedup()`` operators, with the names that their columns have at the pipeline's end.

    Raises:
        PipelineError: a column is in two groups.
    """
    nodes = [node for node in binding.nodes if isinstance(node.operator, MakesGroups)]
    given = [node for node in nodes if isinstance(node.operator, MakesGroups) and node.operator.grouping]
    marked: dict[tuple[str, ...], Node] = {}
    taken: dict[str, tuple[str, ...]] = {}
    for node in [*given, *(node for node in nodes if node not in given)]:
        kernel = binding.bound(node)
        assert isinstance(kernel, DedupRows)
        for group in _groups_at_root(binding.root, node, kernel.groups):
            if node not in given:
                group = tuple(name for name in group if name not in taken)
            clash = next((name for name in group if taken.get(name, group) != group), None)
            if clash is not None:
                raise PipelineError(
                    f"dedup: column {clash!r} is in two groups, {'+'.join(taken[clash])} and {'+'.join(group)}",
                    site=node.site,
                    fix="put each column into one group",
                )
            if group:
                marked[group] = node
                taken.update(dict.fromkeys(group, group))
    return tuple(marked)


def _groups_at_root(root: Node, node: Node, groups: Groups) -> Iterator[tuple[str, ...]]:
    """Yield the groups with the column names at the root, for every path from ``node`` to the root."""
    parents: dict[int, list[Node]] = {}
    for parent in graph.walk(root):
        for child in parent.inputs:
            parents.setdefault(id(child), []).append(parent)
    waiting = [(node, groups)]
    while waiting:
        current, names = waiting.pop()
        if current is root:
            yield from names
        for parent in dict.fromkeys(parents.get(id(current), ())):
            pairs = parent.renames
            waiting.append((parent, tuple(tuple(pairs.get(name, name) for name in group) for group in names)))


def factors_where_read(binding: Binding, node: Node) -> dict[str, float]:
    """Return, for each ``dedup()`` column, how often the rows of its group repeat in the order in which they are read.

    Raises:
        CedarError: the sample cannot be read.
    """
    kernel = binding.bound(node)
    assert isinstance(kernel, DedupRows)
    assert isinstance(node.operator, MakesGroups)
    sampled = node.operator.sampled(binding.place(node), mixed=False)
    known = {} if sampled is None else {group: sampled.estimate(group).factor for group in kernel.groups}
    return {name: factor for group, factor in known.items() for name in group}


def as_read(source: BaseSource, binding: Binding, links: Sequence[Any]) -> BaseSource:
    """Return a source that reads larger chunks if a ``dedup()`` among ``links`` comes before any expensive operator."""
    names: set[str] = set()
    for node in links:
        if not isinstance(node, Node) or not isinstance(node.operator, MakesGroups | ByExpressions | ColumnEdit):
            break
        if isinstance(node.operator, MakesGroups):
            kernel = binding.bound(node)
            assert isinstance(kernel, DedupRows)
            names.update(name for group in kernel.groups for name in group)
    return source.with_repeating(frozenset(names)) if names else source


def found_groups(binding: Binding) -> Iterator[tuple[Node, GroupEstimate]]:
    """Yield each ``dedup()`` with the estimate of its groups from sampled rows."""
    for node in binding.nodes:
        if isinstance(node.operator, MakesGroups):
            yield node, node.operator.sampled_groups(binding.place(node))


# ---- samples ---------------------------------------------------------------------------------------------------------


def wide_sample(binding: Binding, node: Node, names: Iterable[str], session: str | None) -> tuple[Block, Reach]:
    """Sample up to a few thousand rows with the columns ``names`` below ``node``; also return how they are batched.

    Functions below ``node`` are skipped if they do not change these columns or only transform their single values.
    """
    wanted = {*names, *([session] if session else [])}
    reach = _reach(binding, node)
    if reach.by is not None:
        wanted.add(reach.by)
    below = node.inputs[0]
    while _preserves_columns(below, wanted):
        below = below.inputs[0]
    slow = any(n.operator.effects().per_row for n in graph.walk(below))
    block = binding.rows_after(below, _SLOW_ROWS if slow else SAMPLED_ROWS)
    return block, reach


def _preserves_columns(node: Node, wanted: set[str]) -> bool:
    operator, effects = node.operator, node.operator.effects()
    if isinstance(operator, Read) or len(node.inputs) != 1:
        return False
    if not isinstance(operator, RowOperator):
        return operator.group_use != "expanded" or isinstance(operator, MakesBatches)
    if effects.rows != "1:1" or effects.writes is None:
        return False
    return effects.algebra is not None or not effects.writes & wanted


def _reach(binding: Binding, node: Node) -> Reach:
    """Return the size of the batches that rows of ``node`` are part of, and how rows are shuffled before batching."""
    parents = {id(child): parent for parent in binding.nodes for child in parent.inputs}
    path = [n for n in graph.walk(node) if n is not node]
    above: Node | None = node
    while above is not None:
        path.append(above)
        above = parents.get(id(above))
    batch: int | None = None
    window: float | None = None
    by, interleave = None, 1
    for each in path:
        operator, mixing = each.operator, each.ordering.mixing
        if isinstance(operator, MakesBatches):
            batch = batch or operator.max_rows
        elif mixing is not None and batch is None:
            window = max(window or 0.0, _window_rows(binding, mixing))
            by, interleave = mixing.by, mixing.interleave
    return Reach(batch, window, by, interleave)


def _window_rows(binding: Binding, mixing: Mixing) -> float:
    """Estimate the rows of a shuffle window, which is a run of whole splits, from the metadata of the sources."""
    if mixing.rows is None and mixing.bytes is None:
        return float(SAMPLED_ROWS << 20)  # without a limit, the window contains all rows
    tables = [binding.splits(source) for source in binding.sources]
    rows = sum(splits.known_rows for splits in tables)
    size = sum(splits.known_bytes for splits in tables)
    least = max(splits.max_rows for splits in tables)
    if mixing.rows is not None:
        return float(max(least, min(mixing.rows, rows or mixing.rows)))
    if not rows or not size:
        return float(max(least, SAMPLED_ROWS))
    return max(least, rows * min(1.0, Window(mixing.bytes).limit(size, rows) / size))
