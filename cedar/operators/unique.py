"""unique: keeps one row per distinct value. A first pass over all rows finds repeats, and then a filter drops them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.core.errors import require_columns
from cedar.operators.base import BlockKernel, Bound, Effects, Env, Kernel, Mergeable, RowOperator, Schema
from cedar.operators.split_rows import UsesRowKeys, sort_by_first_bits
from cedar.operators.surveys import StoredTable, Survey, Surveyed

Keep: TypeAlias = Literal["first", "last", "any", "none"]


@dataclass(frozen=True)
class Repeats:
    """The rows to drop, by the hashes of their keys.

    Args:
        seed: the seed of the hashes, chosen so that no kept row has the same hash as a dropped row.
        dropped: a table whose column ``key`` contains the hashes of dropped rows, uint64, ascending.
    """

    seed: int
    dropped: StoredTable

    def holds(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return whether each row is dropped, as a bool array."""
        hashes = keys.hash(self.seed)
        dropped = self.dropped.numbers("key")
        if not len(dropped):
            return np.zeros(len(hashes), dtype=bool)
        order, _ = sort_by_first_bits(hashes)  # so that successive lookups touch neighboring memory pages
        asked = hashes[order]
        found = np.zeros(len(hashes), dtype=bool)
        found[order] = dropped[np.minimum(np.searchsorted(dropped, asked), len(dropped) - 1)] == asked
        return found


@dataclass(frozen=True)
class Unique(RowOperator, UsesRowKeys, Mergeable, Surveyed):
    """Keeps one row of each distinct value of some columns.

    Args:
        subset: the columns to compare; None for all.
        keep: which one of the rows with equal values to keep.
        survey: finds the rows to drop.
        called: the operator's name in messages.

    Raises:
        PipelineError: while running, the operator comes after a ``batch``.
    """

    subset: tuple[str, ...] | None
    keep: str
    survey: Survey[Repeats] = field(repr=False)
    called: str = "unique"
    name: ClassVar[str] = "unique"
    may_fail = False
    group_use = "kept"

    def label(self) -> str:
        return f"{self.called}({', '.join(self.subset or ())})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(), rows="1:0..1")

    def schema(self, *inputs: Schema) -> Schema:
        require_columns(self.subset or (), inputs[0], self.label())
        return inputs[0]

    def parameters(self) -> dict[str, Any]:
        return {"subset": None if self.subset is None else list(self.subset), "keep": self.keep}

    def bind(self, bound: Bound) -> Kernel:
        bound.refuse_batches()
        return UniqueRows(self.survey.under(bound.on_error))


@dataclass(frozen=True)
class UniqueRows(BlockKernel):
    """The kernel of ``unique``. It keeps all rows of samples, which are used only to infer types."""

    survey: Survey[Repeats]
    row_wise: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        if env.sampling:
            return block
        gone = self.survey.value.holds(block.live_keys())
        return block.filter(~gone) if gone.any() else block
