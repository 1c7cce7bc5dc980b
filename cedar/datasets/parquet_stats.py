"""Decide from column bounds whether a predicate can be true for any row of a split.

A predicate that cannot be true excludes all rows. Parts of a predicate that this module does not support may take any
value. If a part may fail on a row, by the optimizer's rules, no rows are excluded, so that the run reports the failure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.arrow import from_numbers, from_strings
from cedar.core.boundary import canonical_type
from cedar.core.columns import UNKNOWN, ColumnType
from cedar.core.forks import in_fresh_process_after_fork
from cedar.datasets.hive import HiveColumn
from cedar.datasets.truth import (
    And,
    Bounds,
    CanFailError,
    Clause,
    Compare,
    Flag,
    IfSameConversion,
    IsIn,
    IsNull,
    Known,
    Not,
    Opaque,
    Path,
)
from cedar.operators.expression_nodes import Json, columns_of, expression, kind_of, literal_value, tree
from cedar.operators.expression_steps import never_fails

if TYPE_CHECKING:
    import polars as pl

_FLIPPED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq", "Eq": "Eq", "NotEq": "NotEq"}


def excludes(predicate: pl.Expr, known: Known, types: Mapping[str, ColumnType]) -> bool:
    """Return True if no row within the bounds can satisfy the predicate. Rows for which it is null do not satisfy it.

    Args:
        predicate: a row-wise boolean polars expression.
        known: a function that returns the bounds of a column or struct field, or None if the bounds are unknown.
        types: the types of the columns.

    Examples:
        >>> import polars as pl, pyarrow as pa
        >>> from cedar.datasets.truth import Bounds
        >>> bounds = Bounds(10, 0, pa.array([1, 5]))
        >>> types = {"x": pa.int64()}
        >>> [excludes(what, lambda path: bounds, types) for what in (pl.col("x") > 5, pl.col("x") >= 5)]
        [True, False]
    """
    key = _IdentityKey(predicate)
    node, reads = _compiled(key)
    try:
        if node is None or node.truth(known).true:
            return False
    except CanFailError:
        return False
    return _never_fails(key, tuple((name, types.get(name, UNKNOWN)) for name in reads))


class _IdentityKey:
    """Wraps an expression as a cache key that is equal only for the same object; keys compiled predicates."""

    def __init__(self, expr: pl.Expr) -> None:
        self.expr = expr

    def __hash__(self) -> int:
        return id(self.expr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.expr is other.expr


@lru_cache(maxsize=256)
def _compiled(key: _IdentityKey) -> tuple[Clause | None, tuple[str, ...]]:
    """Return the compiled predicate (None if it cannot be compiled) and the columns that it reads."""
    reads = columns_of(key.expr)
    try:
        node = None if reads is None else _compile(tree(key.expr))
    except CanFailError:
        node = None
    return node, tuple(sorted(reads or ()))


@lru_cache(maxsize=256)
def _never_fails(key: _IdentityKey, types: tuple[tuple[str, ColumnType], ...]) -> bool:
    return never_fails(key.expr, dict(types))


# ---- compile polars expressions --------------------------------------------------------------------------------------


def _compile(node: Json) -> Clause:
    kind, body = kind_of(node)
    path = _path(node)
    if path is not None:
        return Flag(path)
    if kind in {"Alias", "KeepName"}:
        return _compile(body[0] if isinstance(body, list) else body)
    if kind == "BinaryExpr" and body["op"] in {"And", "LogicalAnd"}:
        return And(_compile(body["left"]), _compile(body["right"]))
    if kind == "BinaryExpr" and body["op"] in {"Or", "LogicalOr"}:
        return Not(And(Not(_compile(body["left"])), Not(_compile(body["right"]))))
    if kind == "BinaryExpr" and body["op"] in _FLIPPED:
        return _compile_comparison(body["left"], body["op"], body["right"]) or Opaque()
    if kind == "Function":
        return _compile_function(body) or Opaque()
    return Opaque()


def _compile_function(body: Json) -> Clause | None:
    family, inner = kind_of(body["function"])
    if family != "Boolean":
        return None
    name, options = kind_of(inner)
    inputs = body["input"]
    if name == "Not":
        return Not(_compile(inputs[0]))
    if name in {"AllHorizontal", "AnyHorizontal"}:
        parts = [_compile(part) for part in inputs]
        if name == "AnyHorizontal":
            return Not(_all_of([Not(part) for part in parts]))
        return _all_of(parts)
    path = _path(inputs[0])
    if path is None:
        return None
    if name in {"IsNull", "IsNotNull"}:
        return IsNull(path) if name == "IsNull" else Not(IsNull(path))
    if name == "IsBetween":
        return _compile_between(path, inputs, options["closed"])
    if name == "IsIn" and _is_constant(inputs[1]):
        return IsIn(path, _values(inputs[1]), bool((options or {}).get("nulls_equal")))
    return None


def _all_of(parts: list[Clause]) -> Clause:
    joined = parts[0]
    for part in parts[1:]:
        joined = And(joined, part)
    return joined


def _compile_comparison(left: Json, op: str, right: Json) -> Clause | None:
    path = _path(left)
    if path is None:
        path, right, op = _path(right), left, _FLIPPED[op]
    return None if path is None or not _is_constant(right) else _comparison(path, op, right)


def _compile_between(path: Path, inputs: list[Json], closed: str) -> Clause | None:
    """Compile is_between to two comparisons, for cases in which polars would convert the operands in the same way."""
    _, low, high = inputs
    if not _is_constant(low) or not _is_constant(high):
        return None
    more = "GtEq" if closed in {"Both", "Left"} else "Gt"
    less = "LtEq" if closed in {"Both", "Right"} else "Lt"
    both = And(_comparison(path, more, low), _comparison(path, less, high))
    return IfSameConversion(path, _literal_kind(low), _literal_kind(high), both)


def _path(node: Json) -> Path | None:
    """Return the column, or the field of a struct column, that a node refers to; None for other nodes."""
    kind, body = kind_of(node)
    if kind == "Column":
        return (body,)
    if kind != "Function" or kind_of(body["function"])[0] != "StructExpr":
        return None
    name, field = kind_of(body["function"]["StructExpr"])
    inner = _path(body["input"][0]) if name == "FieldByName" else None
    return None if inner is None else (*inner, field)


def _is_constant(node: Json) -> bool:
    """Return whether a node is a literal, possibly with casts; False for NaN, which bounds do not cover."""
    kind, body = kind_of(node)
    if kind == "Alias":
        return _is_constant(body[0])
    if kind == "Cast":
        return _is_constant(body["expr"])
    if kind == "Agg" and kind_of(body)[0] == "Implode":
        return _is_constant(body["Implode"]["input"])
    if kind != "Literal":
        return False
    _, value = kind_of(kind_of(body)[1])
    return not isinstance(value, float) or not math.isnan(value)


def _literal_kind(node: Json) -> str:
    """Return a literal's type; "Int" or "Float" for Python numbers, whose width depends on the column."""
    kind, body = kind_of(node)
    if kind == "Alias":
        return _literal_kind(body[0])
    how, value = kind_of(body)
    if kind == "Literal" and how == "Dyn":
        return kind_of(value)[0]
    return f"{_select(expression(node)).dtype}"


def _comparison(path: Path, op: str, constant: Json) -> Compare:
    import polars as pl

    value = expression(constant)
    kind, body = kind_of(constant)
    plain = literal_value(*kind_of(body["Dyn"])) if kind == "Literal" and "Dyn" in body else None
    return Compare(path, op, pl.col("x") <= value, pl.col("x") >= value, plain)


def _values(node: Json) -> pl.Series:
    import polars as pl

    values = _select(expression(node))
    return values.explode() if values.dtype == pl.List else values


@in_fresh_process_after_fork
def _select(expr: pl.Expr) -> pl.Series:
    """Evaluate an expression that uses no columns."""
    import polars as pl

    try:
        return pl.select(expr).to_series()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise CanFailError from error


# ---- bounds from footers ---------------------------------------------------------------------------------------------


# Writers may truncate a long maximum without rounding it up. All strings that start with the stored maximum therefore
# count as within the bounds.
_MAX_SUFFIX = "\U0010ffff" * 8
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

Leaves = dict[Path, tuple[int, pa.DataType]]


def leaves_of(footer: Any) -> Leaves:
    """Return the index and canonical type of each leaf that has one value per row, by the leaf's path."""
    numbers = count()
    return {
        path: (leaf, kind) for field in footer.schema.to_arrow_schema() for path, leaf, kind in _walk(field, numbers)
    }


def _walk(field: Any, numbers: Iterator[int]) -> Iterator[tuple[Path, int, pa.DataType]]:
    kind = field.type
    if isinstance(kind, pa.Bool8Type):  # the statistics of Bool8 columns are integers
        next(numbers)
        return
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pt.is_struct(kind):
        for child in kind:
            for path, leaf, type_ in _walk(child, numbers):
                yield (field.name, *path), leaf, type_
    elif pt.is_nested(kind):
        for child in (kind.field(i) for i in range(kind.num_fields)):
            for _ in _walk(child, numbers):
                pass  # skip leaves inside lists, which have several values per row
    else:
        yield (field.name,), next(numbers), canonical_type(kind)


def leaf_bounds(leaf: Any, kind: pa.DataType, rows: int) -> Bounds:
    """Return the bounds of a leaf in a row group; nulls and ends are None if statistics are missing or unreadable.

    Args:
        leaf: the leaf's column chunk metadata.
        kind: the canonical type of its values.
        rows: the row group's number of rows.
    """
    try:
        stats = leaf.statistics
        if stats is None:
            return Bounds(rows)
        nulls = int(stats.null_count) if stats.has_null_count else None
        if nulls != rows and leaf.physical_type == "BYTE_ARRAY" and "." in leaf.path_in_schema:
            nulls = None  # Arrow's null counts of dictionary strings in a struct omit rows with a null struct
        ends = _ends(stats, kind) if stats.has_min_max else None
    except (pa.ArrowException, ValueError, TypeError, OverflowError, NotImplementedError):
        return Bounds(rows)
    return Bounds(rows, nulls, ends)


def hive_bounds(column: HiveColumn, file: int, rows: int) -> Bounds:
    """Return the bounds of a partition column in a file, where it has a single value."""
    value = column.values[file]
    if value is None:
        return Bounds(rows, rows)
    return Bounds(rows, 0, pa.array([value, value], column.kind))


def _bounds_array(low: Any, high: Any, kind: pa.DataType) -> pa.Array:
    return from_numbers(np.array([low, high], np.dtype(kind.to_pandas_dtype())), kind)


def _ends(stats: Any, kind: pa.DataType) -> pa.Array | None:
    if pt.is_integer(kind):
        return _bounds_array(stats.min, stats.max, kind)
    if pt.is_boolean(kind) or pt.is_decimal(kind):
        return pa.array([stats.min, stats.max], kind)
    if pt.is_float32(kind) or pt.is_float64(kind):
        known = not math.isnan(stats.min) and not math.isnan(stats.max)
        return _bounds_array(stats.min, stats.max, kind) if known else None
    if pt.is_large_string(kind) or pt.is_large_binary(kind):
        return _string_ends(stats, kind)
    if pt.is_date32(kind) and stats.logical_type.type == "DATE":
        return _bounds_array(stats.min_raw, stats.max_raw, pa.int32()).cast(kind)
    if pt.is_timestamp(kind) and stats.logical_type.type == "TIMESTAMP":
        unit = _UNITS[json.loads(stats.logical_type.to_json())["timeUnit"]]
        return _bounds_array(stats.min_raw, stats.max_raw, pa.int64()).cast(pa.timestamp(unit, kind.tz)).cast(kind)
    return None


def _string_ends(stats: Any, kind: pa.DataType) -> pa.Array:
    low, high = (v.encode() if isinstance(v, str) else v for v in (stats.min, stats.max))
    if pt.is_large_binary(kind):
        return from_strings([low, high + b"\xff" * len(_MAX_SUFFIX)], kind)
    return from_strings([low.decode(), high.decode() + _MAX_SUFFIX], kind)
