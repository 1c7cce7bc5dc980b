from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.core.block import Block, Skipped
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.parquet import read_parquet
from cedar.datasets.to_arrow import to_arrow_table
from cedar.lake import sinks
from cedar.lake.sinks import write_files
from tests.datasets.blocks import block, files_of
from tests.datasets.reading import read_rows


def table(start: int, stop: int) -> pa.Table:
    return pa.table({"x": pa.array(range(start, stop), pa.int64()), "s": [f"s{i}" for i in range(start, stop)]})


def layout(urls: list[str]) -> list[list[int]]:
    return [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in map(pq.read_metadata, urls)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sinks")


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 25), st.booleans())
def test_files_hold_the_rows_of_their_tables_in_full_row_groups(place: Path, sizes, group, single):
    url = place / f"{len(list(place.iterdir()))}{'.parquet' if single else ''}"
    cuts = [0, *np.cumsum(sizes).tolist()]
    urls = write_files(url, [table(*pair) for pair in pairwise(cuts)], group)
    rows = [cuts[-1]] if single else sizes
    assert [sum(file) for file in layout(urls)] == rows
    assert all(file[:-1] == [group] * (len(file) - 1) and file[-1] <= group for file in layout(urls))
    assert pa.concat_tables(map(pq.read_table, urls))["x"].to_pylist() == list(range(cuts[-1]))


def test_files_and_their_names(tmp_path: Path):
    urls = write_files(tmp_path / "out", [table(0, 10), table(10, 20), table(20, 25)], 4)
    assert urls == [str(tmp_path / "out" / f"part-0000{i}.parquet") for i in range(3)]
    assert layout(urls) == [[4, 4, 2], [4, 4, 2], [4, 1]]
    assert files_of(tmp_path / "out") == [f"part-0000{i}.parquet" for i in range(3)]


def test_one_file(tmp_path: Path):
    url = tmp_path / "sub" / "x.parquet"
    assert cedar.from_arrow(table(0, 5)).write_parquet(url) == [str(url)]
    assert files_of(tmp_path) == ["sub/x.parquet"]
    assert [row["x"] for row in read_rows(read_parquet(url))] == list(range(5))


def test_row_groups_of_wide_rows_are_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sinks, "_GROUP_BYTES", 1 << 16)
    wide = pa.table({"b": [b"x" * 1000] * 100})
    assert layout(write_files(tmp_path / "wide.parquet", [wide])) == [[64, 36]]


def test_pages_have_checksums(tmp_path: Path):
    (url,) = write_files(tmp_path / "out", [pa.table({"x": np.random.default_rng(0).normal(size=1000)})])
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
    write_files(tmp_path / "out", [to_arrow_table([block(columns)])])
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
    dead = to_arrow_table([Block({"x": pa.array([1, 3])}, Keys(np.arange(3)), {1: Skipped(0, "map", "broken")})])
    write_files(tmp_path / "out", [dead])
    assert [row["x"] for row in read_rows(read_parquet(tmp_path / "out"))] == [1, 3]
    assert dead["x"].to_pylist() == [1, 3]


def test_no_rows(tmp_path: Path):
    assert write_files(tmp_path / "none", []) == []
    (url,) = cedar.from_arrow(table(0, 9)).filter(col("x") < 0).write_parquet(tmp_path / "empty.parquet")
    assert pq.read_table(url).schema.names == ["x", "s"]
    assert pq.read_table(url).num_rows == 0


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_no_columns(tmp_path: Path, name: str):
    with pytest.raises(PipelineError, match="there is no column to write"):
        write_files(tmp_path / name, [pa.table({})])
    assert files_of(tmp_path) == []


def test_a_name_that_is_taken_is_refused_before_anything_runs(tmp_path: Path):
    ran: list[int] = []

    def rows() -> Iterator[dict[str, int]]:
        ran.append(1)
        yield {"x": 1}

    (tmp_path / "x.parquet").write_text("mine")
    with pytest.raises(PipelineError, match="exists already"):
        cedar.from_iterable(rows).write_parquet(tmp_path / "x.parquet")
    assert ran == []


def test_other_storage():
    fs = fsspec.filesystem("memory")
    try:
        urls = write_files("memory://sinktest/out", [table(0, 10), table(10, 20), table(20, 30)])
        assert urls == [f"memory://sinktest/out/part-0000{i}.parquet" for i in range(3)]
        assert [r["x"] for r in read_rows(read_parquet("memory://sinktest/out"))] == list(range(30))
        with pytest.raises(PipelineError, match="holds 3 data files already"):
            write_files("memory://sinktest/out", [table(0, 3)])
    finally:
        fs.rm("sinktest", recursive=True)
