"""List columns read by cedar are those that Arrow reads, whatever the layout of the file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.core.boundary import as_columns
from cedar.datasets.parquet import read_parquet
from cedar.datasets.parquet_lists import reader
from cedar.datasets.parquet_lists.reader import list_leaves, read_lists
from tests.datasets.parquet_lists.files import written


def compare(path: str, draw: random.Random) -> None:
    """Compare the columns with Arrow's. Those compressed with gzip are left to Arrow."""
    file = pq.ParquetFile(path)
    found = list_leaves(file.schema, file.schema_arrow, range(file.metadata.num_columns))
    assert len(found) == file.metadata.num_columns
    for group in range(file.metadata.num_row_groups):
        whole = file.read_row_group(group)
        share = draw.choice([0, 0.01, 0.5, 1])
        keep = np.array([draw.random() < share for _ in range(len(whole))], np.uint8)
        expected = as_columns(dict(zip(whole.column_names, whole.columns, strict=True)))
        about = file.metadata.row_group(group)
        made = read_lists(path, about, found, keep)
        for name, column in made.items():
            column.validate(full=True)
            assert column.equals(expected[name].filter(pa.array(keep.astype(bool)))), name
        assert len(made) == (0 if about.column(0).compression == "GZIP" else len(found))


@pytest.mark.parametrize("together", [1, 2_000, reader.RUN_BYTES])
def test_lists_of_every_layout_are_those_that_arrow_reads(
    together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "RUN_BYTES", together)
    draw = random.Random(7)
    for _ in range(25):
        compare(written(tmp_path, draw, draw.choice([1, 9, 300]))[0], draw)


@pytest.mark.heavy
def test_many_random_files_are_read_like_arrow(tmp_path: Path) -> None:
    draw = random.Random(8)
    for _ in range(150):
        compare(written(tmp_path, draw, draw.choice([1, 2, 30, 3000]))[0], draw)


def test_null_values_nested_lists_and_other_types_are_left_to_arrow(tmp_path: Path) -> None:
    table = pa.table(
        {
            "nulls": pa.array([[1, None]], pa.list_(pa.int64())),
            "deep": pa.array([[[1]]], pa.list_(pa.list_(pa.int64()))),
            "small": pa.array([[1]], pa.list_(pa.int8())),
            "text": pa.array([["a"]], pa.list_(pa.string())),
            "fixed": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
            "map": pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64())),
            "struct": pa.array([{"a": [1]}]),
            "when": pa.array([[1]], pa.list_(pa.timestamp("us"))),
        }
    )
    path = str(tmp_path / "t.parquet")
    pq.write_table(table, path)
    file = pq.ParquetFile(path)
    found = list_leaves(file.schema, file.schema_arrow, range(file.metadata.num_columns))
    assert set(found) == {"nulls"}
    assert read_lists(path, file.metadata.row_group(0), found, np.ones(1, np.uint8)) == {}
    (chunk,) = read_parquet(path).read(next(iter(read_parquet(path).splits())))
    assert chunk.columns == as_columns(dict(zip(table.column_names, table.columns, strict=True)))


def test_a_list_beside_a_column_whose_name_begins_with_its_name(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([[1], [2, 3]], pa.list_(pa.int64())), "a.b": [0.5, 1.5], "a.c": [[1], [2]]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert cedar.read_parquet(str(tmp_path / "t.parquet")).to_arrow().to_pylist() == table.to_pylist()


def test_a_filtered_scan_of_lists_gives_the_rows_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 5000
    ids = [[i, i % 7] * (i % 4) if i % 11 else None for i in range(rows)]
    table = pa.table(
        {"x": range(rows), "ids": pa.array(ids, pa.list_(pa.int64())), "y": [i * 2.0 for i in range(rows)]}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1500)
    pipeline = cedar.read_parquet(str(tmp_path / "t.parquet")).filter(col("x") % 3 == 1).batch(100)
    used: list[int] = []

    def counted(*args: Any) -> Any:
        found = read_lists(*args)
        used.append(len(found))
        return found

    monkeypatch.setattr("cedar.datasets.parquet.read_lists", counted)
    made = [row for batch in pipeline.loader(executor="inline", format="arrow") for row in batch.to_pylist()]
    assert made == [row for row in table.to_pylist() if row["x"] % 3 == 1]
    assert 1 in used


def test_without_numba_arrow_reads_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, table = written(tmp_path, random.Random(1), 20)
    monkeypatch.setattr(reader, "_has_compiler", lambda: False)
    source = read_parquet(path)
    rows = [
        row for split in source.splits() for chunk in source.read(split) for row in pa.table(chunk.columns).to_pylist()
    ]
    assert rows == table.to_pylist()


def test_only_the_wanted_rows_are_read(tmp_path: Path) -> None:
    path, table = written(tmp_path, random.Random(2), 40)
    source = read_parquet(path)
    split = next(iter(source.splits()))
    wanted = np.array([1, 4, 5])
    (chunk,) = source.read_rows(split, wanted)
    assert pa.table(chunk.columns).to_pylist() == table.take(wanted).to_pylist()


def test_files_may_differ_in_what_can_be_null(tmp_path: Path) -> None:
    """In both files a value has level 2; 0 is a null list in one, and an empty list in the other."""
    outer, inner = (
        pa.schema([pa.field("x", pa.list_(pa.field("element", pa.int64(), nullable=not lists)), nullable=lists)])
        for lists in (True, False)
    )
    rows: list[Any] = [[[1], None, []], [[1], [], [2, 3]]]
    for name, schema, values in zip("ab", (outer, inner), rows, strict=True):
        pq.write_table(pa.table([pa.array(values, schema[0].type)], schema=schema), tmp_path / f"{name}.parquet")
    source = read_parquet(str(tmp_path))
    assert [chunk.columns["x"].to_pylist() for split in source.splits() for chunk in source.read(split)] == rows
