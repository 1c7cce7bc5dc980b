from __future__ import annotations

import datetime as dt
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block, Skipped
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.parquet import read_parquet
from cedar.datasets.to_arrow import to_arrow_table
from cedar.lake.sinks import write_parquet
from tests.datasets.blocks import block, cut, files_of
from tests.datasets.reading import read_rows


def layout(urls: list[str]) -> list[list[int]]:
    return [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in map(pq.read_metadata, urls)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sinks")


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(0, 60), st.integers(1, 25), st.integers(1, 40))
def test_the_size_of_blocks_does_not_show(place: Path, sizes, rows, group, per_file):
    folder = place / f"{len(list(place.iterdir()))}"
    urls = write_parquet(cut(rows, sizes), folder, row_group_rows=group, rows_per_file=per_file)
    whole = place / f"{len(list(place.iterdir()))}"
    others = write_parquet(cut(rows, []), whole, row_group_rows=group, rows_per_file=per_file)
    assert layout(urls) == layout(others)
    assert max((n for file in layout(urls) for n in file), default=0) <= group
    tables = [pq.read_table(url) for url in urls]
    assert all(t.num_rows <= per_file for t in tables)
    assert pa.concat_tables(tables)["x"].to_pylist() == list(range(rows))


def test_files_and_their_names(tmp_path: Path):
    urls = write_parquet(cut(25, [7]), tmp_path / "out", rows_per_file=10, row_group_rows=4)
    assert urls == [str(tmp_path / "out" / f"part-0000{i}.parquet") for i in range(3)]
    assert layout(urls) == [[4, 4, 2], [2, 4, 4], [4, 1]]
    assert files_of(tmp_path / "out") == [f"part-0000{i}.parquet" for i in range(3)]


def test_one_file(tmp_path: Path):
    assert write_parquet(cut(5, []), tmp_path / "sub" / "x.parquet") == [str(tmp_path / "sub" / "x.parquet")]
    assert files_of(tmp_path) == ["sub/x.parquet"]
    assert [row["x"] for row in read_rows(read_parquet(tmp_path / "sub" / "x.parquet"))] == list(range(5))


def test_pages_have_checksums(tmp_path: Path):
    (url,) = write_parquet([block({"x": np.random.default_rng(0).normal(size=1000)})], tmp_path / "out")
    content = bytearray(Path(url).read_bytes())
    content[2000] ^= 1
    Path(url).write_bytes(content)
    with pytest.raises(SourceError):
        read_rows(read_parquet(url, verify=True))


def test_every_column_kind_comes_back(tmp_path: Path):
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    columns = {
        "i": [1, None],
        "s": ["a", None],
        "l": [[1, 2], None],
        "d": [{"a": 1, "b": "x"}, None],
        "t": [dt.datetime(2024, 1, 1), None],
        "image": image,
        "v": np.array([[0.5], [1.5]], dtype=np.float32),
        "none": np.zeros((2, 0), dtype=np.float64),
        "flag": np.array([[True, False]] * 2),
    }
    write_parquet([block(columns)], tmp_path / "out")
    first = read_rows(read_parquet(tmp_path / "out"))[0]
    assert np.array_equal(first.pop("image"), image[0])
    assert first == {
        "i": 1,
        "s": "a",
        "l": [1, 2],
        "d": {"a": 1, "b": "x"},
        "t": dt.datetime(2024, 1, 1),
        "v": [0.5],
        "none": [],
        "flag": [True, False],
    }
    assert pq.read_schema(tmp_path / "out" / "part-00000.parquet").field("v").type == pa.list_(pa.float32(), 1)


def test_dead_slots_are_not_written(tmp_path: Path):
    dead = Block({"x": pa.array([1, 3])}, Keys(np.arange(3)), {1: Skipped(0, "map", "broken")})
    write_parquet([dead], tmp_path / "out")
    assert [row["x"] for row in read_rows(read_parquet(tmp_path / "out"))] == [1, 3]
    assert to_arrow_table([dead])["x"].to_pylist() == [1, 3]


def test_no_rows(tmp_path: Path):
    assert write_parquet([], tmp_path / "none") == []
    (url,) = write_parquet([block({"x": pa.array([], pa.int64())})], tmp_path / "empty")
    assert pq.read_table(url).schema.names == ["x"]
    assert pq.read_table(url).num_rows == 0


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_numbers_that_are_not_positive(tmp_path: Path):
    with pytest.raises(PipelineError, match="row_group_rows=0"):
        write_parquet([], tmp_path / "out", row_group_rows=0)


def test_other_storage():
    fs = fsspec.filesystem("memory")
    try:
        urls = write_parquet(cut(30, [4]), "memory://sinktest/out", rows_per_file=10)
        assert urls == [f"memory://sinktest/out/part-0000{i}.parquet" for i in range(3)]
        assert [r["x"] for r in read_rows(read_parquet("memory://sinktest/out"))] == list(range(30))
        with pytest.raises(PipelineError, match="holds 3 data files already"):
            write_parquet(cut(3, []), "memory://sinktest/out")
    finally:
        fs.rm("sinktest", recursive=True)
