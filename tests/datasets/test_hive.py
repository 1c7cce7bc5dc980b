"""Columns that a data set keeps in the names of its folders."""

from __future__ import annotations

import os
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.base import Read
from cedar.datasets.parquet import read_parquet
from cedar.tasks.fingerprints import describe
from tests.datasets.parquet_files import table
from tests.datasets.reading import column, read_rows


def test_partitions_become_columns(tmp_path: Path):
    pq.write_to_dataset(
        pa.table({"x": [1, 2, 3], "day": ["a b", "c/d", None], "hour": [7, 8, 7]}),
        tmp_path,
        partition_cols=["day", "hour"],
    )
    source = read_parquet(tmp_path)
    assert source.schema() == {"x": pa.int64(), "day": pa.large_string(), "hour": pa.int64()}
    rows = sorted(read_rows(source), key=lambda r: r["x"])
    assert rows == [
        {"x": 1, "day": "a b", "hour": 7},
        {"x": 2, "day": "c/d", "hour": 8},
        {"x": 3, "day": None, "hour": 7},
    ]
    assert sorted(column(read_parquet(tmp_path, columns=["hour"]), "hour")) == [7, 7, 8]
    assert list(read_rows(source.select(["day", "x"]))[0]) == ["day", "x"]
    assert sorted(column(read_parquet(f"{tmp_path}/day=*/hour=*"), "x")) == [1, 2, 3]


def test_numbers_that_would_come_back_as_others_are_texts(tmp_path: Path):
    for value in ("-0", "0"):
        (tmp_path / f"p={value}").mkdir()
        pq.write_table(table(1), tmp_path / f"p={value}" / "t.parquet")
    assert sorted(column(read_parquet(tmp_path), "p")) == ["-0", "0"]


def test_files_partitioned_by_different_columns(tmp_path: Path):
    for folder in ("a=1", "b=1"):
        (tmp_path / folder).mkdir()
        pq.write_table(table(1), tmp_path / folder / "x.parquet")
    with pytest.raises(SourceError, match=r"is partitioned by \['a'\], .*by \['b'\]"):
        read_parquet(tmp_path).schema()


def test_partition_columns_are_constant_in_a_file(tmp_path: Path):
    for value in ("1", "2", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"day={value}").mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / f"day={value}" / "t.parquet")
    source = read_parquet(tmp_path)
    day = pl.col("day")
    assert [source.prune(s, day == 2) for s in source.splits()] == [True, False, True]
    assert [source.prune(s, day.is_null()) for s in source.splits()] == [True, True, False]
    assert [source.select(["x"]).prune(s, day != 1) for s in source.splits()] == [True, False, True]


@pytest.mark.parametrize("folder", [b"k=%E9", b"%E9=1", b"k=\xe9", b"k\xe9=1"])
def test_names_and_values_that_are_not_utf8(tmp_path: Path, folder):
    pq.write_table(table(1), tmp_path / "t.parquet")
    (tmp_path / "t" / os.fsdecode(folder)).mkdir(parents=True)
    os.rename(tmp_path / "t.parquet", tmp_path / "t" / os.fsdecode(folder) / "t.parquet")
    with pytest.raises(SourceError, match="t.parquet: a folder's name is not UTF-8") as error:
        read_parquet(tmp_path / "t").schema()
    assert error.value.fix == "rename the folder"


DAYS = [date(2024, 1, 1), date(999, 12, 31), None]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -7, None], pa.int64()),
        ([1, (1 << 64) - 1], pa.uint64()),
        (DAYS, pa.date32()),
        ([True, False, None], pa.bool_()),
        (["1", "-7", "02", None], pa.large_string()),
        (["2024-01-01", "2024-01-02"], pa.large_string()),
        (["true", "false", ""], pa.large_string()),
        (["__HIVE_DEFAULT_PARTITION__", None, "a/b=c %41"], pa.large_string()),
        (["1", "x", "2024-01-01", "true", "\u00fc", "..", "~"], pa.large_string()),
    ],
)
def test_what_is_written_to_folders_comes_back(tmp_path: Path, values: list[Any], kind: pa.DataType):
    table = pa.table({"k": pa.array(values, kind), "x": range(len(values))})
    cedar.from_arrow(table).write(tmp_path / "out", partition_by="k")
    found = cedar.read_parquet(tmp_path / "out")
    assert found.schema["k"] == kind
    assert [row["k"] for row in sorted(found, key=lambda row: row["x"])] == values
    for value in values:
        condition = col("k").is_null() if value is None else col("k") == value
        assert found.filter(condition).count() == len(found.filter(condition).loader()) == 1


@pytest.mark.parametrize("value", [0.5, datetime(2024, 1, 1), Decimal("1.50"), b"a", [1]])
def test_what_would_come_back_as_something_else_is_refused(tmp_path: Path, value: Any):
    with pytest.raises(PipelineError, match="cannot partition by 'k' of type") as error:
        cedar.from_items([{"k": value, "x": 1}]).write(tmp_path / "out", partition_by="k")
    assert "cast" in (error.value.fix or "")


def folders(place: Path, values: list[str]) -> Path:
    for i, value in enumerate(values):
        (place / f"k={value}").mkdir(parents=True)
        pq.write_table(pa.table({"x": [i]}), place / f"k={value}" / "t.parquet")
    return place


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["2024-01-01", "2024-01-32"], None, ["2024-01-01", "2024-01-32"]),
        (["2024-01-01", "x"], None, ["2024-01-01", "x"]),
        (["true", "True"], None, ["True", "true"]),
        (["1", "18446744073709551615", "-1"], None, ["-1", "1", "18446744073709551615"]),
        (["2024-01-01"], str, ["2024-01-01"]),
        (["1", "2"], str, ["1", "2"]),
        (["01", "2"], "int32", [1, 2]),
        (["1", "0.5"], float, [0.5, 1.0]),
        (["2024-01-01 12%3A30%3A00"], pa.timestamp("us"), [datetime(2024, 1, 1, 12, 30)]),
        (["1.50"], pa.decimal128(9, 2), [Decimal("1.50")]),
    ],
)
def test_types_of_folders_are_what_all_show_or_what_schema_says(tmp_path: Path, values, kind, expected):
    types = None if kind is None else {"k": kind}
    source = read_parquet(folders(tmp_path, values), schema=types)
    assert sorted(column(source, "k")) == expected
    if types:
        assert source.schema()["k"] == dict(source.declared)["k"]
        assert column(read_parquet(tmp_path, schema=pa.schema(source.declared)), "k") == column(source, "k")


def test_a_value_that_schema_does_not_allow_is_named(tmp_path: Path):
    with pytest.raises(
        SourceError, match=r"k=x/t\.parquet: the value of 'k' in its folder's name cannot be int64: 'x'"
    ):
        read_parquet(folders(tmp_path, ["1", "x"]), schema={"k": int}).schema()


def test_schema_gives_columns_of_files_another_type(tmp_path: Path):
    table = pa.table({"i": [1, 300], "s": ["1", None], "l": [[1], []], "t": [{"a": 1, "b": 2}] * 2, "d": DAYS[:2]})
    pq.write_table(table, tmp_path / "t.parquet")
    types = {"i": float, "s": int, "d": pa.timestamp("s"), "l": pa.list_(pa.int64())}
    pipeline = cedar.read_parquet(tmp_path / "t.parquet", schema=types)
    assert list(pipeline.select("i", "s", "l"))[1] == {"i": 300.0, "s": None, "l": []}
    assert pipeline.schema["i"] == pa.float64()
    assert pipeline.filter(col("i") > 1.5).select("s", a=col("t").struct.field("a")).count() == 1
    assert pipeline.filter(col("s") == 1).count() == 1  # the statistics are those of the strings
    whole = cedar.read_parquet(tmp_path / "t.parquet", schema=table.schema)
    assert whole.select(a=col("t").struct.field("a")).count() == 2
    assert not describe(Read(read_parquet(tmp_path / "t.parquet", schema=types))).unknown
    with pytest.raises(
        SourceError, match=r"t\.parquet, row group 0: column 'i' of int64 cannot be converted to int8: .*300"
    ):
        cedar.read_parquet(tmp_path / "t.parquet", schema={"i": "int8"}).to_arrow()


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"z": int}, "no column 'z'"),
        ({"l": str}, r"schema\['l'\]: large_list<.*> cannot be read as large_string"),
        ({"x": object}, "a column of a file cannot be object"),
        ({"x": "no"}, "'no' is not a type of column"),
        (["x"], "takes a dict of names and types, not list"),
    ],
)
def test_schemas_that_cannot_be(tmp_path: Path, types: Any, message: str):
    pq.write_table(pa.table({"x": [1], "l": [[1]]}), tmp_path / "t.parquet")
    with pytest.raises(PipelineError, match=message):
        _ = cedar.read_parquet(tmp_path / "t.parquet", schema=types).schema
