"""Splits: what is read of the sources of a pipeline, from their metadata."""

from __future__ import annotations

from functools import cached_property

from cedar.datasets.base import Read
from cedar.datasets.split_table import SplitTable
from cedar.plan import graph
from cedar.plan.graph import Node


class Splits:
    """Of each source of a pipeline its splits, listed once, without those of which filters right above leave nothing.

    Such a filter asks for columns with one value in a split, as those in the names of folders: it is settled by the
    metadata. Of the splits that are left it keeps every row, so that counts behind it are known.

    Args:
        root: the pipeline as written.
    """

    def __init__(self, root: Node) -> None:
        self._root = root
        self._known: dict[int, tuple[SplitTable, tuple[Node, ...]]] = {}

    def __call__(self, source: Node) -> SplitTable:
        """Those of a source."""
        return self._of(source.logical)[0]

    def filters(self, source: Node) -> tuple[Node, ...]:
        """The filters that are settled by the splits of a source, lowest first."""
        return self._of(source.logical)[1]

    def settled(self, node: Node) -> bool:
        """Whether an operator as written is a filter that keeps all rows of the splits there are."""
        return node.operator.condition is not None and id(node) in self._settled

    @cached_property
    def _settled(self) -> set[int]:
        return {id(each) for source in graph.sources(self._root) for each in self.filters(source)}

    @cached_property
    def _above(self) -> dict[int, list[Node]]:
        """Who draws from each operator."""
        found: dict[int, list[Node]] = {}
        for node in graph.walk(self._root):
            for child in node.inputs:
                found.setdefault(id(child), []).append(node)
        return found

    def _of(self, source: Node) -> tuple[SplitTable, tuple[Node, ...]]:
        if id(source) not in self._known:
            self._known[id(source)] = self._listed(source)
        return self._known[id(source)]

    def _listed(self, source: Node) -> tuple[SplitTable, tuple[Node, ...]]:
        assert isinstance(source.operator, Read)
        with graph.prepared(source):
            splits = SplitTable.of(source.operator.source.splits())
        settles = getattr(source.operator.source, "settles", None)
        filters: list[Node] = []
        at = source
        while settles is not None:
            above = self._above.get(id(at), [])
            condition = above[0].operator.condition if len(above) == 1 else None
            kept = None if condition is None else settles(splits, condition)
            if kept is None:
                break
            splits, at = splits[kept], above[0]
            filters.append(at)
        return splits, tuple(filters)


class TolerantSplits(Splits):
    """The same, for who only plans: a source that cannot be listed counts as one that is read from its beginning."""

    def _listed(self, source: Node) -> tuple[SplitTable, tuple[Node, ...]]:
        try:
            return super()._listed(source)
        except Exception:  # noqa: BLE001 - the run lists it again, and says what is wrong
            return SplitTable(streaming=True, length=1), ()
