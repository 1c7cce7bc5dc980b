"""Columns of every type that polars has, with values that are apt to go wrong, for tests of expressions."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import polars as pl

NAN, INF = float("nan"), float("inf")
FLOATS = [-0.0, 0.0, 1.0, -1.5, NAN, INF, -INF, 2.0, 3.0]
DAYS = [
    dt.datetime(1970, 1, 1),
    dt.datetime(2024, 2, 29, 12),
    dt.datetime(2020, 10, 25, 2, 30),
    dt.datetime(1700, 1, 1),
]
BERLIN = "Europe/Berlin"


def _column(values: list[Any], kind: Any) -> pl.Series:
    return pl.Series("x", values, dtype=kind, strict=True)


def _extremes(kind: Any, bits: int) -> pl.Series:
    return _column([2 ** (bits - 1) - 1, -(2 ** (bits - 1)) + 1, 0], pl.Int32 if bits == 32 else pl.Int64).cast(kind)


def _integers(bits: int, signed: bool) -> list[int]:
    if signed:
        return [0, 1, -1, 3, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    return [0, 1, 2, 3, 2**bits - 1]


def columns() -> dict[str, pl.Series]:
    """One column per type and kind of values; ``!`` marks the ends of a type's range."""
    made = {
        "null": _column([None, None], pl.Null),
        "bool": _column([True, False, True], pl.Boolean),
        "f16": _column(FLOATS, pl.Float16),
        "f32": _column([*FLOATS, 1e38], pl.Float32),
        "f64": _column([*FLOATS, 1e300, 5e-324], pl.Float64),
        "decimal": _column([Decimal("0.00"), Decimal("1.25"), Decimal("99999999.99")], pl.Decimal(10, 2)),
        "decimal!": _column([Decimal(0), Decimal(3), Decimal(10**38 - 1), Decimal("-" + "9" * 38)], pl.Decimal(38, 0)),
        "string": _column(["", "a", "aa", "1", "ä", "2020-01-01", "-7", "[", "12345678901234567890123"], pl.String),
        "binary": _column([b"", b"a", b"\xff\x00aa", b"abcd"], pl.Binary),
        "date": _column([v.date() for v in DAYS] + [dt.date(9999, 12, 31)], pl.Date),
        "date!": _extremes(pl.Date, 32),
        "time": _column([dt.time(0), dt.time(23, 59, 59, 999999), dt.time(1, 2, 3)], pl.Time),
        "duration": _column([dt.timedelta(0), dt.timedelta(days=3), dt.timedelta(microseconds=-1)], pl.Duration("us")),
        "duration!": _extremes(pl.Duration("us"), 64),
        "zoned": _column(DAYS, pl.Datetime("us")).dt.replace_time_zone("UTC").dt.convert_time_zone(BERLIN),
        "zoned!": _extremes(pl.Datetime("us", BERLIN), 64),
        "categorical": _column(["b", "a", "b", "c"], pl.Categorical),
        "enum": _column(["b", "a"], pl.Enum(["a", "b"])),
        "list i64": _column([[1, 2], [], [None], [3], [1, None, 1], [2**63 - 1, 2**63 - 1]], pl.List(pl.Int64)),
        "list f64": _column([[-0.0], [], [None], [0.0, NAN], [1.0, None, -0.0], [0.1, 0.2, 0.3]], pl.List(pl.Float64)),
        "list string": _column([["a"], [], [None], ["b", "a"]], pl.List(pl.String)),
        "list bool": _column([[True], [], [None], [True, False]], pl.List(pl.Boolean)),
        "list list": _column([[[1], [2]], [], [None], [[]], [[-1, None]]], pl.List(pl.List(pl.Int64))),
        "list struct": _column([[{"a": 1}], [], [None], [{"a": None}]], pl.List(pl.Struct({"a": pl.Int64}))),
        "list date": _column([[dt.date(2020, 1, 1)], [], [None]], pl.List(pl.Date)),
        "list categorical": _column([["b"], ["a", "b"], [], [None]], pl.List(pl.Categorical)),
        "array f64": _column([[-0.0, 0.0], [1.0, NAN], [None, 2.0]], pl.Array(pl.Float64, 2)),
        "array 1": _column([[-0.0], [1.0], [None]], pl.Array(pl.Float64, 1)),
        "array i64": _column([[1, 2], [3, 3], [None, 2]], pl.Array(pl.Int64, 2)),
        "array string": _column([["a", "b"], [None, "a"]], pl.Array(pl.String, 2)),
        "struct": _column(
            [{"a": 1, "b": "a"}, {"a": None, "b": "b"}, {"a": -1, "b": None}],
            pl.Struct({"a": pl.Int64, "b": pl.String}),
        ),
        "struct f64": _column([{"a": -0.0}, {"a": NAN}, {"a": None}], pl.Struct({"a": pl.Float64})),
        "struct list": _column([{"a": [1]}, {"a": []}, {"a": None}], pl.Struct({"a": pl.List(pl.Int64)})),
    }
    for bits in (8, 16, 32, 64):
        made[f"i{bits}"] = _column(_integers(bits, signed=True), getattr(pl, f"Int{bits}"))
        made[f"u{bits}"] = _column(_integers(bits, signed=False), getattr(pl, f"UInt{bits}"))
    for unit in ("ms", "us", "ns"):
        made[f"datetime {unit}"] = _column(DAYS, pl.Datetime(unit))  # type: ignore[arg-type]
        made[f"datetime {unit}!"] = _extremes(pl.Datetime(unit), 64)  # type: ignore[arg-type]
    return made
