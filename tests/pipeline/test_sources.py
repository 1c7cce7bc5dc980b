"""Functions that begin a pipeline: rows of many places, joins, and errors at the user's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import cedar

TABLE = pa.table({"x": [1, 2, 3]})
ROWS = TABLE.to_pylist()


def in_memory() -> dict[str, cedar.Pipeline]:
    class Own:
        def splits(self) -> list[int]:
            return [0, 2]

        def read(self, split: int) -> list[Any]:
            return [ROWS[split : split + 2]]

    return {
        "items": cedar.from_items(ROWS),
        "iterable": cedar.from_iterable(lambda: iter(ROWS)),
        "arrow": cedar.from_arrow(TABLE),
        "polars": cedar.from_polars(pl.DataFrame({"x": [1, 2, 3]})),
        "own": cedar.from_source(Own()),
    }


@pytest.mark.parametrize("name", ["items", "iterable", "arrow", "polars", "own"])
def test_rows_in_memory_are_rows_wherever_they_come_from(name: str) -> None:
    p = in_memory()[name]
    assert list(p.loader(executor="inline")) == ROWS
    assert p.node.site is not None
    assert p.node.site.file == __file__


def test_files_are_rows_whatever_their_format(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pyarrow.feather.write_feather(TABLE, str(tmp_path / "a.arrow"))
    (tmp_path / "a.csv").write_text("x\n1\n2\n3\n")
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": 3}\n')
    readers: dict[str, Callable[..., cedar.Pipeline]] = {
        "parquet": cedar.read_parquet, "arrow": cedar.read_arrow, "csv": cedar.read_csv, "jsonl": cedar.read_jsonl,
    }  # fmt: skip
    for name, read in readers.items():
        assert list(read(tmp_path / f"a.{name}").loader(executor="inline")) == ROWS
    assert [row["text"] for row in cedar.read_text(tmp_path / "a.csv")] == ["x", "1", "2", "3"]
    assert [row["bytes"] for row in cedar.read_files(tmp_path / "a.csv")] == [b"x\n1\n2\n3\n"]
    for read in (*readers.values(), cedar.read_text, cedar.read_files, cedar.read_tar):
        with pytest.raises(cedar.SourceError) as caught:
            list(read(tmp_path / "nothing.here").loader(executor="inline"))
        assert caught.value.site is not None
        assert caught.value.site.file == __file__


def test_pipelines_are_joined_by_rows_by_columns_and_in_shares() -> None:
    a, b = cedar.from_items([{"x": 1}, {"x": 2}]), cedar.from_items([{"y": 5}, {"y": 6}, {"y": 7}])
    assert [row["x"] for row in cedar.concat(a, a)] == [1, 2, 1, 2]
    assert list(cedar.zip(a, b)) == [{"x": 1, "y": 5}, {"x": 2, "y": 6}]
    mixed = cedar.mix([(cedar.from_items([{"y": 1}, {"y": 2}]), 1.0), (b, 3.0)], seed=1, stop="all")
    assert sorted(row["y"] for row in mixed) == [1, 2, 5, 6, 7]


@pytest.mark.parametrize(
    ("join", "says"),
    [
        (lambda p: cedar.concat(), "concat needs at least one pipeline"),
        (lambda p: cedar.zip(p, [1]), "zip takes pipelines, not int"),  # type: ignore[list-item]
        (lambda p: cedar.mix([p]), "mix takes a list of pairs"),
        (lambda p: cedar.mix(3), "mix takes a list of pairs"),
        (lambda p: cedar.mix([(["x"], 1.0)]), "mix takes pipelines, not list"),  # type: ignore[list-item]
        (lambda p: cedar.concat(p, p.batch(2)), "batch"),
    ],
)
def test_what_cannot_be_joined_is_refused_at_the_users_line(join: Any, says: str) -> None:
    with pytest.raises(cedar.PipelineError, match=says) as caught:
        join(cedar.from_items(ROWS))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


@pytest.mark.parametrize("parts", [lambda p: [p, p], lambda p: p, lambda p: {"web": p, "code": p}])
def test_pipelines_without_weights_are_refused_before_they_run(parts: Any) -> None:
    def never(x: int) -> int:
        raise AssertionError("it runs")

    with pytest.raises(cedar.PipelineError, match="mix takes a list of pairs") as caught:
        cedar.mix(parts(cedar.from_items([{"x": 1}, {"x": 2}]).map(never, "x", dtype=int)))
    assert caught.value.fix == "mix([(a, 0.5), (b, 0.5)])"


def _file(name: str, text: str = "") -> str:
    Path(name).write_text(text)
    return name


def _parquet(groups: int) -> str:
    table = pa.table({"a": pa.array([], pa.int64())})
    with pq.ParquetWriter("a.parquet", table.schema) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return "a.parquet"


def _ipc(make: Any) -> str:
    with make("a.arrow", pa.schema([("a", pa.int64())])):
        return "a.arrow"


INT = {"a": int}
EMPTY = {
    "a list": lambda: cedar.from_items([], dtypes=INT),
    "an iterator": lambda: cedar.from_iterable(lambda: iter([]), dtypes=INT),
    "a header": lambda: cedar.read_csv(_file("a.csv", "a\n"), dtypes=INT),
    "a header, in ranges": lambda: cedar.read_csv(_file("a.csv", "a\n"), dtypes=INT, quoting=False),
    "no header": lambda: cedar.read_csv(_file("a.csv"), dtypes=INT, header=False, column_names=["a"]),
    "no lines": lambda: cedar.read_jsonl(_file("a.jsonl"), dtypes=INT),
    "blank lines": lambda: cedar.read_jsonl(_file("a.jsonl", "\n \n"), dtypes=INT),
    "a row group": lambda: cedar.read_parquet(_parquet(1)),
    "no row group": lambda: cedar.read_parquet(_parquet(0)),
    "an IPC file": lambda: cedar.read_arrow(_ipc(pa.ipc.new_file)),
    "an IPC stream": lambda: cedar.read_arrow(_ipc(pa.ipc.new_stream)),
    "a table": lambda: cedar.from_arrow(pa.table({"a": pa.array([], pa.int64())})),
    "flat_map": lambda: cedar.from_items([{"a": 1}]).flat_map(lambda a: [], "a"),
    "map above a list": lambda: cedar.from_items([], dtypes=INT).map(lambda a: a + 1, "a"),
    "a list without types": lambda: cedar.from_items([]),
    "an iterator without types": lambda: cedar.from_iterable(lambda: iter([])),
}
JOINED = {
    "concat, first": lambda empty, rows: cedar.concat(empty, rows),
    "concat, second": lambda empty, rows: cedar.concat(rows, empty),
    "mix, first": lambda empty, rows: cedar.mix([(empty, 1), (rows, 1)], stop="all"),
    "mix, second": lambda empty, rows: cedar.mix([(rows, 1), (empty, 1)], stop="all"),
}


@pytest.mark.parametrize("what", EMPTY)
def test_types_hold_without_rows(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    empty, rows = EMPTY[what](), cedar.from_items([{"a": 1}])
    if "without" not in what:
        assert list(empty.schema) == ["a"]
        assert list(cedar.zip(empty, cedar.from_items([{"b": 2}])).schema) == ["a", "b"]
        assert empty.to_arrow().schema.names == ["a"]
    if "map" not in what and "without" not in what:
        assert empty.schema == {"a": pa.int64()}
    for join in JOINED.values():
        joined = join(empty, rows)
        for plan in ("auto", "off"):
            assert list(joined.loader(plan=plan)) == [{"a": 1}]
        assert list(joined.map(lambda a: a + 1, "a")) == [{"a": 2}]
    assert list(empty) == list(cedar.zip(cedar.from_items([{"b": 2}]), empty)) == []
