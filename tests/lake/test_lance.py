from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar import CedarError, PipelineError, ResumeError, SourceError, col
from cedar.lake.lance import read_lance
from tests.datasets.reading import column, read_keyed, read_rows, traveled

lance: Any = pytest.importorskip("lance", reason="the extra lance is not installed")


def table(n: int, start: int = 0) -> pa.Table:
    ids = range(start, start + n)
    return pa.table(
        {
            "name": pa.array([f"n{i % 50}" for i in ids], pa.string()),
            "id": pa.array(ids, pa.int64()),
            "tags": pa.array([list(range(i % 3)) if i % 4 else None for i in ids], pa.list_(pa.int32())),
            "f": pa.array([i / 7 if i % 5 else None for i in ids]),
            "raw": pa.array([bytes([i % 256] * (i % 6)) for i in ids]),
            "pair": pa.array([[i, -i] for i in ids], pa.list_(pa.float32(), 2)),
        }
    )


@pytest.fixture
def uri(tmp_path: Path) -> Path:
    lance.write_dataset(table(250), str(tmp_path / "d.lance"), max_rows_per_file=100)
    return tmp_path / "d.lance"


def test_all_rows_in_the_order_of_the_data_set(uri: Path):
    source = read_lance(uri)
    assert [(s.file, s.start, s.rows) for s in source.splits()] == [(0, 0, 100), (1, 0, 100), (2, 0, 50)]
    rows = read_keyed(source)
    assert [row for _, row in rows] == table(250).to_pylist()
    assert rows[120][0] == (1, 20)
    assert read_keyed(traveled(source), order=[2, 0, 1]) == rows
    assert source.schema()["name"] == pa.large_string()
    assert cedar.read_lance(uri).count() == 250
    assert len(cedar.read_lance(uri).batch(10).loader()) == 25


def test_splits_are_ranges_of_rows(uri: Path, monkeypatch):
    monkeypatch.setattr("cedar.lake.lance.group_rows", lambda width: 32)
    source = read_lance(uri)
    assert [s.rows for s in source.splits()] == [32, 32, 32, 4, 32, 32, 32, 4, 32, 18]
    assert column(source, "id") == list(range(250))


def test_columns(uri: Path):
    source = read_lance(uri, columns=["tags", "id"])
    assert read_rows(source)[5] == {"tags": [0, 1], "id": 5}
    assert read_rows(source.select(["id"]))[5] == {"id": 5}
    assert read_rows(read_lance(uri, columns="id"))[5] == {"id": 5}
    assert len(read_rows(source.select([]))) == 250
    with pytest.raises(PipelineError, match="there is no column 'ids'"):
        read_lance(uri, columns=["ids"]).schema()


def test_rows_that_were_deleted_do_not_come(uri: Path):
    lance.dataset(str(uri)).delete("id % 10 = 3")
    wanted = [i for i in range(250) if i % 10 != 3]
    assert column(read_lance(uri), "id") == wanted
    assert column(read_lance(uri, version=1), "id") == list(range(250))
    assert read_lance(uri).digest() != read_lance(uri, version=1).digest()
    assert cedar.read_lance(uri).filter(col("id") < 12).to_arrow()["id"].to_pylist() == [*range(3), *range(4, 12)]


def test_the_version_is_that_of_the_first_look(uri: Path):
    source = read_lance(uri)
    assert len(source.splits()) == 3
    lance.write_dataset(table(10, 250), str(uri), mode="append")
    lance.dataset(str(uri)).delete("id = 0")
    assert column(traveled(source), "id") == list(range(250))
    assert column(read_lance(uri), "id") == list(range(1, 260))


def test_a_state_knows_its_data(uri: Path, tmp_path: Path):
    p = cedar.read_lance(uri).select("id").shuffle(seed=1).batch(16, last="keep")
    with p.loader(executor="processes", workers=2) as loader:
        batches = iter(loader)
        begun = [next(batches)["id"].tolist() for _ in range(5)]
        state = loader.state_dict()
    shutil.copytree(uri, tmp_path / "moved.lance")
    q = cedar.read_lance(tmp_path / "moved.lance").select("id").shuffle(seed=1).batch(16, last="keep")
    with q.loader(executor="inline") as loader:
        loader.load_state_dict(state)
        rest = [batch["id"].tolist() for batch in loader]
    assert sorted(i for batch in begun + rest for i in batch) == list(range(250))
    lance.write_dataset(table(10, 250), str(uri), mode="append")
    with pytest.raises(ResumeError, match="data of source 0 changed"):
        cedar.read_lance(uri).select("id").shuffle(seed=1).batch(16, last="keep").loader().load_state_dict(state)


def test_what_is_no_data_set(tmp_path: Path):
    with pytest.raises(SourceError, match=r"nothing\.lance"):
        cedar.read_lance(tmp_path / "nothing.lance").count()
    for bad in (3, "", None, ["a"]):
        with pytest.raises(PipelineError, match="uri must be a string or a path") as caught:
            cedar.read_lance(bad)
        assert caught.value.site is not None


def test_files_that_are_cut_short_or_gone_are_named(uri: Path):
    path = min((uri / "data").iterdir())
    whole, chance = path.read_bytes(), random.Random(1)
    for i in range(12):
        source = read_lance(uri)
        source.schema()
        if i:
            path.write_bytes(whole[: chance.randrange(len(whole) - 1)])
        else:
            path.unlink()
        with pytest.raises(CedarError, match=path.name):
            read_rows(source)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch):
    import sys

    from cedar.core.packages import library

    monkeypatch.setitem(sys.modules, "lance", None)
    library.cache_clear()
    with pytest.raises(PipelineError, match="read_lance needs lance") as caught:
        cedar.read_lance(tmp_path).count()
    assert caught.value.fix == "pip install 'cedar-data[lance]'"
    library.cache_clear()
