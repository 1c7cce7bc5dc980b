"""dedup: declares columns of lists that repeat, so that batches store each distinct list and its results once.

The operator changes no value and no order. A later ``batch`` delivers these columns as deduplicated groups, even if
other operators change them in between. Functions of these columns may be called only once for equal rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, ColumnType, take, type_of
from cedar.core.errors import PipelineError, invalid_call, require_columns
from cedar.core.groups import GroupColumn, RowSharing, grouped, plain
from cedar.core.stream import Abstract
from cedar.operators.base import BlockKernel, Bound, Effects, Env, Kernel, RowOperator, Schema
from cedar.operators.dedup_estimate import GroupEstimate, Sampled, find_groups

Groups = tuple[tuple[str, ...], ...]


class MakesGroups(Abstract):
    """An operator that deduplicates groups of columns."""

    @property
    @abstractmethod
    def grouping(self) -> Groups:
        """The groups; () chooses groups on a sample."""

    @abstractmethod
    def sampled_groups(self, bound: Bound) -> GroupEstimate:
        """Return the groups with estimates from a sample; read no data if no column can be in a group."""

    @abstractmethod
    def sampled(self, bound: Bound, *, mixed: bool = True) -> Sampled | None:
        """Return a sample of the columns that can be in groups; None if there are no rows.

        ``mixed`` orders the sample as rows will be ordered in batches; otherwise rows are in the order of reading.
        """


@dataclass(frozen=True)
class Dedup(RowOperator, MakesGroups):
    """Groups columns of lists for deduplication.

    Args:
        groups: the names of each group's columns; None finds worthwhile groups in a sample of the rows.
        session: the column of session IDs, used for estimates. By default, a session begins where no list repeats.

    Raises:
        PipelineError: a column is in two groups, or a group is empty.
    """

    groups: Groups | None = None
    session: str | None = None
    name: ClassVar[str] = "dedup"

    def __post_init__(self) -> None:
        named = [name for group in self.groups or () for name in group]
        for name in named:
            if not isinstance(name, str):
                raise invalid_call(f"dedup: {name!r} is not a column name", fix="name list columns")
            if named.count(name) > 1:
                raise invalid_call(f"dedup: column {name!r} is in two groups", fix="put each column into one group")
        if self.groups is not None and (not self.groups or not all(self.groups)):
            raise invalid_call("dedup: a group has no columns", fix='name columns, or use "auto"')

    def label(self) -> str:
        return f"dedup({'auto' if self.groups is None else ', '.join(map('+'.join, self.groups))})"

    def effects(self) -> Effects:
        """Return empty effects, because the operator changes no value; row operators may move before or after it."""
        return Effects(frozenset(), frozenset())

    def schema(self, *inputs: Schema) -> Schema:
        """Return the input's schema. ``bind`` checks the columns, because a plan may drop unread ones."""
        return inputs[0]

    may_fail = False
    group_use = "kept"

    @property
    def grouping(self) -> Groups:
        return self.groups or ()

    def bind(self, bound: Bound) -> Kernel:
        """Return the kernel; raises PipelineError if a column is missing or does not hold lists."""
        if self.groups is None:
            sampled = self.sampled(bound)
            groups = find_groups(sampled, self._names(bound)).groups if sampled and sampled.may_pay() else ()
            return DedupRows(tuple(estimate.names for estimate in groups))
        self._names(bound)
        return DedupRows(self.groups)

    def sampled_groups(self, bound: Bound) -> GroupEstimate:
        names = self._names(bound)
        if not names:
            return GroupEstimate(note="no column of lists")
        sampled = self.sampled(bound)
        if sampled is None:
            return GroupEstimate(note="the sample has no rows")
        if self.groups is not None:
            return GroupEstimate(tuple(sampled.estimate(group) for group in self.groups))
        return find_groups(sampled, names)

    def sampled(self, bound: Bound, *, mixed: bool = True) -> Sampled | None:
        names = self._names(bound)
        if not names:
            return None
        block, reach = bound.wide(tuple(names), self.session)
        columns = {name: block.columns[name] for name in names if name in block.columns}
        if set(columns) < set(names) or not len(block):
            return None
        session = block.columns.get(self.session) if self.session is not None else None
        _check_session(session, self.session, block, bound)
        if not mixed:
            return Sampled(columns, session)
        return Sampled(columns, session, reach, block.columns.get(reach.by) if reach.by else None)

    def _names(self, bound: Bound) -> list[str]:
        """Return the columns that can be in groups."""
        known = bound.types
        types = bound.sample().known_types if known is None or UNKNOWN in known.values() else known
        chosen = [name for group in self.groups or () for name in group]
        if not types:  # without rows, the columns are unknown
            return chosen
        session = [] if self.session is None else [self.session]
        require_columns([*chosen, *session], types, bound.label, bound.site)
        for name in chosen:
            if types[name] is not UNKNOWN and not is_lists(types[name]):
                raise bound.refusal(
                    f"column {name!r} of {types[name]} holds no lists of different lengths",
                    fix=f"make lists of it: with_columns({name}=polars.concat_list({name!r}))",
                )
        return chosen or [name for name, kind in types.items() if is_lists(kind)]


def dedup(groups: Any = "auto", session: str | None = None) -> Dedup:
    """Return the operator that ``p.dedup(...)`` adds."""
    if isinstance(groups, str) and groups == "auto":
        return Dedup(None, session)
    if (
        isinstance(groups, str)
        or not isinstance(groups, Sequence)
        or any(isinstance(group, str) or not isinstance(group, Sequence) for group in groups)
    ):
        raise invalid_call(
            f"dedup({groups!r:.80}): groups are lists of column names",
            fix='use "auto", or name the groups: dedup([["items", "actions"], ["tags"]])',
        )
    return Dedup(tuple(map(tuple, groups)), session)


def is_lists(kind: ColumnType) -> bool:
    """Return whether a column of this type can be in a group."""
    return isinstance(kind, pa.DataType) and pa.types.is_large_list(kind)


def _check_session(column: Any, name: str | None, block: Block, bound: Bound) -> None:
    if isinstance(column, pa.Array) and column.null_count:
        row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise PipelineError(
            f"{bound.label}: the session column {name!r} is null in a row",
            site=bound.site,
            row=block.live_keys().ref(row),
            fix="fill or filter those rows first",
        )


@dataclass(frozen=True)
class DedupRows(BlockKernel):
    """The kernel of ``dedup`` finds each group's distinct rows in a block. It leaves other columns unchanged."""

    groups: Groups

    def __call__(self, block: Block, env: Env) -> Block:
        if env.sampling:
            return block  # samples stay plain, because code that inspects them expects plain columns
        return block.with_columns(in_groups(block, self.groups))


def in_groups(block: Block, groups: Groups) -> dict[str, Any]:
    """Return a block's grouped columns with each distinct row stored once, in order of first occurrence."""
    columns: dict[str, Any] = {}
    for group in groups:
        lists = {name: block.columns[name] for name in group if name in block.columns}
        lists = {name: column for name, column in lists.items() if is_lists(getattr(column, "type", None))}
        if lists:
            columns.update(grouped(lists))
    return columns


def for_groups(kernel: BlockKernel, operator: RowOperator) -> BlockKernel:
    """Wrap a kernel for blocks whose columns may be in deduplicated groups."""
    effects = operator.effects()
    if operator.group_use == "expanded":
        known = effects.reads is not None and effects.writes is not None
        return PlainRows(kernel, (effects.reads or frozenset()) | (effects.writes or frozenset()) if known else None)
    if operator.group_use == "kept" or effects.reads is None or effects.writes is None:
        return kernel
    return OncePerGroup(kernel, tuple(sorted(effects.reads)), effects.writes)


class _WrappedKernel(BlockKernel):
    """A wrapper around a kernel."""

    kernel: BlockKernel

    @property
    def row_wise(self) -> bool:
        return self.kernel.row_wise

    @property
    def pooled(self) -> bool:
        return self.kernel.pooled

    @property
    def timeout(self) -> float | None:
        return self.kernel.timeout


@dataclass(frozen=True)
class PlainRows(_WrappedKernel):
    """Expands groups to plain columns before the kernel runs. ``names`` limits this to some columns; None means all."""

    kernel: BlockKernel
    names: frozenset[str] | None = None

    def __call__(self, block: Block, env: Env) -> Block:
        touched = [name for name in block.columns if self.names is None or name in self.names]
        return self.kernel(block.with_columns({name: plain(block.columns[name]) for name in touched}), env)


@dataclass(frozen=True)
class OncePerGroup(_WrappedKernel):
    """Runs a kernel once for rows that are equal in the columns that it reads, if one group contains these columns.

    If the kernel fails, it runs again on all rows, so that the failing row is reported or skipped. Columns of lists
    that it returns are added to the group. Other results are repeated for each row.
    """

    kernel: BlockKernel
    reads: tuple[str, ...]
    writes: frozenset[str]

    def __call__(self, block: Block, env: Env) -> Block:
        columns = [block.columns.get(name) for name in self.reads]
        one = columns[0].sharing if isinstance(columns[0], GroupColumn) else None
        together = all(isinstance(c, GroupColumn) and c.sharing is one for c in columns)
        if one is None or not together or block.dead:
            return self.kernel(block, env)
        narrow = one.narrow[0]
        group = {n: c.narrow() for n, c in block.columns.items() if isinstance(c, GroupColumn) and c.sharing is one}
        made = self._unique(block, {name: group[name].values for name in self.reads}, narrow, env)
        if made is None:
            return self.kernel(block, env)
        return block.with_columns(group | {name: _for_rows(values, narrow) for name, values in made.items()})

    def _unique(self, block: Block, rows: dict[str, Any], sharing: RowSharing, env: Env) -> dict[str, Any] | None:
        """Return the kernel's results for the unique rows; None if it fails or drops rows."""
        few = Block(rows, block.live_keys().take(sharing.first) if block.aligned else block.keys, aligned=block.aligned)
        try:
            done = self.kernel(few, env)
        except Exception:  # noqa: BLE001 - the run on all rows raises it again, with the row
            return None
        made = {name: done.columns[name] for name in self.writes}
        whole = not done.dead and all(len(values) == sharing.stored_rows for values in made.values())
        return made if whole else None


def _for_rows(values: Any, sharing: RowSharing) -> Any:
    if is_lists(type_of(values)):
        return GroupColumn(values, sharing, fresh=False)
    return take(values, sharing.inverse.astype(np.int64))
