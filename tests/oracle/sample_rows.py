"""Sample rows: few rows in several splits, read as a source is, for checks of plans.

Rows are those that a source begins with, or made up from its types: nulls, least and greatest values, and the literals
that the pipeline's own expressions compare with, so that rows on either side of every condition are there. Made-up
rows cost no read, and are shown to no function of the user.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cedar.core.columns import OBJECT, UNKNOWN, Column, Index, TensorType, cut, from_numbers, from_strings, take
from cedar.core.cursor import hash_array
from cedar.core.errors import PipelineError, RowError
from cedar.datasets.base import BaseSource, Chunk, Selects, Split
from cedar.datasets.truth import Bounds, Path, excludes
from cedar.operators.base import Schema
from cedar.operators.expression_nodes import columns_of, find, literal_value, tree
from cedar.plan.graph import chosen_fields, narrowed, narrowed_type

if TYPE_CHECKING:
    import polars as pl

    from cedar.plan.graph import Node

SIZES = (49, 1, 46)  # rows of the splits: a filter may leave nothing of the second
_ROW_BYTES = 24.0
_PRICE = 15  # of a second read: worth it for the first split, and not for the others (see ``FilterHits``)
_FAILS = 13  # one value in so many, where rows of the source itself may fail


@dataclass(frozen=True, eq=False)
class SampleRows(BaseSource):
    """A source of few rows, which does what the source that it stands for can do.

    Args:
        rows: all of them, column by column.
        known: names and types, as far as the source tells them.
        like: the source that it stands for.
        columns: those that are read; None is all.
        streaming: splits can be read from their beginning only.
        counted: splits know their rows.
    """

    rows: dict[str, Column]
    known: Schema
    like: BaseSource
    columns: tuple[str, ...] | None = None
    streaming: bool = False
    counted: bool = True
    row_bytes: float = _ROW_BYTES

    def __post_init__(self) -> None:
        price = None if self.like.second_read_cost_bytes is None else _PRICE
        self.__dict__.update(second_read_cost_bytes=price, reports_bad_rows=self.like.reports_bad_rows)

    @property
    def selects(self) -> Selects:
        return self.like.selects

    def splits(self) -> list[Split]:
        total = _length(self.rows)
        sizes = [n for n in (min(SIZES[0], total), min(SIZES[1], max(total - SIZES[0], 0))) if n]
        sizes += [total - sum(sizes)] if total > sum(sizes) else []
        starts = np.cumsum([0, *sizes]).tolist()
        return [
            Split(0, start, start + n, n if self.counted else None, int(n * _ROW_BYTES), part, self.streaming)
            for part, (start, n) in enumerate(zip(starts, sizes, strict=False))
        ]

    def read(self, split: Split) -> Iterator[Chunk]:
        """The rows of a split, the first one in two pieces."""
        columns = self._chosen()
        assert split.stop is not None
        middle = split.start + ((split.stop - split.start + 1) // 2 if split.start == 0 else 0)
        for start, stop in ((split.start, middle), (middle, split.stop)):
            if start < stop:
                yield Chunk({n: cut(c, start, stop) for n, c in columns.items()}, np.arange(start, stop), stop - start)

    def _chosen(self) -> dict[str, Column]:
        if self.columns is None:
            return self.rows
        chosen = chosen_fields(self.columns, self.rows)
        if any(name not in self.rows for name in chosen):
            raise PipelineError(f"no column {sorted(set(chosen) - set(self.rows))} in the sample rows")
        kinds = {name: narrowed_type(_type(self.rows[name]), paths) for name, paths in chosen.items()}
        return {name: narrowed(self.rows[name], kind) for name, kind in kinds.items()}

    def schema(self) -> Schema:
        if self.columns is None or self.known is None:
            return self.known
        chosen = chosen_fields(self.columns, self.known)
        return {name: narrowed_type(self.known[name], paths) for name, paths in chosen.items() if name in self.known}

    def url(self, file: int) -> str:
        return "the sample rows"

    def describe(self) -> str:
        return "sample rows"

    def digest(self) -> str:
        return "sample"

    def identity(self) -> str | None:
        return "sample"

    def select(self, columns: Sequence[str]) -> SampleRows:
        return replace(self, columns=tuple(columns))

    def prune(self, split: Split, predicate: pl.Expr) -> bool:
        """By the statistics of the split's rows, as a footer would hold them."""
        if type(self.like).prune is BaseSource.prune:
            return False
        index = np.arange(split.start, split.stop)

        def bounds(path: Path) -> Bounds | None:
            column = self.rows.get(path[0])
            if not isinstance(column, pa.Array) or len(path) > 1:
                return None
            values = column.take(from_numbers(index))
            return Bounds(len(values), values.null_count, _ends(values))

        return excludes(predicate, bounds, {name: _type(column) or UNKNOWN for name, column in self.rows.items()})

    def read_valid_rows(self, split: Split) -> Iterator[tuple[Chunk, dict[int, RowError]]]:
        """One value in some fails, in any column that is read."""
        columns = self._chosen()
        salts = [zlib.crc32(name.encode()) for name in columns]
        index = np.arange(split.start, split.stop)
        bad = {int(row) for row in index for salt in salts if (int(row) * 31 + salt) % (_FAILS * len(self.rows)) == 0}
        good = np.array([row for row in index if int(row) not in bad], dtype=np.int64)
        errors = {row: RowError("a value of the sample fails") for row in sorted(bad)}
        yield Chunk({name: take(c, good) for name, c in columns.items()}, good, len(good)), errors


def _ends(values: pa.Array) -> pa.Array | None:
    kind = values.type
    floats = pa.types.is_float32(kind) or pa.types.is_float64(kind)  # of float16 no footer is read either
    if not (pa.types.is_integer(kind) or floats or pa.types.is_large_string(kind)):
        return None
    if floats:
        values = values.filter(pc.invert(pc.is_nan(values)))  # what is null falls away as well
    ends = pc.min_max(values)
    if not ends["min"].is_valid:
        return None
    both = [ends["min"].as_py(), ends["max"].as_py()]
    return from_strings(both, kind) if pa.types.is_large_string(kind) else from_numbers(np.array(both), kind)


# ---- rows ------------------------------------------------------------------------------------------------------------


def made_up(schema: Schema, nodes: Sequence[Node], nulls: bool, rows: int = sum(SIZES)) -> dict[str, Column] | None:
    """Rows of a schema; None if no values of some type are known.

    Args:
        schema: the columns.
        nodes: of the pipeline, whose expressions say which values matter.
        nulls: whether there are some.
        rows: how many.
    """
    if not schema:
        return None
    by_column = _literals(nodes)
    made: dict[str, Column] = {}
    for number, (name, kind) in enumerate(schema.items()):
        named = dict.fromkeys([*by_column.get(name, ()), *by_column.get("", ())])
        column = _column(kind, number, rows, list(named), nulls)
        if column is None:
            return None
        made[name] = column
    return made


def _column(kind: Any, number: int, rows: int, named: Sequence[Any], nulls: bool) -> Column | None:
    if kind is UNKNOWN or kind == OBJECT:
        return None
    # No checksum: those of two columns differ by one number, and what is null in one would never be so in the other.
    draws = (np.asarray(hash_array(number + 1, np.arange(rows))) >> np.uint64(32)).astype(np.int64)
    if isinstance(kind, TensorType):
        size = int(np.prod(kind.shape)) if kind.shape else 1
        return ((draws[:, None] >> np.arange(size) % 24) % 7).reshape((rows, *kind.shape)).astype(kind.dtype)
    try:
        column = values_of(kind, draws, named)
    except (pa.ArrowException, NotImplementedError):
        return None
    return column if not nulls else column.take(_indices(np.arange(rows), draws // 64 % 6 > 0))


def values_of(kind: pa.DataType, draws: Index, named: Sequence[Any] = ()) -> pa.Array:
    """Values of a type, few different ones, so that equal ones and those on either side of a bound are there.

    Args:
        kind: the type.
        draws: a number that decides each.
        named: literals that matter.

    Raises:
        NotImplementedError: no values of the type are known.
    """
    if pa.types.is_struct(kind):
        children = [values_of(f.type, draws // 3 + i * 7919, named) for i, f in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        offsets = np.concatenate([[0], np.cumsum(draws % 4)])
        items = values_of(kind.value_type, np.repeat(draws // 5, draws % 4) + np.arange(offsets[-1]), named)
        large = pa.types.is_large_list(kind)
        cuts = from_numbers(offsets, pa.int64() if large else pa.int32())
        return (pa.LargeListArray if large else pa.ListArray).from_arrays(cuts, items, type=kind)
    if pa.types.is_fixed_size_list(kind):
        items = np.repeat(draws // 5, kind.list_size) + np.tile(np.arange(kind.list_size), len(draws))
        return pa.FixedSizeListArray.from_arrays(values_of(kind.value_type, items, named), type=kind)
    pool = _pool(kind, named)
    return pool.take(from_numbers(draws % len(pool)))


def _indices(index: Index, valid: Any) -> pa.Array:
    """Indices, some of them null."""
    bits = np.packbits(valid, bitorder="little")
    data = pa.py_buffer(np.ascontiguousarray(index, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(index), [pa.py_buffer(bits), data])


def _pool(kind: pa.DataType, named: Sequence[Any]) -> pa.Array:
    types = pa.types
    if types.is_boolean(kind):
        return pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(b"\x01")])
    numbers = [v for v in named if isinstance(v, int | float) and abs(v) < 1 << 62]
    if types.is_integer(kind):
        low = 0 if types.is_unsigned_integer(kind) else -(1 << (kind.bit_width - 1))
        high = (1 << kind.bit_width) + low - 1
        near = [int(v) + d for v in numbers for d in (-1, 0, 1)]
        pool = dict.fromkeys([*near, 0, 1, 3, max(low, -1), 12] if near else range(max(low, -1), 31))
        return from_numbers(np.array([v for v in pool if low <= v <= high]), kind)
    if types.is_floating(kind):
        floats = [float(v) + d for v in numbers for d in (-0.5, 0.0, 0.5)]
        return from_numbers(np.array([*floats, 0.0, -0.0, 2.5, -1.0, float("nan")]), kind)
    if types.is_large_string(kind):
        texts = [v for v in named if isinstance(v, str)]
        return from_strings([*dict.fromkeys([*texts, *(f"{text}x" for text in texts), "", "B c", "7", "12"])], kind)
    if types.is_large_binary(kind):
        return from_strings([b"", b"a", b"bc"], kind)
    if types.is_temporal(kind) and not types.is_interval(kind):
        days = np.array([0, 1, 59, 60, 365, 10_957])  # where years and months begin
        per_day = 1 if kind.bit_width == 32 else 3_600_000
        width = np.int32 if kind.bit_width == 32 else np.int64
        return pa.Array.from_buffers(kind, len(days), [None, pa.py_buffer((days * per_day).astype(width))])
    if types.is_decimal(kind):
        words = np.zeros((4, kind.bit_width // 64), dtype=np.int64)
        words[:, 0] = [0, 1, 7, 9]
        return pa.Array.from_buffers(kind, 4, [None, pa.py_buffer(words)])
    raise NotImplementedError(str(kind))


def _literals(nodes: Sequence[Node]) -> dict[str, list[Any]]:
    """The values that the expressions of a pipeline name, by the columns that they read; "" has those of any."""
    by_column: dict[str, list[Any]] = {}
    for node in nodes:
        for code in node.operator.code():
            if hasattr(code, "meta"):
                named = _values_of_literals(code)
                for name in columns_of(code) or ("",):
                    by_column.setdefault(name, []).extend(named)
    return by_column


def _values_of_literals(expr: Any) -> list[Any]:
    """The values of an expression's literals that are numbers or strings."""
    values: list[Any] = []
    for literal in find(tree(expr), "Literal"):
        content = next(iter(literal.values()), None) if isinstance(literal, dict) else None
        kind, given = next(iter(content.items()), ("", None)) if isinstance(content, dict) else ("", None)
        given = literal_value(kind, given)
        if kind == "List":
            with contextlib.suppress(Exception):  # another polars version may encode literals differently
                column = pa.ipc.open_stream(bytes(given or ())).read_all().column(0)
                values += [value for value in column.to_pylist() if isinstance(value, int | float | str)]
        elif isinstance(given, int | float | str) and kind != "Null":
            values.append(given)
    return values


def _length(columns: dict[str, Column]) -> int:
    return len(next(iter(columns.values()))) if columns else 0


def _type(column: Column) -> Any:
    return column.type if isinstance(column, pa.Array) else None
