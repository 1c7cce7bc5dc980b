"""pad: turns lists of different lengths into arrays of one shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, Column, ColumnType, ObjectType, TensorType
from cedar.core.convert import to_numpy
from cedar.core.errors import PipelineError, Skip, check_names, invalid_call, require_columns
from cedar.core.jagged import JaggedTensor, pad_values
from cedar.core.limits import as_int
from cedar.operators.base import BlockKernel, Bound, Effects, Env, Kernel, Mergeable, RowOperator, Schema
from cedar.operators.failures import ErrorContext, Failure
from cedar.operators.packing import Fill, as_fill, check_fill, fill_for_column, token_dtype


@dataclass(frozen=True)
class Pad(RowOperator, Mergeable):
    """Turns lists of numbers into ndarrays of shape (rows, to), and fills short lists with ``value``.

    Args:
        columns: the columns of lists of numbers to pad; () for all of them.
        to: the new length; None means the longest list of the batch, which requires an earlier ``batch``.
        value: the number that is written after the end of a list, which must fit the dtype of the lists; or one per
            column in a dict, 0 for the others.

    Raises:
        PipelineError: ``to`` is None without batches, or is invalid, or a column does not contain lists of numbers.
        RowError: while running, a list is null or longer than ``to``.
    """

    columns: tuple[str, ...] = ()
    to: int | None = None
    value: Any = 0
    on_error: Skip | None = None
    name: ClassVar[str] = "pad"

    def __post_init__(self) -> None:
        check_names("pad", *self.columns)
        object.__setattr__(self, "to", as_int(self.to))
        if self.to is not None and (isinstance(self.to, bool) or not isinstance(self.to, int) or self.to < 0):
            raise invalid_call(f"pad(to={self.to!r}): a length is an integer, not negative")
        object.__setattr__(self, "value", as_fill(self.value, "pad"))

    def label(self) -> str:
        names = ", ".join(self.columns) or "all lists"
        return f"pad({names}, to={self.to})"

    def effects(self) -> Effects:
        touched = frozenset(self.columns) if self.columns else None
        return Effects(touched, touched)

    def schema(self, *inputs: Schema) -> Schema:
        known = inputs[0]
        if known is None:
            return None
        if not self.columns and UNKNOWN in known.values():  # only a run reveals which columns are lists
            return {name: UNKNOWN if kind is UNKNOWN or token_dtype(kind) else kind for name, kind in known.items()}
        blame = ErrorContext(0, self.label())
        padded = {name: self._padded(known[name]) for name in _targets(self.columns, known, blame, self.value)}
        return {**known, **padded}

    def _padded(self, kind: ColumnType) -> ColumnType:
        dtype = token_dtype(kind)
        return UNKNOWN if self.to is None or dtype is None else TensorType((self.to,), str(dtype))

    def bind(self, bound: Bound) -> Kernel:
        if self.to is None and not bound.batched:
            raise PipelineError(
                f"{self.label()}: without to=, lists are padded to the longest of their batch, and there is no batch",
                site=bound.site,
                fix="give to=, or put .batch(...) before .pad(...)",
            )
        blame = ErrorContext.at(bound)
        if bound.types is not None and UNKNOWN not in bound.types.values():
            _targets(self.columns, bound.types, blame, self.value)
        return PadKernel(self.columns, self.to, self.value, blame)


@dataclass(frozen=True)
class PadKernel(BlockKernel):
    """The kernel of ``pad``; see ``Pad``."""

    columns: tuple[str, ...]
    to: int | None
    value: Fill
    blame: ErrorContext

    def __call__(self, block: Block, env: Env) -> Block:
        types = block.known_types
        names = [n for n in _targets(self.columns, types, self.blame, self.value) if types[n] is not UNKNOWN]
        failures: dict[int, Failure] = {}
        for name in reversed(names):  # if several columns fail on a row, the reason of the first column is reported
            failures |= _misfits(name, block.columns[name], self.to, self.blame.label)
        block = self.blame.settle(block, env, failures)
        return block.with_columns({name: self._pad(block.columns[name], name) for name in names})

    def _pad(self, column: Column, name: str) -> Column:
        values = to_numpy(column, name)
        if isinstance(values, JaggedTensor):
            lengths = values.lengths()
            flat = values.values
        else:  # a tensor column: all lists have the same length
            lengths = np.full(len(values), values.shape[1], dtype=np.int64)
            flat = values.reshape(-1)
        to = self.to if self.to is not None else int(lengths.max(initial=0))
        return pad_values(flat, lengths, to, fill_for_column(self.value, name))


def _targets(columns: tuple[str, ...], types: dict[str, ColumnType], blame: ErrorContext, value: Fill) -> list[str]:
    """Return the columns to pad: the given ones, or every list of numbers."""
    names = list(columns) or [name for name, kind in types.items() if token_dtype(kind) is not None]
    for name in names:
        require_columns([name], types, blame.label, blame.site)
        if types[name] is not UNKNOWN and token_dtype(types[name]) is None:
            fix = "pad list columns; .map(fn, column) reshapes other things"
            if isinstance(types[name], ObjectType):
                fix = f"make lists first, before batch: .map(lambda x: x, {name!r}, dtype=list[float])"
            raise blame.refusal(f"column {name!r} is {types[name]}, not lists of numbers", fix=fix)
    filled = {name: token_dtype(kind) for name, kind in types.items() if name in names or kind is UNKNOWN}
    check_fill(value, filled, blame.label, blame.site)
    return names


def _misfits(name: str, column: Column, to: int | None, label: str) -> dict[int, Failure]:
    """Return failures for rows whose list is null, too long, or contains nulls that its dtype cannot represent."""
    failures: dict[int, Failure] = {}

    def fail(rows: Iterable[int], template: str, fix: str) -> None:
        for row in rows:
            short = template.format(row=row)
            failures[int(row)] = Failure(f"{label}: {short}", short, fix)

    if not isinstance(column, pa.Array):
        if to is not None and column.shape[1] > to:
            longer = f"column {name!r} has {column.shape[1]} values, more than {to}"
            fail(range(len(column)), longer, "raise to=, or cut the arrays first")
        return failures
    if column.null_count:
        nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        fail(nulls, f"column {name!r} is null", f"with_columns({name}=col({name!r}).fill_null([])) first")
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    inner = column.flatten()  # leaves out items that Arrow stores for null lists
    if inner.null_count and not pt.is_floating(inner.type):
        places = np.flatnonzero(inner.is_null().to_numpy(zero_copy_only=False))
        holding = np.repeat(np.arange(len(column)), lengths)[places]
        fail(np.unique(holding), f"column {name!r} has a null in its list", "fill the nulls inside the lists first")
    if to is not None:
        for row in np.flatnonzero(lengths > to):
            cut = f"raise to=, or cut the lists first: with_columns({name}=col({name!r}).list.head({to}))"
            fail([int(row)], f"column {name!r} has {int(lengths[row])} values, more than {to}", cut)
    return failures
