"""Elementwise transforms of dense features: bucketize, clamp, one-hot, Box-Cox and logit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import Column, ColumnType, TensorType
from cedar.core.errors import PipelineError, invalid_call
from cedar.operators.algebra import per_value
from cedar.operators.recsys.lists import Array, Items, Lists, Mask, is_numbers, values_of
from cedar.operators.transform import BadValues, Transform


@per_value
@dataclass(frozen=True)
class Bucketize(Items):
    """Replace each number by the index of its bucket, 0 .. len(borders), which is how many borders are less than it.

    A value equal to a border belongs to the bucket below it. A repeated border has a separate bucket: with
    (1, 5, 5, 9), 4 is in bucket 1, 5 in 2 and 6 in 3. NaN is in the last bucket. Nulls and empty lists stay unchanged.
    Booleans and decimals are compared as float64.

    Args:
        borders: at least one number, in ascending order; each may occur at most twice.

    Raises:
        PipelineError: the borders are invalid.

    Examples:
        >>> Bucketize((1.0, 5.0, 5.0, 9.0))([0.0, 1.0, 4.0, 5.0, 6.0, 10.0])
        [0, 0, 1, 2, 3, 4]
    """

    borders: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "borders", check_borders("Bucketize", self.borders))

    def item_type(self, kind: Any) -> pa.DataType:
        if not is_numbers(kind) and not any(is_kind(kind) for is_kind in (pt.is_boolean, pt.is_decimal, pt.is_null)):
            raise self.unfit(kind, "numbers or lists of them")
        return pa.int64()

    def _transform_items(self, array: pa.Array, lists: Lists | None) -> pa.Array:
        return super()._transform_items(array if is_numbers(array.type) else array.cast(pa.float64()), lists)

    def transform_values(self, values: Array) -> Array:
        return bucket_of(self.borders, values)


@per_value
@dataclass(frozen=True)
class Clamp(Items):
    """Clamp numbers to the range ``low`` .. ``high``. NaN, nulls and empty lists stay unchanged.

    Raises:
        PipelineError: ``low`` is above ``high``, or the column's type cannot hold a limit.

    Examples:
        >>> Clamp(0, 5)([-3, 2, 9])
        [0, 2, 5]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise invalid_call(f"Clamp({self.low!r}, {self.high!r}): low is above high")

    def item_type(self, kind: Any) -> pa.DataType:
        if not is_numbers(kind):
            raise self.unfit(kind, "numbers or lists of them")
        is_integer_type = pt.is_integer(kind)
        limits = np.iinfo(kind.to_pandas_dtype()) if is_integer_type else np.finfo(kind.to_pandas_dtype())
        minimum, maximum = (limits.min, limits.max) if is_integer_type else (float(limits.min), float(limits.max))
        for limit in (self.low, self.high):
            fits = minimum <= limit <= maximum and (not is_integer_type or float(limit).is_integer())
            if not fits and (is_integer_type or limit not in (-math.inf, math.inf)):
                what, other = ("integers", "floats") if is_integer_type else ("numbers", "wider floats")
                raise PipelineError(
                    f"Clamp({self.low!r}, {self.high!r}): {kind} does not hold {limit!r}",
                    fix=f"give {what} from {minimum} to {maximum}, or cast the column to {other}",
                )
        return kind

    def transform_values(self, values: Array) -> Array:
        return np.clip(values, values.dtype.type(self.low), values.dtype.type(self.high))


@per_value
@dataclass(frozen=True)
class BoxCox(Items):
    """Apply the power transform of Box and Cox (1964): ln x if ``lam`` is 0, else (x ** lam - 1) / lam.

    Floats keep their dtype, integers become float64. NaN, nulls and empty lists stay unchanged. Rows with a value
    of 0 or less fail.

    Examples:
        >>> BoxCox(2.0)(3.0), BoxCox(0.0)(1.0)
        (4.0, 0.0)
    """

    lam: float

    def __post_init__(self) -> None:
        check_finite("BoxCox", "lam", self.lam)

    def item_type(self, kind: Any) -> pa.DataType:
        return float_type(self, kind)

    def transform_values(self, values: Array) -> Array:
        x = values.astype(np.float64, copy=False)
        with np.errstate(all="ignore"):  # the values at nulls are arbitrary
            power = self.lam * np.log(x)
            small = np.abs(power) < 0.5  # use expm1, since x**lam - 1 would lose digits
            transformed = np.log(x) if self.lam == 0 else np.where(small, np.expm1(power), x**self.lam - 1) / self.lam
        return transformed if pt.is_integer(pa.from_numpy_dtype(values.dtype)) else transformed.astype(values.dtype)

    def invalid_mask(self, values: Array) -> Mask | None:
        return values <= 0


@per_value
@dataclass(frozen=True)
class Logit(Items):
    """Compute ln(p / (1 - p)) after clamping ``p`` to [eps, 1 - eps].

    Floats keep their dtype, integers become float64. NaN, nulls and empty lists stay unchanged. With ``eps`` 0,
    nothing is clamped: 0 and 1 become infinite, and rows with a value outside 0 .. 1 fail.

    Examples:
        >>> Logit()(0.5), round(Logit(eps=0.01)(0.0), 3)
        (0.0, -4.595)
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_finite("Logit", "eps", self.eps)
        if not 0 <= self.eps <= 0.5:
            raise invalid_call(f"Logit(eps={self.eps!r}): must be between 0 and 0.5")

    def item_type(self, kind: Any) -> pa.DataType:
        return float_type(self, kind)

    def transform_values(self, values: Array) -> Array:
        p = values.astype(np.float64, copy=False)
        p = np.clip(p, self.eps, 1 - self.eps) if self.eps else p
        with np.errstate(all="ignore"):
            transformed = np.log(p) - np.log1p(-p)
        return transformed if pt.is_integer(pa.from_numpy_dtype(values.dtype)) else transformed.astype(values.dtype)

    def invalid_mask(self, values: Array) -> Mask | None:
        return None if self.eps else (values < 0) | (values > 1)


@dataclass(frozen=True)
class Onehot(Transform):
    """One-hot encode the bucket of each number; the result has shape (rows, len(borders) + 1).

    NaN is in the last bucket. Rows with a null fail. Columns of lists are not supported.

    Args:
        borders: the borders of the buckets, as for ``Bucketize``.
        dtype: dtype of the result.

    Examples:
        >>> Onehot((0.0, 1.0))(0.5).tolist()
        [0.0, 1.0, 0.0]
    """

    borders: tuple[float, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "borders", check_borders("Onehot", self.borders))
        try:
            numeric = np.dtype(self.dtype).kind in "biuf"
        except TypeError:
            numeric = False
        if not numeric:
            raise invalid_call(f"Onehot: {self.dtype!r} is not a numeric dtype", fix='give one such as "float32"')

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        if not is_numbers(kind):
            raise self.unfit(kind, "a column of numbers")
        return TensorType((len(self.borders) + 1,), np.dtype(self.dtype).name)

    def columns(self, *columns: Column) -> Column:
        (array,) = columns
        if array.null_count:
            rows = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            raise BadValues({int(row): "Onehot does not support nulls" for row in rows}, "fill nulls first")
        encoded = np.zeros((len(array), len(self.borders) + 1), dtype=self.dtype)
        encoded[np.arange(len(array)), bucket_of(self.borders, values_of(array))] = 1
        return encoded


# ---- shared helpers --------------------------------------------------------------------------------------------------


def bucket_of(borders: Sequence[float], values: Array) -> Array:
    """Return the index of each value's bucket, int64; see ``Bucketize``."""
    skipped = 0
    edges: Array = np.asarray(borders, np.float64)
    if values.dtype.kind in "iu":  # compare as integers, since float64 would round large ones
        limits = np.iinfo(values.dtype)
        skipped = sum(border < limits.min for border in borders)
        borders = borders[skipped:]
        edges = np.array([math.floor(min(border, limits.max)) for border in borders], values.dtype)
    indices = np.searchsorted(edges, values, side="left").astype(np.int64)
    pairs = zip(pairwise(borders), edges.tolist(), strict=False)
    repeated = np.array([*(border == after == edge for (border, after), edge in pairs), False, False])
    if repeated.any():
        indices += repeated[indices] & (np.searchsorted(edges, values, side="right") > indices)
    return indices + skipped


def check_borders(name: str, borders: Sequence[float]) -> tuple[float, ...]:
    """Return borders as a tuple after checking them; raise PipelineError if they are invalid."""
    values = tuple(borders)
    if any(math.isnan(_as_float(border)) for border in values or (None,)):
        raise invalid_call(f"{name}: the borders {values!r:.60} are not numbers", fix="give some")
    for before, after in pairwise(values):
        if after < before:
            raise invalid_call(f"{name}: the borders descend from {before!r} to {after!r}")
    for border in values:
        if values.count(border) > 2:
            raise invalid_call(f"{name}: the border {border!r} occurs more than twice")
    return values


def float_type(transform: Transform, kind: Any) -> pa.DataType:
    if not is_numbers(kind):
        raise transform.unfit(kind, "numbers or lists of them")
    return kind if pt.is_floating(kind) else pa.float64()


def check_finite(name: str, parameter: str, value: Any) -> None:
    if not math.isfinite(_as_float(value)):
        raise invalid_call(f"{name}({parameter}={value!r}): must be a finite number")


def _as_float(value: Any) -> float:
    """Convert a number to float; return NaN for other values and for integers beyond the range of floats."""
    try:
        return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan
