"""Two operators: one that changes a column, and a filter whose condition sources may apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.errors import missing_column
from cedar.operators.base import Bound, Effects, Env, Kernel, Mergeable, RowOperator, Schema
from cedar.operators.expressions import Conditional


@dataclass(frozen=True)
class Scale(RowOperator, Mergeable):
    """Multiplies a column of numbers by a factor, into ``into`` or the column itself."""

    column: str
    factor: float
    into: str | None = None
    name = "scale"

    @property
    def written(self) -> str:
        return self.into or self.column

    def effects(self) -> Effects:
        return Effects(reads=frozenset({self.column}), writes=frozenset({self.written}))

    def schema(self, *inputs: Schema) -> Schema:
        known = inputs[0]
        if known is None:
            return None
        if self.column not in known:
            raise missing_column(self.column, list(known), self.label())
        return {**known, self.written: pa.float64()}

    def bind(self, bound: Bound) -> Kernel:
        return ScaleKernel(self.column, self.written, self.factor)

    # ---- what it declares next to its effects ----

    @property
    def may_fail(self) -> bool:
        return False

    @property
    def calls_functions(self) -> bool:
        return False  # nothing of the environment is set up for it


@dataclass(frozen=True)
class ScaleKernel:
    column: str
    written: str
    factor: float

    def __call__(self, block: Block, env: Env) -> Block:
        values = np.asarray(block.columns[self.column].to_numpy(zero_copy_only=False), dtype=np.float64)
        return block.with_columns({self.written: pa.array(values * self.factor)})


@dataclass(frozen=True)
class AtLeast(RowOperator, Conditional, Mergeable):
    """Keeps the rows in which a column is at least ``least``."""

    column: str
    least: float
    name = "at_least"

    def effects(self) -> Effects:
        return Effects(reads=frozenset({self.column}), writes=frozenset(), rows="1:0..1")

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    def bind(self, bound: Bound) -> Kernel:
        return AtLeastKernel(self.column, self.least)

    @property
    def may_fail(self) -> bool:
        return False

    @property
    def calls_functions(self) -> bool:
        return False

    @property
    def condition(self) -> Any:
        return pl.col(self.column) >= self.least


@dataclass(frozen=True)
class AtLeastKernel:
    column: str
    least: float

    def __call__(self, block: Block, env: Env) -> Block:
        values = np.asarray(block.columns[self.column].to_numpy(zero_copy_only=False), dtype=np.float64)
        return block.filter(values >= self.least)
