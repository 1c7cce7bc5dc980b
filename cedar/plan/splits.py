"""Splits: use metadata of a pipeline's sources to decide which splits to read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cedar.core.cursor import Keys, no_keys
from cedar.core.errors import Skip
from cedar.datasets.base import BaseSource, Read, file_ids
from cedar.datasets.split_table import Numbers, SplitTable
from cedar.operators.base import RowOperator
from cedar.operators.expressions import SeparateResults
from cedar.operators.functions import unwrapped
from cedar.operators.split_rows import UsesRowKeys
from cedar.plan import graph
from cedar.plan.graph import Node

# A function of a source, its splits and later filters; returns how many rows of each split pass these filters.
Counts: TypeAlias = Callable[[Node, SplitTable, tuple[Node, ...]], Numbers]


class SplitListing(NamedTuple):
    """The splits of a source to read, and the filters after the source whose passing rows can be counted.

    Args:
        splits: the splits to read.
        settled: the first filters after the source, which all rows of these splits pass, in order.
        counted: the filters after those, for which the number of passing rows can be counted.
        left: the number of rows per split that pass the counted filters; None if only reading data can find it.
    """

    splits: SplitTable
    settled: tuple[Node, ...] = ()
    counted: tuple[Node, ...] = ()
    left: Numbers | None = None


class SplitCounts(NamedTuple):
    """The number of rows per split that remain after some filters, and these filters."""

    rows: Numbers
    filters: tuple[Node, ...]


class Splits:
    """Lists the splits of each source once, without splits of which the filters after the source drop all rows.

    Metadata decide a filter if its columns have one value per split, as partition columns do. Every row of the
    remaining splits then passes. For other filters, passing rows are counted from metadata, such as file paths, or by
    ``counts``. Operators in between must keep all rows, cannot fail and write no column that the filters read.

    Args:
        root: the pipeline as written.
        counts: counts passing rows when a count is first needed; None leaves these counts unknown.
        on_error: the run's policy, which also applies to surveys.
    """

    def __init__(self, root: Node, counts: Counts | None = None, on_error: Skip | None = None) -> None:
        self._root, self._counts, self._on_error = root, counts, on_error
        self._known: dict[int, SplitListing] = {}
        self._rows: dict[int, SplitCounts | None] = {}

    def __call__(self, source: Node) -> SplitTable:
        """Return the splits of a source."""
        return self._of(source.origin or source).splits

    def put(self, source: Node, splits: SplitTable) -> None:
        """Set the splits of a source that the run reads."""
        self._known[id(source.logical)] = SplitListing(splits)

    def filters(self, source: Node) -> tuple[Node, ...]:
        """Return the filters that every row of the source's remaining splits passes, in order."""
        return self._of(source.logical).settled

    def counted(self, source: Node) -> tuple[Node, ...]:
        """Return the filters for which passing rows are counted, in order."""
        return self._of(source.logical).counted

    def rows(self, source: Node) -> SplitCounts | None:
        """Return how many rows per split pass the counted filters, reading data if needed; None if there are none."""
        source = source.logical
        if id(source) not in self._rows:
            splits, _, filters, left = self._of(source)
            if left is None and filters and self._counts is not None:
                left = self._counts(source, splits, filters)
            self._rows[id(source)] = None if left is None else SplitCounts(left, filters)
        return self._rows[id(source)]

    def settled(self, node: Node) -> bool:
        """Return whether an operator is a filter for which the number of passing rows is known or can be counted."""
        return node.filters and id(node) in self._settled

    @cached_property
    def _settled(self) -> set[int]:
        settled: set[int] = set()
        for source in graph.sources(self._root):
            listed = self._of(source)
            settled.update(map(id, (*listed.settled, *listed.counted)))
        return settled

    @cached_property
    def _only_above(self) -> dict[int, Node | None]:
        """The only consumer of each node, by the node's ``id()``; None if it has several."""
        consumers: dict[int, Node | None] = {}
        for node in graph.walk(self._root):
            for child in node.inputs:
                consumers[id(child)] = None if id(child) in consumers else node
        return consumers

    def _of(self, source: Node) -> SplitListing:
        if id(source) not in self._known:
            self._known[id(source)] = self._listed(source)
        return self._known[id(source)]

    def _listed(self, source: Node) -> SplitListing:
        with graph.at_site(source):
            splits = graph.splits_of(source)
        settled: list[Node] = []
        counted: list[Node] = []
        at, known, settling = source, None, True
        while (above := self._only_above.get(id(at))) is not None:
            left = self._left(source, splits, [*counted, above]) if settling or above.filters else None
            settling = settling and left is not None and not ((left > 0) & (left < splits.rows)).any()
            if settling and left is not None:
                splits = splits[left > 0]
                settled.append(above)
            elif above.filters:
                if left is None and self._counts is None:
                    break
                if (left is None or not _by_keys(above)) and uncountable(above, source):
                    break
                counted, known = [*counted, above], left
            elif not passes(above) and not _by_keys(above):
                break
            at = above
        return SplitListing(splits, tuple(settled), tuple(counted), known)

    def _left(self, source: Node, splits: SplitTable, filters: Sequence[Node]) -> Numbers | None:
        """Return how many rows of each split pass all filters; None if metadata are not sufficient."""
        if _by_keys(filters[0]):
            return _left_by_keys(graph.source_of(source), splits, filters, self._on_error)
        every = filters[0].condition
        for each in filters[1:]:
            every = None if every is None or each.condition is None else every & each.condition
        if every is None:
            return None
        return graph.source_of(source).count_matching_rows(splits, every)


def _by_keys(node: Node) -> bool:
    """Return whether a filter depends only on row keys."""
    operator = node.operator if node.by_keys else None
    return isinstance(operator, UsesRowKeys) and operator.keeps_keys(no_keys(), None) is not None


def _left_by_keys(
    source: BaseSource, splits: SplitTable, filters: Sequence[Node], on_error: Skip | None
) -> Numbers | None:
    """Return how many rows of each split pass filters on row keys; None if metadata do not contain the keys."""
    operators = [each.operator for each in filters if each.by_keys]
    if not splits.counted or source.tolerant:
        return None
    left = np.zeros(len(splits), dtype=np.int64)
    for place, split in enumerate(splits):
        if (numbers := source.row_keys(split)) is None:
            return None
        keys = Keys(numbers[1], file_ids(source, numbers[0]))
        masks = [each.keeps_keys(keys, on_error) for each in operators if isinstance(each, UsesRowKeys)]
        known = [mask for mask in masks if mask is not None]
        if len(known) < len(filters):
            return None
        left[place] = np.count_nonzero(np.logical_and.reduce(known))
    return left


def passes(node: Node) -> bool:
    """Return whether an operator keeps every row and cannot fail, so that counting rows can ignore it."""
    operator, effects = node.operator, node.effects
    if not isinstance(operator, RowOperator) or node.storage is not None or node.batched:
        return False
    if effects.rows != "1:1" or effects.writes is None:
        return False
    never = isinstance(operator, SeparateResults) and all(
        operator.never_fails(number, node.inputs[0].schema) for number in range(len(operator.results))
    )
    return never or not operator.may_fail


def uncountable(node: Node, source: Node) -> str:
    """Return why a filter's passing rows cannot be counted by reading only its columns; "" if they can."""
    assert isinstance(source.operator, Read)
    operator, effects = node.operator, node.effects
    if not node.filters:
        return "it changes how many rows there are in another way than a filter"
    if effects.random:
        return "it draws at random"
    if effects.reads is None:
        return "it reads the whole row; name its columns"
    if any(_holds_state(each) for each in operator.code()):
        return "its function is an object, whose state may differ from call to call; give a plain function"
    if source.operator.source.tolerant:
        return "with Skip(files=True) a file may turn out to be damaged"
    if not source.operator.source.reads_columns_separately:
        return f"{source.operator.label()} cannot read some columns without the others, as Parquet can"
    below, schema = node.inputs[0], source.schema
    while below.inputs:
        made = frozenset[str]() if below.filters else effects.reads & (below.effects.writes or frozenset())
        if made:
            return f"it asks for {', '.join(map(repr, sorted(made)))}, which {below.operator.label()} writes"
        below = below.inputs[0]
    if schema is None or not effects.reads <= schema.keys():
        return "its columns are not those of the source"
    return ""


def _holds_state(code: Any) -> bool:
    code = unwrapped(code)
    return callable(code) and not inspect.isroutine(code) and not hasattr(code, "meta")


class TolerantSplits(Splits):
    """Splits for planning only: it treats a source whose files cannot be listed as a source without splits."""

    def _listed(self, source: Node) -> SplitListing:
        try:
            return super()._listed(source)
        except Exception:  # noqa: BLE001 - the run lists it again and reports the error
            return SplitListing(SplitTable(streaming=True, length=1))
