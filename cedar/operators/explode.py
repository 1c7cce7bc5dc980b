"""explode: turns each row of lists into one row per item, without running Python code per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, ColumnType
from cedar.core.distinct import list_offsets
from cedar.core.errors import PipelineError, invalid_call, require_columns
from cedar.core.groups import plain, take_each
from cedar.core.values import type_name
from cedar.operators.base import BlockKernel, Bound, Effects, Env, Kernel, RowOperator, Schema
from cedar.operators.failures import ErrorContext, Failure


@dataclass(frozen=True)
class Explode(RowOperator):
    """Turns each row of lists into one row per item, as in ``p.apply(Explode("items"))``.

    Several columns of lists are exploded in parallel; other columns are repeated. Groups from an earlier ``dedup`` stay
    deduplicated without comparing values again. A row whose list is empty or null gives no rows.

    Args:
        *names: columns of lists; in each row, their lists must have equal lengths.
        fields: True turns a list of structs into one column per field.

    Raises:
        PipelineError: no column is given, a column does not contain lists, or a field has the name of another column.
        RowError: while running, a row's lists have different lengths.

    Examples:
        >>> import cedar
        >>> rows = cedar.from_items([{"user": 1, "shown": [7, 8], "click": [0, 1]}])
        >>> list(rows.apply(Explode("shown", "click")))
        [{'user': 1, 'shown': 7, 'click': 0}, {'user': 1, 'shown': 8, 'click': 1}]
    """

    names: tuple[str, ...]
    fields: bool = False
    name: ClassVar[str] = "explode"

    def __init__(self, *names: str, fields: bool = False) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "fields", fields)
        if not names or not all(isinstance(name, str) for name in names):
            shown = ", ".join(map(repr, names))
            raise invalid_call(f"explode({shown}): names of columns, at least one", fix="such as explode('a', 'b')")

    def label(self) -> str:
        return f"explode({', '.join(self.names)})"

    def effects(self) -> Effects:
        return Effects(frozenset(self.names), None if self.fields else frozenset(self.names), rows="1:n")

    def parameters(self) -> dict[str, Any]:
        return {"names": list(self.names), "fields": self.fields}

    def schema(self, *inputs: Schema) -> Schema:
        (known,) = inputs
        if known is None:
            return None
        types: dict[str, ColumnType] = {}
        require_columns(self.names, known, self.label())
        for name, kind in known.items():
            if name not in self.names:
                _add(types, name, kind, self.label())
            elif kind is UNKNOWN:
                return None
            else:
                for made, inner in self._made(name, kind):
                    _add(types, made, inner, self.label())
        return types

    def _made(self, name: str, kind: ColumnType) -> list[tuple[str, ColumnType]]:
        if not isinstance(kind, pa.DataType) or not (pt.is_large_list(kind) or pt.is_fixed_size_list(kind)):
            text = f"{self.label()}: column {name!r} of {type_name(kind)} holds no lists"
            raise PipelineError(text, fix="name columns of lists")
        if self.fields and pt.is_struct(kind.value_type):
            return [(field.name, field.type) for field in kind.value_type]
        return [(name, kind.value_type)]

    def bind(self, bound: Bound) -> Kernel:
        bound.refuse_batches()
        types = bound.types
        if not types or any(types.get(name) is UNKNOWN for name in self.names):
            types = bound.sample().known_types
        self.schema(types or None)
        return ExplodeRows(self, ErrorContext.at(bound))


@dataclass(frozen=True)
class ExplodeRows(BlockKernel):
    """The kernel of ``Explode``. An output row's key is the original row's key plus the item's index."""

    operator: Explode
    blame: ErrorContext
    row_wise: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        known = block.known_types
        if any(known[name] is UNKNOWN for name in self.operator.names):
            return block.only_columns({}) if self.operator.fields else block
        lists = {name: plain(block.columns[name]) for name in self.operator.names}
        offsets = {name: _offsets(column) for name, column in lists.items()}
        first, *others = (np.diff(each) for each in offsets.values())
        differs = np.zeros(len(first), dtype=bool)
        for other in others:
            differs |= first != other
        if differs.any():
            problem = f"{self.blame.label}: lists of different lengths in a row"
            failures = {int(row): Failure(problem, problem, "make them equal first") for row in np.flatnonzero(differs)}
            return self(self.blame.settle(block, env, failures), env)
        repeated = np.repeat(np.arange(len(first)), first)
        kept = take_each({n: c for n, c in block.columns.items() if n not in lists}, repeated)
        columns: dict[str, Any] = {}
        for name in block.columns:
            if name in kept:
                columns[name] = kept[name]
                continue
            items = lists[name].flatten()  # leaves out items that Arrow stores for null lists
            assert len(items) == offsets[name][-1]
            if self.operator.fields and pt.is_struct(items.type):
                columns.update(zip((f.name for f in items.type), items.flatten(), strict=True))
            else:
                columns[name] = items
        return block.expand(columns, first)


def _offsets(column: Any) -> Any:
    """Return offsets of each row's items; items that Arrow stores for null lists do not count."""
    if pt.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = np.diff(list_offsets(column))
    if column.null_count:
        lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _add(types: dict[str, ColumnType], name: str, kind: ColumnType, label: str) -> None:
    if name in types:
        raise PipelineError(f"{label}: two columns {name!r}", fix="rename one of them first")
    types[name] = kind
