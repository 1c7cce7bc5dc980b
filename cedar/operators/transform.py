"""Transforms: functions that work on whole columns, and say beforehand what type they make.

``map`` knows them: ``p.map(FirstX(20), "history")`` runs once per block, and not once per row. They are plain values:
equal parameters make equal transforms. Each is a function of its row alone, and of the row's draws where it is random.
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
    """Raised by a transform: what is wrong with some rows, by row, and what to do."""

    def __init__(self, rows: dict[int, str], fix: str) -> None:
        super().__init__(next(iter(rows.values()), ""))
        self.rows, self.fix = rows, fix


class Transform(ABC):
    """A function of one or several columns; subclasses are frozen dataclasses.

    Attributes:
        arity: how many columns it reads; None is one or more.
        outputs: how many columns it writes; None is as many as it reads.
        random: it draws: ``columns`` gets ``draws=``.
        per_row: its time goes into rows, not into calls, so that small blocks are worth their overhead.
        waits: it may wait for something: a service, a file.
        larger: what it makes is known to be larger than what it reads, as decoded images are.
        mixes_rows: its result for a row depends on the batch that the row is in; it works after ``batch`` alone.
        chain: what runs several such transforms, one after the other, as one kernel.
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
        """The type of the result for columns of these types; a tuple where it writes several.

        Raises:
            PipelineError: types that it does not take.
        """

    @abstractmethod
    def columns(self, *columns: Any, **draws: Any) -> Column | tuple[Column, ...]:
        """The result for columns of types that ``result`` takes, one entry per row; a tuple where it writes several.

        A random one takes ``draws=``, the draws of the rows.

        Raises:
            BadValues: rows that have no result.
        """

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        """What each row draws, by name, for people to read: from the same numbers as ``columns``.

        By default the word that a row's numbers follow from: ``Draws(np.array([word], np.uint64))`` gives them again.

        Args:
            draws: of the rows, in which ``columns`` has a result for each.
            columns: those that it reads.
        """
        del columns
        return [{"word": word} for word in draws.words.tolist()]

    def tolerance(self, above: Sequence[Transform]) -> str:
        """How it may differ below transforms of the column that it writes, where ``exact=False``; "": it may not."""
        del above
        return ""

    def like(self, sample: Callable[[], Column]) -> ColumnType | None:
        """What a column of objects is taken to hold, by a sample of it; other rows fail. None: each row tells."""
        del sample
        return None

    def __call__(self, *values: Any, draws: Draws | None = None) -> Any:
        """The result for one row, given as Python values; ``draws`` holds one row, for what is random.

        Raises:
            PipelineError: values of types that it does not take.
            ValueError: values that have no result.
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
        """Stands for what it does; a change is worth a warning at a resume. Parameters that are not plain values,
        such as a vocabulary, are for a subclass to stand for.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else vars(self)
        return f"{type(self).__name__}{ {name: v for name, v in values.items() if isinstance(v, _PLAIN)} }"

    @property
    def pooled(self) -> bool:
        """It works in threads of a library, whose CPU time is not seen from the calling thread."""
        return False

    def unfit(self, kind: ColumnType, wants: str) -> PipelineError:
        """The error for a column of a type that it does not take."""
        return PipelineError(f"{type(self).__name__} takes {wants}, not {kind}", fix="cast the column, or map it first")


def as_tuple(made: Any) -> tuple[Any, ...]:
    """What a transform made, one entry for each column that it writes."""
    return made if isinstance(made, tuple) else (made,)


def one_row(value: Any) -> Any:
    """A column of one row."""
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
    """Refuse arguments of ``map`` that do not fit a transform.

    Raises:
        PipelineError: at the user's line.
    """
    name, arity = type(transform).__name__, transform.arity
    if not columns or (arity is not None and len(columns) != arity):
        wants = _counted(arity) if arity is not None else "at least one column"
        raise PipelineError(f"map({name}): it reads {wants}, not {len(columns)}", site=user_site(), fix="name them")
    writes = len(columns) if transform.outputs is None else transform.outputs
    if len(into) != writes:
        wants = "one column" if writes == 1 else _counted(writes)
        raise PipelineError(f"map({name}): it writes {wants}, not {len(into)}", site=user_site(), fix="give into=")
    if random or dtype is not None or timeout is not None:
        odd = "random=" if random else "dtype=" if dtype is not None else "timeout="
        raise PipelineError(
            f"map({name}, {odd}...): a transform has no use for it", site=user_site(), fix="leave it out"
        )


def _counted(columns: int) -> str:
    return f"{columns} column{'s' * (columns > 1)}"
