"""Compute the possible truth values of a predicate from bounds of its columns.

The result of each node includes all possible values; it may include others too. polars compares the literals with the
minimum and maximum in the column's type, so that its type conversions, such as rounding an integer to compare it with
a float, apply here as they do to rows. These conversions preserve order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from cedar.core.forks import in_fresh_process_after_fork

if TYPE_CHECKING:
    import polars as pl

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
ANY = Truth(True, True, True)


class Clause(Protocol):
    def truth(self, known: Known, /) -> Truth: ...


class CanFailError(Exception):
    """Raised if a part of the predicate may fail on a row, so that rows must not be skipped."""


@dataclass(frozen=True)
class And:
    left: Clause
    right: Clause

    def truth(self, known: Known) -> Truth:
        a, b = self.left.truth(known), self.right.truth(known)
        return Truth(a.true and b.true, a.false or b.false, (a.null and (b.null or b.true)) or (b.null and a.true))


@dataclass(frozen=True)
class Not:
    clause: Clause

    def truth(self, known: Known) -> Truth:
        inner = self.clause.truth(known)
        return Truth(inner.false, inner.true, inner.null)


@dataclass(frozen=True)
class Opaque:
    """An unsupported part of a predicate; it may take any truth value."""

    def truth(self, known: Known) -> Truth:
        return ANY


@dataclass(frozen=True)
class Flag:
    """A boolean column used directly as a predicate."""

    path: Path

    def truth(self, known: Known) -> Truth:
        bounds = known(self.path)
        if bounds is None:
            return ANY
        if bounds.rows == bounds.nulls:
            return Truth(False, False, True)
        if bounds.ends is None or not pt.is_boolean(bounds.ends.type):
            return ANY
        low, high = bounds.ends.to_pylist()
        return Truth(high, not low, bounds.nulls != 0)


@dataclass(frozen=True)
class IsNull:
    """Whether a column is null."""

    path: Path

    def truth(self, known: Known) -> Truth:
        bounds = known(self.path)
        if bounds is None or bounds.nulls is None:
            return Truth(True, True, False)
        return Truth(bounds.nulls > 0, bounds.nulls < bounds.rows, False)


@dataclass(frozen=True, eq=False)
class Compare:
    """A comparison of a column with a constant.

    Args:
        path: the column, or a field of a struct column.
        op: the operator, as polars names it.
        at_most, at_least: the expressions ``col("x") <= constant`` and ``col("x") >= constant``.
        plain_value: the constant if it is a plain Python number, else None.
    """

    path: Path
    op: str
    at_most: pl.Expr
    at_least: pl.Expr
    plain_value: float | None = None

    def truth(self, known: Known) -> Truth:
        bounds = known(self.path)
        if bounds is None:
            return ANY
        if bounds.rows == bounds.nulls:
            return Truth(False, False, True)
        if bounds.ends is None:
            return ANY
        le, ge = self._compare_ends(bounds.ends)
        if None in le or None in ge:
            return Truth(False, False, True)  # comparisons with null are null
        true, false = _possible_results(self.op, le, ge)
        return Truth(true, false, bounds.nulls != 0)

    def _compare_ends(self, ends: pa.Array) -> tuple[list[Any], list[Any]]:
        """Evaluate ``at_most`` and ``at_least`` for the minimum, the maximum, and NaN if it may occur."""
        import polars as pl

        value: Any = self.plain_value
        if _compares_alike(ends.type, value):  # same result as polars, but faster
            low, high = ends.to_pylist()
            if pt.is_float32(ends.type):
                value = struct.unpack("f", struct.pack("f", value))[0]  # polars rounds the constant to float32
            le, ge = [low <= value, high <= value], [low >= value, high >= value]
            return (le, ge) if pt.is_integer(ends.type) else ([*le, False], [*ge, True])
        try:
            return _compared(self.at_most, self.at_least, ends)
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


@dataclass(frozen=True, eq=False)
class IsIn:
    """A test whether a column's value is in a set of values."""

    path: Path
    values: pl.Series
    nulls_equal: bool

    def truth(self, known: Known) -> Truth:
        bounds = known(self.path)
        if bounds is None or (self.nulls_equal and bounds.nulls != 0):
            return ANY
        if bounds.rows == bounds.nulls:
            return Truth(False, False, True)
        values = self.values.drop_nulls()
        if not len(values):
            return Truth(False, True, True)
        if bounds.ends is None:
            return ANY
        points = _end_points(bounds.ends)
        if points.dtype.is_integer() and values.dtype.is_integer():
            import polars as pl

            points, values = points.cast(pl.Int128), values.cast(pl.Int128)
        if points.dtype != values.dtype:
            return ANY  # polars would convert one of the types, which may lose precision
        inside = bool(((values >= points[:1]) & (values <= points[1:2])).any())
        if len(points) > 2:  # the column may contain NaN
            inside = inside or bool(values.is_nan().any())
        return Truth(inside, True, True)


@dataclass(frozen=True, eq=False)
class IfSameConversion:
    """The clause ``both`` of two comparisons if polars evaluates is_between with the same type conversions."""

    path: Path
    low: str
    high: str
    both: Clause

    def truth(self, known: Known) -> Truth:
        bounds = known(self.path)
        if bounds is None or bounds.ends is None:
            return ANY
        plain = {self.low, self.high} <= {"Int", "Float"}
        if plain and pt.is_floating(bounds.ends.type):
            return self.both.truth(known)
        if plain and self.low == self.high == "Int" and pt.is_signed_integer(bounds.ends.type):
            return self.both.truth(known)
        return self.both.truth(known) if self.low == self.high and not plain else ANY


def _end_points(ends: pa.Array) -> pl.Series:
    """Return the minimum and the maximum; for floats also NaN, which statistics ignore."""
    import polars as pl

    points = pl.Series("x", ends)
    if points.dtype.is_float():
        points = points.append(pl.Series("x", [float("nan")], dtype=points.dtype))
    return points
