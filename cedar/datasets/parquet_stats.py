"""Decide from column bounds whether a predicate can be true for any row of a split.

A predicate that cannot be true excludes all rows. Parts of a predicate that this module does not support may take any
value. If a part may fail on a row, by the optimizer's rules, no rows are excluded, so that the run reports the failure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from cedar.core.columns import UNKNOWN, ColumnType
from cedar.core.forks import in_fresh_process_after_fork
from cedar.datasets.truth import (
    And,
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
from cedar.operators.elementwise import columns_of
from cedar.operators.expression_kinds import Json, kind_of
from cedar.operators.expression_nodes import expression, literal_value, tree
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
