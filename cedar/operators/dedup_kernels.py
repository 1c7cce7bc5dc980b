"""Kernels for blocks with deduplicated groups, which run functions of one value on unique rows only, if possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import take, type_of
from cedar.core.groups.column import GroupColumn, RowSharing, plain
from cedar.operators.base import Env, RowOperator
from cedar.operators.dedup import is_lists
from cedar.operators.kernel import BlockKernel


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
