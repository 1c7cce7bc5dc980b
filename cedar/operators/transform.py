"""Transforms: functions that work on whole columns and declare their result types.

``map`` accepts transforms: ``p.map(FirstX(20), "history")`` runs once per block instead of once per row. Transforms
with equal parameters are equal. A row's result depends only on the row, and on its random draws if there are any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.boundary import as_column
from cedar.core.columns import Column, ColumnType, objects, type_of
from cedar.core.errors import PipelineError, user_site
from cedar.operators.chains import Chain
from cedar.operators.draws import Draws

_PLAIN = (str, int, float, tuple, type(None))


class BadValues(Exception):
    """Raised by a transform that failed on some rows, with the problem of each row and a fix."""

    def __init__(self, rows: dict[int, str], fix: str) -> None:
        super().__init__(next(iter(rows.values()), ""))
        self.rows, self.fix = rows, fix


class Transform(ABC):
    """A function of one or several columns; subclasses are frozen dataclasses.

    Attributes:
        arity: the number of columns that the transform reads; None for one or more.
        outputs: the number of columns that the transform writes; None for as many as it reads.
        random: whether the transform draws random numbers, so that ``columns`` receives ``draws=``.
        per_row: whether most time is spent per row rather than per call, so that small blocks have little overhead.
        waits: whether the transform may wait for I/O, such as a service or a file.
        larger: whether the result is known to be larger than the input, as for decoded images.
        mixes_rows: whether a row's result depends on the row's batch; such a transform works only after ``batch``.
        chain: the ``Chain`` that fuses several such transforms into one kernel; None if they cannot be fused.
    """

    arity: ClassVar[int | None] = 1
    outputs: ClassVar[int | None] = 1
    random: ClassVar[bool] = False
    per_row: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    larger: ClassVar[bool] = False
    mixes_rows: ClassVar[bool] = False
    chain: ClassVar[Chain | None] = None

    @abstractmethod
    def result(self, *types: Any) -> ColumnType | tuple[ColumnType, ...]:
        """Return the type of the result for columns of these types; a tuple if the transform writes several columns.

        Raises:
            PipelineError: the transform does not accept these types.
        """

    @abstractmethod
    def columns(self, *columns: Any, **draws: Any) -> Column | tuple[Column, ...]:
        """Return the result for columns of accepted types, one entry per row; a tuple of results for several columns.

        A random transform receives ``draws=``, the rows' random draws.

        Raises:
            BadValues: some rows have no result.
        """

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        """Describe each row's random choices, as a dict by name, computed from the same draws as in ``columns``.

        By default, the dict contains the row's seed as ``word``: ``Draws(np.array([word], np.uint64))`` repeats draws.

        Args:
            draws: the draws of the rows, on each of which ``columns`` succeeded.
            columns: the columns that the transform reads.
        """
        del columns
        return [{"word": word} for word in draws.words.tolist()]

    def tolerance(self, above: Sequence[Transform]) -> str:
        """Describe how far the result may differ with ``exact=False`` before the transforms ``above``; "" if exact."""
        del above
        return ""

    def like(self, sample: Callable[[], Column]) -> ColumnType | None:
        """Return the type of all rows of an object column, inferred from a sample; None if types may differ."""
        del sample
        return None

    def __call__(self, *values: Any, draws: Draws | None = None) -> Any:
        """Return the result for one row, given as Python values; a random transform also needs the row's ``draws``.

        Raises:
            PipelineError: the transform does not accept the values' types.
            ValueError: the values have no result.
        """
        arrays = [as_column(one_row(value)) for value in values]
        self.result(*(type_of(array) for array in arrays))
        try:
            columns = self.columns(*arrays) if draws is None else self.columns(*arrays, draws=draws)
        except BadValues as bad:
            raise ValueError(str(bad)) from None
        made = [column[0].as_py() if isinstance(column, pa.Array) else column[0] for column in as_tuple(columns)]
        return tuple(made) if isinstance(columns, tuple) else made[0]

    @property
    def identity(self) -> str:
        """Identifies the transform and its plain parameters in a string; resuming warns if it changed. Subclasses must
        add parameters that are not plain values, such as a vocabulary.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else vars(self)
        return f"{type(self).__name__}{ {name: v for name, v in values.items() if isinstance(v, _PLAIN)} }"

    @property
    def pooled(self) -> bool:
        """Whether a library's threads do the work, so that the calling thread's CPU time does not include it."""
        return False

    def unfit(self, kind: ColumnType, wants: str) -> PipelineError:
        """Return the error for a column of a type that the transform does not accept."""
        return PipelineError(f"{type(self).__name__} takes {wants}, not {kind}", fix="cast the column, or map it first")


def as_tuple(made: Any) -> tuple[Any, ...]:
    """Return a transform's result as a tuple with one entry for each column that it writes."""
    return made if isinstance(made, tuple) else (made,)


def one_row(value: Any) -> Any:
    """Return a column with one row that contains this value."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value[None] if value.dtype != object else objects([value])
    return pa.array([value])


def check_transform(
    transform: Transform,
    columns: tuple[str, ...],
    into: tuple[str, ...],
    random: bool,
    dtype: Any,
    timeout: float | None,
) -> None:
    """Check that the arguments of ``map`` fit a transform.

    Raises:
        PipelineError: an argument does not fit; the error names the user's line.
    """
    name, arity = type(transform).__name__, transform.arity
    if not columns or (arity is not None and len(columns) != arity):
        wants = _count_phrase(arity) if arity is not None else "at least one column"
        raise PipelineError(f"map({name}): it reads {wants}, not {len(columns)}", site=user_site(), fix="name them")
    writes = len(columns) if transform.outputs is None else transform.outputs
    if len(into) != writes:
        wants = "one column" if writes == 1 else _count_phrase(writes)
        raise PipelineError(f"map({name}): it writes {wants}, not {len(into)}", site=user_site(), fix="give into=")
    if random or dtype is not None or timeout is not None:
        odd = "random=" if random else "dtype=" if dtype is not None else "timeout="
        raise PipelineError(
            f"map({name}, {odd}...): a transform does not accept it", site=user_site(), fix="leave it out"
        )


def _count_phrase(columns: int) -> str:
    return f"{columns} column{'s' * (columns > 1)}"
