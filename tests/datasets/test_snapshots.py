"""Tables of Delta Lake, by deltalake; of Iceberg, by a stand-in for pyiceberg where that is not installed."""

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.testing import assert_resumable


def rows(pipeline: cedar.Pipeline) -> list[dict[str, Any]]:
    return sorted(pipeline.loader(executor="inline"), key=lambda row: row["x"])


def delta(folder: Path) -> str:
    """A table with partitions, deleted rows, and a column that was added."""
    deltalake.write_deltalake(
        str(folder), pa.table({"x": range(8), "p": ["a", "b b", None, "a"] * 2}), partition_by=["p"]
    )
    deltalake.DeltaTable(str(folder)).delete("x = 3")
    deltalake.write_deltalake(
        str(folder), pa.table({"x": [8], "p": ["a"], "y": [0.5]}), mode="append", schema_mode="merge"
    )
    return str(folder)


@pytest.mark.parametrize("version", [None, 0, 1, 2])
def test_the_rows_of_a_version(tmp_path: Path, version: int | None) -> None:
    uri = delta(tmp_path / "t")
    want = deltalake.DeltaTable(uri, version=version).to_pyarrow_table().to_pylist()
    found = cedar.read_delta(uri, version=version)
    assert rows(found) == sorted(want, key=lambda row: row["x"])
    assert found.count() == len(want)


def test_columns_filters_and_other_ways_to_name_it(tmp_path: Path) -> None:
    uri = delta(tmp_path / "t")
    for given in (uri, tmp_path / "t", f"file://{uri}", uri + "/"):
        assert [row["y"] for row in rows(cedar.read_delta(given, columns=["y", "x"]))] == [None] * 7 + [0.5]
        assert [row["x"] for row in rows(cedar.read_delta(given).filter(col("p") == "a"))] == [0, 4, 7, 8]


def test_columns_of_an_iterator_and_no_columns(tmp_path: Path) -> None:
    uri = delta(tmp_path / "t")
    columns: Any = iter(["x"])
    operator: Any = cedar.read_delta(uri, columns=columns).node.operator
    assert operator.source.columns == operator.source.at(0).columns == ("x",)
    assert cedar.read_delta(uri, columns=[]).schema == {}
    assert cedar.read_delta(uri, columns=[]).count() == 8
    with pytest.raises(cedar.PipelineError, match=r"read_delta: columns=\[1\] is not a list of different names"):
        cedar.read_delta(uri, columns=[1])  # type: ignore[list-item]


def test_a_version_stays_and_resumes(tmp_path: Path) -> None:
    uri = delta(tmp_path / "t")
    before = cedar.read_delta(uri)
    deltalake.write_deltalake(uri, pa.table({"x": [99], "p": ["a"], "y": [1.0]}), mode="append")
    assert before.count() == 8
    assert "version=2" in before.explain()
    assert_resumable(before.shuffle(seed=1).select("x").batch(2), executors=["inline"], stops=2)
    with before.select("x").batch(2).loader() as loader:
        next(iter(loader))
        state = loader.state_dict()
    with cedar.read_delta(uri, version=2).select("x").batch(2).loader() as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 3


@pytest.mark.parametrize("counted", [True, False])
def test_a_run_that_resumes_reads_the_version_of_its_state(tmp_path: Path, counted: bool) -> None:
    uri = delta(tmp_path / "t")

    def loader(version: int | None = None) -> cedar.Loader:
        rows = cedar.read_delta(uri, version=version).shuffle(seed=1)
        return (rows if counted else rows.filter(col("x") != 5)).select("x").batch(2).loader(executor="inline")

    with loader() as first:
        whole = [batch["x"].tolist() for batch in first]
    with loader() as first:
        begun = [next(iter(first))["x"].tolist()]
        state = json.loads(json.dumps(first.state_dict()))
    deltalake.write_deltalake(uri, pa.table({"x": [99], "p": ["a"], "y": [1.0]}), mode="append")
    deltalake.DeltaTable(uri).delete("x < 4")
    with loader() as latest:
        assert sorted(x for batch in latest for x in batch["x"].tolist()) == [4, *[5] * counted, 6, 7, 8, 99]
        with pytest.raises(cedar.ResumeError, match="with snapshot 2 of source 0, but this loader reads 4") as caught:
            latest.load_state_dict(state)
        assert "version=2" in (caught.value.fix or "")
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert begun + [batch["x"].tolist() for batch in resumed] == whole
        assert "version=2" in resumed.explain()
        again = resumed.state_dict()
    with loader() as resumed:  # the second time
        resumed.load_state_dict(again)
        assert sorted(x for batch in resumed for x in batch["x"].tolist()) == sorted(
            x for batch in whole for x in batch
        )
    with loader(version=4) as other, pytest.raises(cedar.ResumeError, match="with snapshot 2"):
        other.load_state_dict(state)


def test_keys_do_not_depend_on_other_files(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")  # of enough rows that no part is empty, which would move a row
    deltalake.write_deltalake(uri, pa.table({"x": range(64), "p": ["a", "b"] * 32}), partition_by=["p"])
    deltalake.write_deltalake(uri, pa.table({"x": [64], "p": ["a"]}), mode="append")
    parts = {"a": 0.5, "b": 0.5}
    before = {row["x"] for row in cedar.read_delta(uri, version=0).split(parts)["a"]}
    after = {row["x"] for row in cedar.read_delta(uri, version=1).split(parts)["a"]}
    assert after - {64} == before


def test_what_is_no_such_table(tmp_path: Path) -> None:
    uri = delta(tmp_path / "t")
    with pytest.raises(cedar.SourceError, match="version=77"):
        cedar.read_delta(uri, version=77)
    with pytest.raises(cedar.SourceError, match="read_delta"):
        cedar.read_delta(tmp_path)
    with pytest.raises(cedar.PipelineError, match="must be a string"):
        cedar.read_delta(3)  # type: ignore[arg-type]
    deltalake.DeltaTable(uri).delete()
    with pytest.raises(cedar.SourceError, match="has no rows"):
        cedar.read_delta(uri)


@pytest.mark.parametrize("why", ["deletion vectors", "renamed columns"])
def test_what_files_do_not_show_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    uri = delta(tmp_path / "t")
    vectors = pa.table({"filepath": ["a"]})
    configuration = {"delta.columnMapping.mode": "name"} if why == "renamed columns" else {}
    protocol = SimpleNamespace(reader_features=["deletionVectors"])
    monkeypatch.setattr(deltalake.DeltaTable, "deletion_vectors", lambda _: vectors)
    monkeypatch.setattr(deltalake.DeltaTable, "protocol", lambda _: protocol)
    monkeypatch.setattr(deltalake.DeltaTable, "metadata", lambda _: SimpleNamespace(configuration=configuration))
    with pytest.raises(cedar.PipelineError, match=why):
        cedar.read_delta(uri)


def test_partitions_that_no_folder_names_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    deltalake.write_deltalake(uri, pa.table({"x": range(4), "p": ["a"] * 4}), partition_by=["p"])
    for file in tmp_path.glob("t/p=a/*.parquet"):
        file.rename(tmp_path / "t" / file.name)
    (log,) = tmp_path.glob("t/_delta_log/*.json")
    log.write_text(log.read_text().replace("p=a/", ""))
    with pytest.raises(cedar.PipelineError, match="has no folder p=") as caught:
        cedar.read_delta(uri)
    assert "to_pyarrow_table" in (caught.value.fix or "")
    assert [row["x"] for row in rows(cedar.read_delta(uri, columns=["x"]))] == [0, 1, 2, 3]


def test_libraries_that_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    from cedar.core.packages import library

    for name, call in (("deltalake", cedar.read_delta), ("pyiceberg", cedar.read_iceberg)):
        monkeypatch.setitem(sys.modules, name, None)
        library.cache_clear()
        with pytest.raises(cedar.PipelineError, match=f"needs {name}") as caught:
            call("somewhere")
        assert "pip install 'cedar-data[" in str(caught.value)
    library.cache_clear()


# ---- Iceberg ---------------------------------------------------------------------------------------------------------


def field(number: int, name: str) -> Any:
    return SimpleNamespace(field_id=number, name=name)


OLD, NEW = 6_917_529_027_641_081_856, 7_917_529_027_641_081_857  # numbers of snapshots are drawn from 63 bits


class Table:
    """What of a table of pyiceberg is asked."""

    current = NEW

    def __init__(self, folder: Path, deletes: int = 0, old_name: str = "x") -> None:
        self.folder, self.deletes = folder, deletes
        self.old = [field(1, old_name)]
        for number in range(3):
            pq.write_table(pa.table({"x": pa.array([number], pa.int32())}), folder / f"{number}.parquet")

    def location(self) -> str:
        return f"file://{self.folder}"

    def current_snapshot(self) -> Any:
        return SimpleNamespace(snapshot_id=self.current)

    def snapshot_by_id(self, number: int) -> Any:
        return SimpleNamespace(snapshot_id=number) if number in (OLD, NEW) else None

    def schemas(self) -> dict[int, Any]:
        return {0: SimpleNamespace(fields=self.old)}

    def scan(self, snapshot_id: int) -> Any:
        files = [0, 1] if snapshot_id == OLD else [0, 2]
        tasks = [
            SimpleNamespace(
                file=SimpleNamespace(file_path=f"file://{self.folder}/{n}.parquet", file_format="FileFormat.PARQUET"),
                delete_files=[1] * self.deletes,
            )
            for n in files
        ]
        schema = SimpleNamespace(fields=[field(1, "x"), field(2, "y")])
        return SimpleNamespace(plan_files=lambda: tasks, projection=lambda: schema)


@pytest.fixture
def pyiceberg(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from cedar.core.packages import library

    made = ModuleType("pyiceberg.io.pyarrow")
    made.schema_to_pyarrow = lambda _: pa.schema([("x", pa.int64()), ("y", pa.string())])  # type: ignore[attr-defined]
    for name, module in (("pyiceberg", ModuleType("pyiceberg")), ("pyiceberg.io.pyarrow", made)):
        monkeypatch.setitem(sys.modules, name, module)
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.usefixtures("pyiceberg")
def test_the_rows_of_a_snapshot(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert rows(cedar.read_iceberg(table)) == [{"x": 0, "y": None}, {"x": 2, "y": None}]
    assert [row["x"] for row in rows(cedar.read_iceberg(table, snapshot_id=OLD, columns=["x"]))] == [0, 1]
    columns: Any = iter(["x"])
    operator: Any = cedar.read_iceberg(table, columns=columns).node.operator
    assert operator.source.columns == operator.source.at(OLD).columns == ("x",)
    assert f"snapshot_id={NEW}" in cedar.read_iceberg(table).node.operator.label()
    with pytest.raises(cedar.PipelineError, match=r"read_iceberg: columns=\[1\] is not a list of different names"):
        cedar.read_iceberg(table, columns=[1])  # type: ignore[list-item]
    with pytest.raises(cedar.SourceError, match="no snapshot 9"):
        cedar.read_iceberg(table, snapshot_id=9)
    with pytest.raises(cedar.PipelineError, match="takes a table"):
        cedar.read_iceberg(3)


@pytest.mark.usefixtures("pyiceberg")
def test_a_run_that_resumes_reads_the_snapshot_of_its_state(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.current = OLD
    with cedar.read_iceberg(table).select("x").loader() as loader:
        assert next(iter(loader)) == {"x": 0}
        state = json.loads(json.dumps(loader.state_dict()))
    table.current = NEW
    assert [row["x"] for row in cedar.read_iceberg(table)] == [0, 2]
    with cedar.read_iceberg(table).select("x").loader() as loader:
        loader.load_state_dict(state)
        assert list(loader) == [{"x": 1}]
    operator: Any = cedar.read_iceberg(table).node.operator
    source = operator.source
    assert pickle.loads(pickle.dumps(source)) == source  # workers need no table of pyiceberg
    with cedar.read_iceberg(table).select("x").loader() as loader, pytest.raises(cedar.ResumeError, match="damaged"):
        loader.load_state_dict(json.loads(json.dumps(state).replace(str(OLD), '"x"')))


@pytest.mark.usefixtures("pyiceberg")
def test_deletes_and_renamed_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(cedar.PipelineError, match="stores deletes separately"):
        cedar.read_iceberg(Table(tmp_path, deletes=1))
    with pytest.raises(cedar.PipelineError, match="renamed columns"):
        cedar.read_iceberg(Table(tmp_path, old_name="z"))
