"""The truth values that a predicate may take on rows of which only bounds are known.

Each node gives a superset, never less. Literals are compared by polars itself, with the least and the greatest value in
the column's own type, so whatever polars does about types (an integer against a float rounds) is done here too: such
conversions keep order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from cedar.core.forks import elsewhere

if TYPE_CHECKING:
    import polars as pl

Path: TypeAlias = tuple[str, ...]
"""A column, or a field of a struct column: ("a", "b") is ``col("a").struct.field("b")``."""


@dataclass(frozen=True)
class Bounds:
    """What is known of a column in a run of rows.

    Args:
        rows: how many rows there are.
        nulls: how many of them are null; None: not known.
        ends: two values that every value is between, NaN aside; None if nothing is known.
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
    """A part of the predicate may fail on a row: the rows have to be read to tell."""


@dataclass(frozen=True)
class And:
    left: Clause
    right: Clause

    def truth(self, known: Known) -> Truth:
        a, b = self.left.truth(known), self.right.truth(known)
        return Truth(a.true and b.true, a.false or b.false, (a.null and (b.null or b.true)) or (b.null and a.true))


@dataclass(frozen=True)
class Not:
    of: Clause

    def truth(self, known: Known) -> Truth:
        inner = self.of.truth(known)
        return Truth(inner.false, inner.true, inner.null)


@dataclass(frozen=True)
class Opaque:
    """A part that is not understood."""

    def truth(self, known: Known) -> Truth:
        return ANY


@dataclass(frozen=True)
class Flag:
    """A column of booleans as it is."""

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
    """Is null."""

    path: Path

    def truth(self, known: Known) -> Truth:
        bounds = known(self.path)
        if bounds is None or bounds.nulls is None:
            return Truth(True, True, False)
        return Truth(bounds.nulls > 0, bounds.nulls < bounds.rows, False)


@dataclass(frozen=True, eq=False)
class Compare:
    """A column against a constant.

    Args:
        least, most: ``col("x") <= constant`` and ``col("x") >= constant``.
        plain: the constant as a Python value, where that is all there is to it.
    """

    path: Path
    op: str
    least: pl.Expr
    most: pl.Expr
    plain: float | None = None

    def truth(self, known: Known) -> Truth:
        bounds = known(self.path)
        if bounds is None:
            return ANY
        if bounds.rows == bounds.nulls:
            return Truth(False, False, True)
        if bounds.ends is None:
            return ANY
        le, ge = self._sides(bounds.ends)
        if None in le or None in ge:
            return Truth(False, False, True)  # against null
        true, false = _between(self.op, le, ge)
        return Truth(true, false, bounds.nulls != 0)

    def _sides(self, ends: pa.Array) -> tuple[list[Any], list[Any]]:
        """``least`` and ``most`` for the low end, the high end, and NaN where that may come."""
        import polars as pl

        value: Any = self.plain
        if _compares_alike(ends.type, value):  # as polars would, without its price
            low, high = ends.to_pylist()
            if pt.is_float32(ends.type):
                value = struct.unpack("f", struct.pack("f", value))[0]  # plain numbers take the column's width
            le, ge = [low <= value, high <= value], [low >= value, high >= value]
            return (le, ge) if pt.is_integer(ends.type) else ([*le, False], [*ge, True])
        try:
            return _compared(self.least, self.most, ends)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise CanFailError from error


@elsewhere
def _compared(least: pl.Expr, most: pl.Expr, ends: pa.Array) -> tuple[list[Any], list[Any]]:
    import polars as pl

    frame = pl.DataFrame([_points(ends)]).select(least.alias("least"), most.alias("most"))
    return frame["least"].to_list(), frame["most"].to_list()


def _compares_alike(kind: pa.DataType, value: Any) -> bool:
    """Python compares the value with a column of this type as polars does."""
    if not isinstance(value, int | float) or abs(value) > 1 << 53:
        return False
    floating = pt.is_float32(kind) or pt.is_float64(kind)
    return floating or (isinstance(value, int) and bool(pt.is_signed_integer(kind)))


def _between(op: str, le: list[bool], ge: list[bool]) -> tuple[bool, bool]:
    """Whether a comparison may be true, and false, for the low end, the high end, and NaN where that may come."""
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
    """A column's value is one of some."""

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
        points = _points(bounds.ends)
        if points.dtype.is_integer() and values.dtype.is_integer():
            import polars as pl

            points, values = points.cast(pl.Int128), values.cast(pl.Int128)
        if points.dtype != values.dtype:
            return ANY  # polars converts one to the other, perhaps with a loss
        inside = bool(((values >= points[:1]) & (values <= points[1:2])).any())
        if len(points) > 2:  # there may be NaN
            inside = inside or bool(values.is_nan().any())
        return Truth(inside, True, True)


@dataclass(frozen=True, eq=False)
class IfAlike:
    """``both``, where the two literals take the same type next to the column as they take together."""

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


def _points(ends: pa.Array) -> pl.Series:
    """The two ends, and NaN where there may be such values: statistics leave it out."""
    import polars as pl

    points = pl.Series("x", ends)
    if points.dtype.is_float():
        points = points.append(pl.Series("x", [float("nan")], dtype=points.dtype))
    return points
