"""Transforms: functions that work on whole columns, and say beforehand what type they make.

``map`` knows them: ``p.map(FirstX(20), "history")`` runs once per block, and not once per row. They are plain values:
equal parameters make equal transforms. Each is a function of its row alone, so rows that are equal need it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from cedar.block import Block
from cedar.columns import Column, ColumnType, as_column, type_of
from cedar.errors import PipelineError, user_site
from cedar.groups.column import plain
from cedar.operators.arguments import pick
from cedar.operators.base import Env
from cedar.operators.failures import Blame, Failure


class BadValues(Exception):
    """Raised by a transform: what is wrong with some rows, by row, and what to do."""

    def __init__(self, rows: dict[int, str], fix: str) -> None:
        super().__init__(next(iter(rows.values()), ""))
        self.rows, self.fix = rows, fix


class Transform(ABC):
    """A function of one or several columns; subclasses are frozen dataclasses.

    ``arity`` is how many columns it reads; None is one or more.
    """

    arity: ClassVar[int | None] = 1

    @abstractmethod
    def result(self, *types: Any) -> ColumnType:
        """The type of the result for columns of these types.

        Raises:
            PipelineError: types that it does not take.
        """

    @abstractmethod
    def columns(self, *columns: Column) -> Column:
        """The result for columns of types that ``result`` takes, one entry per row.

        Raises:
            BadValues: rows that have no result.
        """

    def __call__(self, *values: Any) -> Any:
        """The result for one row, given as Python values.

        Raises:
            PipelineError: values of types that it does not take.
            ValueError: values that have no result.
        """
        arrays = [as_column(pa.array([value])) for value in values]
        self.result(*(array.type for array in arrays))
        try:
            found = self.columns(*arrays)
        except BadValues as bad:
            raise ValueError(str(bad)) from None
        return found[0].as_py() if isinstance(found, pa.Array) else found[0]

    def unfit(self, kind: ColumnType, wants: str) -> PipelineError:
        """The error for a column of a type that it does not take."""
        return PipelineError(f"{type(self).__name__} takes {wants}, not {kind}", fix="cast the column, or map it first")


def check_transform(
    transform: Transform,
    columns: tuple[str, ...],
    into: tuple[str, ...],
    random: bool,
    dtype: Any,
    timeout: float | None,
) -> None:
    """Refuse arguments of ``map`` that do not fit a transform.

    Raises:
        PipelineError: at the user's line.
    """
    name, arity = type(transform).__name__, transform.arity
    if not columns or (arity is not None and len(columns) != arity):
        wants = f"{arity} column{'s' * (arity > 1)}" if arity is not None else "at least one column"
        raise PipelineError(f"map({name}): it reads {wants}, not {len(columns)}", site=user_site(), fix="name them")
    if len(into) != 1:
        raise PipelineError(f"map({name}): it writes one column, not {len(into)}", site=user_site(), fix="give into=")
    if random or dtype is not None or timeout is not None:
        odd = "random=" if random else "dtype=" if dtype is not None else "timeout="
        raise PipelineError(
            f"map({name}, {odd}...): a transform has no use for it", site=user_site(), fix="leave it out"
        )


@dataclass(frozen=True)
class TransformRows:
    """The kernel of ``map`` with a transform."""

    transform: Transform
    reads: tuple[str, ...]
    into: str
    blame: Blame
    row_wise: ClassVar[bool] = True  # a block may be cut

    def __call__(self, block: Block, env: Env) -> Block:
        arrays = [plain(pick(block, name, self.blame)) for name in self.reads]
        try:
            self.transform.result(*(type_of(array) for array in arrays))
            made = self.transform.columns(*arrays)
        except BadValues as bad:
            failures = {row: Failure(f"{self.blame.label}: {why}", why, bad.fix) for row, why in bad.rows.items()}
            if not block.aligned:  # a function resized the batch: its rows have no keys
                raise self.blame.error(failures[min(failures)], None) from None
            return self(self.blame.settle(block, env, failures), env)
        except PipelineError as error:
            error.site = error.site or self.blame.site
            raise
        return block.with_columns({self.into: made})
