"""The truth values of predicates where only bounds of the values are known."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import polars as pl
import pyarrow as pa

from cedar.datasets.parquet_stats import excludes
from cedar.datasets.truth import Bounds
from tests.datasets.pruning import BIG, NAN, holds, x


def test_statistics_leave_nan_out_and_nan_is_above_all_numbers():
    values = [1.0, 2.0, NAN]
    assert holds(values, x > 5)
    assert holds(values, x >= NAN)
    assert holds(values, x == NAN)
    assert holds(values, x.is_in([NAN, 9.0]))
    assert not holds(values, x < 1)
    assert not holds(values, x == 9)
    assert not holds(values, x.is_in([9.0]))
    assert not holds([1.0, 2.0], x < 0.5)
    assert holds([1.0, 2.0], x > 5), "there might be NaN"
    assert holds([NAN, NAN], x > 5)


def test_signed_zeros_are_equal():
    assert holds([-0.0], x == 0.0)
    assert holds([0.0], x >= 0.0)
    assert holds([0.0], x == -0.0)
    assert holds([0.0], x.is_in([-0.0]))


def test_large_integers_meet_floats_as_polars_rounds_them():
    assert holds([BIG + 1], x <= float(BIG)) is (pl.DataFrame({"x": [BIG + 1]}).filter(x <= float(BIG)).height > 0)
    assert not holds([BIG + 1], x <= BIG)
    assert holds([BIG + 1], x == BIG + 1)
    assert not holds(pa.array([1 << 63, (1 << 64) - 1], pa.uint64()), x < 1 << 63)
    assert holds(pa.array([1 << 63, (1 << 64) - 1], pa.uint64()), x == (1 << 64) - 1)
    assert not holds(pa.array([-5, 5], pa.int8()), x > 300)


def test_plain_numbers_take_the_width_of_the_column():
    narrow = pa.array([0.1, 0.7], pa.float32())
    assert holds(narrow, x <= 0.1)
    assert holds(narrow, x == 0.7)
    assert not holds(narrow, x < 0.1)
    assert holds(pa.array([16777216.0], pa.float32()), x < 16777217) is False
    assert holds(pa.array([16777216.0], pa.float32()), x <= 16777217)


def test_nulls():
    assert holds([1, None], x.is_null())
    assert holds(pa.nulls(2), x.is_not_null()), "no statistics"
    empty = pa.array([None, None], pa.int64())
    assert not holds(empty, x.is_not_null())
    assert not holds(empty, x > 0)
    assert not holds(empty, ~(x > 0))
    assert holds(empty, x.is_in([1, None], nulls_equal=True))
    assert holds([1, None], x.is_in([9, None], nulls_equal=True))


def test_text_that_statistics_may_have_cut():
    bounds = {"x": Bounds(10, 0, pa.array(["b", "d" + "\U0010ffff" * 8], pa.large_string()))}
    assert not excludes(x > "da", lambda path: bounds[path[0]], {"x": pa.large_string()}), (
        "'dz' begins with the greatest"
    )
    assert excludes(x > "e", lambda path: bounds[path[0]], {"x": pa.large_string()})
    assert not holds(["b", "d"], x > "e")
    assert holds(["b", "d"], x > "d")
    assert not holds(["b", "d"], x < "b")
    assert not holds(pa.array([b"b", b"d"]), x == b"e")


def test_dates_times_flags_and_decimals():
    days = pa.array([dt.date(2024, 1, 1), dt.date(2024, 2, 1)])
    assert not holds(days, x > dt.date(2024, 2, 1))
    assert not holds(days, x.is_in([dt.date(2023, 1, 1)]))
    assert not holds(days, x > dt.datetime(2024, 2, 1))
    assert holds(days, x >= dt.datetime(2024, 2, 1))
    for unit in ("s", "ms", "us", "ns"):
        moments = pa.array([dt.datetime(2024, 1, 1), dt.datetime(2024, 2, 1)], pa.timestamp(unit))
        assert not holds(moments, x > dt.datetime(2024, 2, 1))
        assert holds(moments, x >= dt.datetime(2024, 2, 1))
    zoned = pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("us", "UTC"))
    assert not holds(zoned, x > dt.datetime(2024, 2, 1, tzinfo=dt.UTC))
    assert not holds([True, True], ~x)
    assert not holds([False, None], x)
    assert holds([False, True], x)
    amounts = pa.array([Decimal("-2.50"), Decimal("1.50")])
    assert not holds(amounts, x > Decimal("1.5"))
    assert holds(amounts, x >= Decimal("1.5"))
