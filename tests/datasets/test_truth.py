"""The truth values of predicates where only bounds of the values are known."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.datasets.parquet import read_parquet
from cedar.datasets.truth import Bounds, excludes
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


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (x > 5, False),
        (x >= 5, True),
        (x < 1, False),
        (x <= 1, True),
        (x == 3, True),
        (x == 7, False),
        (x != 3, True),
        (pl.lit(7) <= x, False),
        (pl.lit(5) < x, False),
        (pl.lit(5) <= x, True),
        (x > 5.5, False),
        (x > 4.5, True),
        (x.is_in([0, 9]), False),
        (x.is_in([0, 4]), True),
        (x.is_in([]), False),
        (x.is_between(6, 9), False),
        (x.is_between(5, 9), True),
        (x.is_between(5, 9, closed="none"), False),
        (x.is_between(9, 2), False),
        (x.is_null(), False),
        (x.is_not_null(), True),
        (~(x <= 5), False),
        ((x > 3) & (x > 7), False),
        ((x > 3) | (x > 7), True),
        ((x > 5) | (x < 1), False),
        (~((x > 3) | (x <= 5)), False),
        (pl.all_horizontal(x > 3, x > 7), False),
        (pl.any_horizontal(x > 5, x < 1), False),
        ((x % 2 == 0) & (x > 5), False),
        ((x * 2 > 100).alias("far") & (x > 5), False),
        (x * 2 > 100, True),
        (x == pl.lit(None), False),
        (x.eq_missing(9), True),
        (pl.lit(True), True),
    ],
)
def test_integers(predicate, expected):
    assert holds(list(range(1, 6)), predicate) is expected


def test_what_may_fail_on_a_row_excludes_nothing():
    texts = ["1", "b"]
    assert holds(texts, x > "z") is False
    assert holds(texts, (x > "z") & (x.cast(pl.Int8) > 3))
    assert holds(texts, (x > "z") & (x.str.to_date("%Y") > dt.date(2024, 1, 1)))
    amounts = pa.array([Decimal("1.50"), Decimal("2.50")])
    assert holds(amounts, (x > Decimal(9)) & (x * x > Decimal(9)))
    assert holds([1, 2], (x > 9) & (x + Decimal("0.1") > 9))
    of_both = {"x": pa.int64(), "t": pa.large_list(pa.int64())}
    bounds = {"x": Bounds(2, 0, pa.array([1, 2])), "t": None}
    assert excludes((x > 9) & (pl.col("t").list.len() > 0), lambda path: bounds[path[0]], of_both)
    assert not excludes((x > 9) & ((pl.col("t") + pl.lit([1])).list.len() > 0), lambda path: bounds[path[0]], of_both)
    assert holds(texts, x > 3), "polars refuses this when it is bound"


def test_without_statistics_everything_may_hold():
    assert holds([1, 2], x > 9, write_statistics=False)
    assert holds([1, 2], x.is_null(), write_statistics=False)


def test_fields_of_structs_and_columns_of_lists(tmp_path: Path):
    rows = [{"at": None if i == 1 else {"n": i, "tags": [i]}, "tags": [i, None]} for i in range(6)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet", row_group_size=3)
    source = read_parquet(tmp_path / "t.parquet")
    n = pl.col("at").struct.field("n")
    assert [source.prune(s, n > 2) for s in source.splits()] == [True, False]
    assert [source.prune(s, n.is_null()) for s in source.splits()] == [False, True]
    assert [source.prune(s, pl.col("tags").list.len() > 9) for s in source.splits()] == [False, False]
    assert [source.prune(s, pl.col("tags").is_null()) for s in source.splits()] == [False, False]


@pytest.mark.heavy
@pytest.mark.parametrize("value", ["a", b"a", 1, dt.date(2024, 1, 1)])
@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("store_schema", [True, False])
def test_nulls_of_fields_that_were_dictionaries(tmp_path: Path, value, nullable, store_schema):
    values = pa.array([value] * 3).dictionary_encode()
    field = pa.field("x", values.type, nullable)
    at = pa.StructArray.from_arrays([values], fields=[field], mask=pa.array([True, True, False]))
    pq.write_table(pa.table({"at": at}), tmp_path / "t.parquet", store_schema=store_schema)
    source = read_parquet(tmp_path / "t.parquet")
    x = pl.col("at").struct.field("x")
    for missing in (x.is_null(), x.is_in([None], nulls_equal=True), ~x.is_not_null()):
        assert not any(source.prune(split, missing) for split in source.splits())
    assert all(source.prune(split, x < value) for split in source.splits())


def test_files_whose_leaves_stand_in_another_order(tmp_path: Path):
    pq.write_table(pa.table({"a": [1], "b": [10]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [1], "a": [10]}), tmp_path / "2.parquet")
    source = read_parquet(tmp_path)
    assert [source.prune(s, pl.col("a") > 5) for s in source.splits()] == [True, False]


# ---- any table, any predicate ----------------------------------------------------------------------------------------

KINDS = {
    "i": (pa.int64(), st.sampled_from([-3, -1, 0, 1, 2, 5, BIG, BIG + 1, -BIG - 1, (1 << 63) - 1])),
    "b": (pa.int8(), st.integers(-4, 4)),
    "u": (pa.uint64(), st.sampled_from([0, 1, 2, BIG + 1, (1 << 64) - 1])),
    "f": (
        pa.float64(),
        st.sampled_from([-1.5, -0.0, 0.0, 0.1, 0.7, 2.0, float(BIG), NAN, float("inf"), -float("inf")]),
    ),
    "g": (pa.float32(), st.sampled_from([-1.5, -0.0, 0.0, 0.1, 0.7, 2.0, 16777217.0, NAN, float("inf")])),
    "s": (pa.string(), st.sampled_from(["", "a", "ab", "b", "é", "\U0010ffff", "zz"])),
    "t": (pa.bool_(), st.booleans()),
    "d": (pa.date32(), st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 5))),
    "m": (pa.timestamp("us"), st.datetimes(dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 3))),
    "c": (pa.decimal128(8, 2), st.decimals(-3, 3, places=2)),
}


NUMBERS = [-2, 0, 1, 3, 0.1, 0.7, -0.0, 2.5, BIG + 1, float(BIG), NAN, 16777217]


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 8))
    columns = {}
    for name, (kind, values) in KINDS.items():
        low = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[name] = pa.array(low, kind)
    return pa.table(columns), draw(st.integers(1, 4))


@st.composite
def atoms(draw):
    name = draw(st.sampled_from(sorted(KINDS)))
    values = st.sampled_from(NUMBERS) if name in "ibufg" else KINDS[name][1]
    column = pl.col(name)
    shape = draw(st.integers(0, 6))
    if shape == 0:
        return draw(st.sampled_from([column.is_null(), column.is_not_null()]))
    if shape == 1:
        closed = draw(st.sampled_from(["both", "left", "right", "none"]))
        return column.is_between(draw(values), draw(values), closed=closed)
    if shape == 2:
        return column.is_in(draw(st.lists(st.none() | KINDS[name][1], max_size=3)), nulls_equal=draw(st.booleans()))
    if shape == 3 and name == "t":
        return column
    literal = draw(values)
    ways = [
        column < literal,
        column <= literal,
        column > literal,
        column >= literal,
        column == literal,
        column != literal,
        pl.lit(literal) < column,
        pl.lit(literal) >= column,
        column.eq_missing(literal),
    ]
    return draw(st.sampled_from(ways))


predicates = st.recursive(
    atoms(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(lambda a, b: pl.all_horizontal(a, b), inner, inner),
        st.builds(lambda a, b: pl.any_horizontal(a, b), inner, inner),
    ),
    max_leaves=4,
)


@pytest.mark.heavy
@given(tables(), st.lists(predicates, min_size=1, max_size=6))
def test_no_row_that_polars_keeps_is_lost(tmp_path, made, asked):
    table, group = made
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=group)
    source = read_parquet(str(path))
    for split in source.splits():
        frame = pl.concat([pl.DataFrame({n: pl.Series(c) for n, c in k.columns.items()}) for k in source.read(split)])
        for predicate in asked:
            if source.prune(split, predicate):
                try:
                    kept = frame.filter(predicate)
                except pl.exceptions.PolarsError:
                    continue
                assert kept.height == 0, (predicate, kept)


def test_much_is_excluded_all_the_same(tmp_path):
    pq.write_table(pa.table({"n": np.arange(100)}), tmp_path / "t.parquet", row_group_size=10)
    source = read_parquet(tmp_path / "t.parquet")
    left = [s for s in source.splits() if not source.prune(s, (pl.col("n") >= 35) & (pl.col("n") < 41))]
    assert [s.part for s in left] == [3, 4]
