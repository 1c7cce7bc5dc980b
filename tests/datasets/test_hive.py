"""Columns that a data set keeps in the names of its folders."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.core.errors import SourceError
from cedar.datasets.parquet import read_parquet
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
