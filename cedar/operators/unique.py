"""unique: one row of each distinct value. Which rows repeat others is found by one pass; then it is a filter."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, missing_column
from cedar.operators.base import Bound, Effects, Env, Kernel, RowOperator, Schema
from cedar.operators.merging import by_content
from cedar.operators.stored import StoredTable
from cedar.operators.surveys import Survey
from cedar.operators.value_hashes import by_first_bits

Keep: TypeAlias = Literal["first", "last", "any", "none"]


@dataclass(frozen=True)
class Repeats:
    """The rows that are left out, by the hashes of their keys.

    Args:
        seed: of the hashes: one by which no row that stays has the hash of one that goes.
        dropped: a column ``key`` of them, uint64, ascending.
    """

    seed: int
    dropped: StoredTable

    def holds(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """bool[rows]: which rows are left out."""
        hashes = keys.hash(self.seed)
        dropped = self.dropped.numbers("key")
        if not len(dropped):
            return np.zeros(len(hashes), dtype=bool)
        order, _ = by_first_bits(hashes)  # neighbors are looked for in the same pages of memory
        asked = hashes[order]
        found = np.zeros(len(hashes), dtype=bool)
        found[order] = dropped[np.minimum(np.searchsorted(dropped, asked), len(dropped) - 1)] == asked
        return found


@dataclass(frozen=True)
class Unique(RowOperator):
    """One row of each distinct value of some columns.

    Args:
        subset: the columns; None: all.
        keep: which of the rows with one value stays.
        survey: finds those that go.
        called: what messages call it.

    Raises:
        PipelineError: while running, below a ``batch``.
    """

    subset: tuple[str, ...] | None
    keep: str
    survey: Survey[Repeats] = field(repr=False)
    called: str = "unique"
    name: ClassVar[str] = "unique"
    filters = True
    may_fail = False
    group_aware = True

    def label(self) -> str:
        return f"{self.called}({', '.join(self.subset or ())})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(), rows="1:0..1", keyed=True)

    def schema(self, *inputs: Schema) -> Schema:
        for name in self.subset or ():
            if inputs[0] is not None and name not in inputs[0]:
                raise missing_column(name, list(inputs[0]), self.label())
        return inputs[0]

    def parameters(self) -> dict[str, Any]:
        return {"subset": None if self.subset is None else list(self.subset), "keep": self.keep}

    def merge_key(self) -> Hashable:
        return by_content(self)

    def bind(self, bound: Bound) -> Kernel:
        if bound.batched:
            raise PipelineError(f"{bound.label}: its input gives batches", site=bound.site, fix="put it above batch()")
        return UniqueRows(self.survey.under(bound.on_error))


@dataclass(frozen=True)
class UniqueRows:
    """The kernel. A sample is for types only: all of its rows stay."""

    survey: Survey[Repeats]
    row_wise: ClassVar[bool] = True  # a block may be cut

    def __call__(self, block: Block, env: Env) -> Block:
        if env.sampling:
            return block
        gone = self.survey.value.holds(block.live_keys())
        return block.filter(~gone) if gone.any() else block
