"""Decide from bounds of columns whether a predicate can be true for any row.

It cannot if no row within the bounds may satisfy it. Parts of a predicate that are not supported may take any value. If
a part may fail on a row, by the optimizer's rules, no rows are excluded, so that the run reports the failure.

The result of each node includes all possible values; it may include others too. polars compares the literals with the
minimum and maximum in the column's type, so that its type conversions, such as rounding an integer to compare it with
a float, apply here as they do to rows. These conversions preserve order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import UNKNOWN, ColumnType
from cedar.core.process import in_fresh_process_after_fork
from cedar.operators.expression_nodes import Json, columns_of, expression, kind_of, literal_value, tree
from cedar.operators.expression_steps import never_fails

if TYPE_CHECKING:
    import polars as pl
_FLIPPED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq", "Eq": "Eq", "NotEq": "NotEq"}
Path: TypeAlias = tuple[str, ...]
"""A column, or a field of a struct column: ("a", "b") is ``col("a").struct.field("b")``."""


@dataclass(frozen=True)
class Bounds:
    """What statistics show about the values of a column in consecutive rows.

    Args:
        rows: number of rows.
        nulls: number of nulls; None if unknown.
        ends: a lower and an upper bound of all values except NaN; None if unknown.
    """

    rows: int
    nulls: int | None = None
    ends: pa.Array | None = None


class Truth(NamedTuple):
    """The truth values that a predicate may take."""

    true: bool
    false: bool
    null: bool


Known: TypeAlias = Callable[[Path], "Bounds | None"]
Clause: TypeAlias = "Callable[[Known], Truth]"
"""A compiled part of a predicate: a function of the bounds that returns the truth values that the part may take."""
ANY = Truth(True, True, True)
NULL = Truth(False, False, True)


class CanFailError(Exception):
    """Raised if a part of the predicate may fail on a row, so that rows must not be skipped."""


# ---- clauses ---------------------------------------------------------------------------------------------------------


def _opaque(_: Known) -> Truth:
    """The clause of an unsupported part, which may take any truth value."""
    return ANY


def _and(left: Clause, right: Clause) -> Clause:
    def truth(known: Known) -> Truth:
        a, b = left(known), right(known)
        return Truth(a.true and b.true, a.false or b.false, (a.null and (b.null or b.true)) or (b.null and a.true))

    return truth


def _not(clause: Clause) -> Clause:
    def truth(known: Known) -> Truth:
        inner = clause(known)
        return Truth(inner.false, inner.true, inner.null)

    return truth


def _or(left: Clause, right: Clause) -> Clause:
    return _not(_and(_not(left), _not(right)))


def _is_null(path: Path) -> Clause:
    def truth(known: Known) -> Truth:
        bounds = known(path)
        if bounds is None or bounds.nulls is None:
            return Truth(True, True, False)
        return Truth(bounds.nulls > 0, bounds.nulls < bounds.rows, False)

    return truth


def _of_values(path: Path, decide: Callable[[pa.Array], Truth], nulls_equal: bool = False) -> Clause:
    """Return the clause of a test that is null for nulls; ``decide`` returns the results for values within the ends.

    Args:
        nulls_equal: the result for nulls is not known to be null.
    """

    def truth(known: Known) -> Truth:
        bounds = known(path)
        if bounds is None or (nulls_equal and bounds.nulls != 0):
            return ANY
        if bounds.rows == bounds.nulls:
            return NULL
        if bounds.ends is None:
            return ANY
        found = decide(bounds.ends)
        return found._replace(null=found.null or bounds.nulls != 0)

    return truth


def _flag(path: Path) -> Clause:
    """Return the clause of a boolean column that is used directly as a predicate."""

    def decide(ends: pa.Array) -> Truth:
        if not pt.is_boolean(ends.type):
            return ANY
        low, high = ends.to_pylist()
        return Truth(high, not low, False)

    return _of_values(path, decide)


def _comparison(path: Path, op: str, constant: Json) -> Clause:
    """Return the clause of a comparison of a column with a constant; ``op`` is the operator, as polars names it."""
    import polars as pl

    value = expression(constant)
    at_most, at_least = pl.col("x") <= value, pl.col("x") >= value
    kind, body = kind_of(constant)
    plain = literal_value(*kind_of(body["Dyn"])) if kind == "Literal" and "Dyn" in body else None

    def decide(ends: pa.Array) -> Truth:
        le, ge = _compare_ends(ends, plain, at_most, at_least)
        if None in le or None in ge:
            return NULL  # comparisons with null are null
        return Truth(*_possible_results(op, le, ge), False)

    return _of_values(path, decide)


def _is_in(path: Path, values: pl.Series, nulls_equal: bool) -> Clause:
    """Return the clause of a test whether a column's value is in a set of values."""
    import polars as pl

    values = values.drop_nulls()

    def decide(ends: pa.Array) -> Truth:
        points, members = _end_points(ends), values
        if not len(members):
            return Truth(False, True, True)
        if points.dtype.is_integer() and members.dtype.is_integer():
            points, members = points.cast(pl.Int128), members.cast(pl.Int128)
        if points.dtype != members.dtype:
            return ANY  # polars would convert one of the types, which may lose precision
        inside = bool(((members >= points[:1]) & (members <= points[1:2])).any())
        if len(points) > 2:  # the column may contain NaN
            inside = inside or bool(members.is_nan().any())
        return Truth(inside, True, True)

    return _of_values(path, decide, nulls_equal)


def _if_same_conversion(path: Path, low: str, high: str, both: Clause) -> Clause:
    """Return ``both``, the clause of two comparisons, if polars evaluates is_between with the same type conversions."""

    def truth(known: Known) -> Truth:
        bounds = known(path)
        if bounds is None or bounds.ends is None:
            return ANY
        same = low == high
        if {low, high} <= {"Int", "Float"}:
            kind = bounds.ends.type
            same = pt.is_floating(kind) or (same and low == "Int" and pt.is_signed_integer(kind))
        return both(known) if same else ANY

    return truth


def _compare_ends(ends: pa.Array, value: Any, at_most: pl.Expr, at_least: pl.Expr) -> tuple[list[Any], list[Any]]:
    """Evaluate ``at_most`` and ``at_least`` for the minimum, the maximum, and NaN if it may occur."""
    import polars as pl

    if _compares_alike(ends.type, value):  # same result as polars, but faster
        low, high = ends.to_pylist()
        if pt.is_float32(ends.type):
            value = struct.unpack("f", struct.pack("f", value))[0]  # polars rounds the constant to float32
        le, ge = [low <= value, high <= value], [low >= value, high >= value]
        return (le, ge) if pt.is_integer(ends.type) else ([*le, False], [*ge, True])
    try:
        return _compared(at_most, at_least, ends)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise CanFailError from error


@in_fresh_process_after_fork
def _compared(at_most: pl.Expr, at_least: pl.Expr, ends: pa.Array) -> tuple[list[Any], list[Any]]:
    import polars as pl

    frame = pl.DataFrame([_end_points(ends)]).select(at_most.alias("at_most"), at_least.alias("at_least"))
    return frame["at_most"].to_list(), frame["at_least"].to_list()


def _compares_alike(kind: pa.DataType, value: Any) -> bool:
    """Return whether Python and polars compare ``value`` with values of this column type in the same way."""
    if not isinstance(value, int | float) or abs(value) > 1 << 53:
        return False
    floating = pt.is_float32(kind) or pt.is_float64(kind)
    return floating or (isinstance(value, int) and bool(pt.is_signed_integer(kind)))


def _possible_results(op: str, le: list[bool], ge: list[bool]) -> tuple[bool, bool]:
    """Return whether a comparison may be true and may be false, from the results of <= and >= for ``_end_points``."""
    if op in {"Lt", "GtEq"}:
        true, false = not all(ge), any(ge)
        return (true, false) if op == "Lt" else (false, true)
    if op in {"Gt", "LtEq"}:
        true, false = not all(le), any(le)
        return (true, false) if op == "Gt" else (false, true)
    equal = [a and b for a, b in zip(le, ge, strict=True)]
    true, false = (le[0] and ge[1]) or any(equal), not all(equal)
    return (true, false) if op == "Eq" else (false, true)


def _end_points(ends: pa.Array) -> pl.Series:
    """Return the minimum and the maximum; for floats also NaN, which statistics ignore."""
    import polars as pl

    points = pl.Series("x", ends)
    if points.dtype.is_float():
        points = points.append(pl.Series("x", [float("nan")], dtype=points.dtype))
    return points


def excludes(predicate: pl.Expr, known: Known, types: Mapping[str, ColumnType]) -> bool:
    """Return True if no row within the bounds can satisfy the predicate. Rows for which it is null do not satisfy it.

    Args:
        predicate: a row-wise boolean polars expression.
        known: a function that returns the bounds of a column or struct field, or None if the bounds are unknown.
        types: the types of the columns.

    Examples:
        >>> import polars as pl, pyarrow as pa
        >>> bounds = Bounds(10, 0, pa.array([1, 5]))
        >>> types = {"x": pa.int64()}
        >>> [excludes(what, lambda path: bounds, types) for what in (pl.col("x") > 5, pl.col("x") >= 5)]
        [True, False]
    """
    compiled = _compiled_predicates.get(id(predicate))
    if compiled is None:
        if len(_compiled_predicates) >= _MAX_COMPILED:
            _compiled_predicates.clear()
        compiled = _compiled_predicates[id(predicate)] = _Predicate(predicate)
    try:
        if compiled.clause is None or compiled.clause(known).true:
            return False
    except CanFailError:
        return False
    return compiled.never_fails(types)


class _Predicate:
    """A compiled predicate; ``clause`` is None if it cannot be compiled."""

    def __init__(self, expr: pl.Expr) -> None:
        self._expr = expr  # as long as it is referenced, no other expression has its id
        self._verdicts: dict[tuple[ColumnType, ...], bool] = {}
        reads = columns_of(expr)
        self._reads = sorted(reads or ())
        try:
            self.clause = None if reads is None else _compile(tree(expr))
        except CanFailError:
            self.clause = None

    def never_fails(self, types: Mapping[str, ColumnType]) -> bool:
        """Return whether the predicate fails on no row, by the optimizer's rules."""
        kinds = tuple(types.get(name, UNKNOWN) for name in self._reads)
        if kinds not in self._verdicts:
            self._verdicts[kinds] = never_fails(self._expr, dict(zip(self._reads, kinds, strict=True)))
        return self._verdicts[kinds]


_MAX_COMPILED = 256
_compiled_predicates: dict[int, _Predicate] = {}  # by the id of the expression


# ---- compile polars expressions --------------------------------------------------------------------------------------


def _compile(node: Json) -> Clause:
    kind, body = kind_of(node)
    path = _path(node)
    if path is not None:
        return _flag(path)
    if kind in {"Alias", "KeepName"}:
        return _compile(body[0] if isinstance(body, list) else body)
    if kind == "BinaryExpr" and body["op"] in {"And", "LogicalAnd"}:
        return _and(_compile(body["left"]), _compile(body["right"]))
    if kind == "BinaryExpr" and body["op"] in {"Or", "LogicalOr"}:
        return _or(_compile(body["left"]), _compile(body["right"]))
    if kind == "BinaryExpr" and body["op"] in _FLIPPED:
        return _compile_comparison(body["left"], body["op"], body["right"]) or _opaque
    if kind == "Function":
        return _compile_function(body) or _opaque
    return _opaque


def _compile_function(body: Json) -> Clause | None:
    family, inner = kind_of(body["function"])
    if family != "Boolean":
        return None
    name, options = kind_of(inner)
    inputs = body["input"]
    if name == "Not":
        return _not(_compile(inputs[0]))
    if name in {"AllHorizontal", "AnyHorizontal"}:
        return reduce(_and if name == "AllHorizontal" else _or, map(_compile, inputs))
    path = _path(inputs[0])
    if path is None:
        return None
    if name in {"IsNull", "IsNotNull"}:
        return _is_null(path) if name == "IsNull" else _not(_is_null(path))
    if name == "IsBetween":
        return _compile_between(path, inputs, options["closed"])
    if name == "IsIn" and _is_constant(inputs[1]):
        return _is_in(path, _values(inputs[1]), bool((options or {}).get("nulls_equal")))
    return None


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
    both = _and(_comparison(path, more, low), _comparison(path, less, high))
    return _if_same_conversion(path, _literal_kind(low), _literal_kind(high), both)


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
