"""Layouts of Parquet files: chosen by what is measured, the same rows in any of them."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.lake import layouts, writing
from cedar.lake.formats import Parquet

AIMS = pytest.mark.parametrize("aim", layouts.AIMS)


def table_of(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    lists = [rng.integers(0, 50, n).tolist() for n in rng.integers(0, 4, rows)]
    return pa.table(
        {
            "id": pa.array(np.arange(rows)),
            "small": pa.array(rng.integers(0, 3, rows).astype(np.int8)),
            "x": pa.array(rng.normal(size=rows).astype(np.float32), mask=rng.random(rows) < 0.1),
            "text": pa.array([f"t{i % 7}" for i in range(rows)]),
            "lists": pa.array(lists, pa.list_(pa.int64())),
            "deep": pa.array([[each, None, each] for each in lists]),
            "flag": pa.array(rng.random(rows) < 0.5),
            "struct": pa.array([{"a": i, "b": f"{i}"} if i % 5 else None for i in range(rows)]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * rows)), 3),
            "none": pa.nulls(rows),
            "a.b": pa.array(rng.integers(0, 1 << 40, rows)),
            "when": pa.array(rng.integers(0, 1 << 40, rows), pa.timestamp("us")),
        }
    )


@pytest.mark.heavy
@AIMS
def test_the_rows_are_those_of_the_pipeline_for_every_reader(tmp_path: Path, aim: Any):
    table = table_of(500)
    written = cedar.from_arrow(table).write(tmp_path / "out", rows_per_file=200, layout=aim)
    assert cedar.read_parquet(str(tmp_path / "out")).to_arrow().to_pylist() == table.to_pylist()
    assert pa.concat_tables(map(pq.read_table, written.files), promote_options="permissive").to_pylist() == (
        table.to_pylist()
    )
    frame = pl.concat([pl.read_parquet(file) for file in written.files], how="vertical_relaxed")
    assert frame.select("id", "x", "lists", "text").rows() == pl.DataFrame(
        {name: table[name].to_pylist() for name in ("id", "x", "lists", "text")},
        schema_overrides={"x": pl.Float32},
    ).rows()  # fmt: skip
    assert set(written.layout) == (set() if aim == "pyarrow" else set(table.column_names))


def test_what_is_read_fastest_is_chosen(monkeypatch: pytest.MonkeyPatch):
    column = pa.table({"x": np.arange(5000)})
    sizes = {
        tuple(how): layouts._encoded(column, {"x": how}).size for how in layouts._candidates(column.schema.field(0))
    }

    def costs(seconds: Any) -> None:
        monkeypatch.setattr(layouts, "_decoding_seconds", lambda file: seconds(file.size))

    costs(lambda size: 1.0 if size == sizes["plain", "none"] else 2.0)
    assert layouts.choose(column, "fast", "disk") == ["plain", "none"]
    costs(lambda size: 1.0)  # all alike: the smallest
    assert tuple(layouts.choose(column, "fast", "disk")) == min(sizes, key=lambda how: (sizes[how], how))
    # bytes are expensive where they come from afar
    costs(lambda size: 1e-6 if size == sizes["plain", "none"] else 2e-6)
    assert layouts.choose(column, "fast", "url") != ["plain", "none"]


@given(st.integers(0, 1000))
@settings(max_examples=3)
def test_small_is_within_a_tenth_of_zstd(seed: int):
    table = table_of(2000, seed)
    for name in table.column_names:
        column = table.select([name])
        chosen = layouts._encoded(column, {name: layouts.choose(column, "small", "disk")}).size
        zstd = [layouts._encoded(column, {name: [e, "zstd"]}).size for e in ("plain", "dictionary") if name != "flag"]
        assert all(chosen <= layouts.SMALL * size for size in zstd)


def test_of_many_columns_some_are_stored_as_others_of_their_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    looked: list[str] = []

    def choose(column: pa.Table, *_: Any) -> list[str]:
        looked.extend(column.column_names)
        return ["plain", "none"]

    monkeypatch.setattr(layouts, "_MAX_TRIAL_SECONDS", -1.0)
    monkeypatch.setattr(layouts, "choose", choose)
    table = pa.table({f"{kind}{i}": pa.array(range(5), kind) for i in range(3) for kind in (pa.int32(), pa.int64())})
    written = cedar.from_arrow(table).write(tmp_path / "out")
    assert looked == ["int320", "int640"]
    assert set(written.layout) == set(table.column_names)


def test_columns_without_nulls_say_so_and_a_null_begins_another_file(tmp_path: Path):
    lists = [[i, i + 1] for i in range(300)]
    lists[150:160] = [[None, 1]] * 10  # type: ignore[list-item]
    numbers: list[int | None] = list(range(300))
    numbers[250] = None
    table = pa.table({"id": range(300), "lists": lists, "n": numbers})
    written = cedar.from_arrow(table).batch(25, last="keep").write(tmp_path / "out", executor="inline")
    assert len(written.files) == 1  # one piece
    assert cedar.read_parquet(str(tmp_path / "out")).to_arrow().to_pylist() == table.to_pylist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "group_rows", lambda *_: 50)
        written = cedar.from_arrow(table).write(tmp_path / "more", executor="threads", workers=2)
    said = [[(f.name, f.nullable) for f in pq.read_schema(file)] for file in written.files]
    assert said == [[("id", False), ("lists", False), ("n", n == 2)] for n in range(3)]
    items = [pq.read_schema(file).field("lists").type.value_field.nullable for file in written.files]
    assert items == [False, True, True]
    assert [pq.read_metadata(file).num_rows for file in written.files] == [150, 100, 50]
    assert cedar.read_parquet(str(tmp_path / "more")).to_arrow().to_pylist() == table.to_pylist()


def test_pieces_that_were_encoded_before_a_null_was_known_are_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The piece with nulls waits until those after it are encoded."""
    monkeypatch.setattr(writing, "group_rows", lambda *_: 10)
    others = threading.Event()
    with_job_schema = Parquet.with_job_schema

    def waiting(self: Parquet, table: pa.Table) -> Any:
        made = with_job_schema(self, table)
        if table["id"][0].as_py() == 10:
            others.wait(0.5)
        elif table["id"][0].as_py() >= 20:
            others.set()
        return made

    again: list[int] = []
    refitted = Parquet.refitted

    def counted(self: Parquet, piece: Any, fields: Any) -> Any:
        again.append(1)
        return refitted(self, piece, fields)

    monkeypatch.setattr(Parquet, "with_job_schema", waiting)
    monkeypatch.setattr(Parquet, "refitted", counted)
    values = [None if i == 15 else i for i in range(40)]
    written = cedar.from_arrow(pa.table({"id": range(40), "n": values})).write(
        tmp_path / "out", executor="threads", workers=4
    )
    assert [pq.read_metadata(file).num_rows for file in written.files] == [10, 30]
    assert again
    assert cedar.read_parquet(str(tmp_path / "out")).to_arrow()["n"].to_pylist() == values


@pytest.mark.parametrize("aim", ["fast", "small", "pyarrow"])
def test_lists_that_are_all_empty_are_written(tmp_path: Path, aim: Any):
    items: list[dict[str, Any]] = [{"x": i, "l": [], "n": None} for i in range(4)]
    cedar.from_items(items).write(tmp_path / "out", layout=aim)
    assert cedar.read_parquet(tmp_path / "out").to_arrow().to_pylist() == items


def test_nulls_that_no_list_holds_do_not_count(tmp_path: Path):
    lists = pa.LargeListArray.from_arrays(
        pa.array([0, 2, 4]), pa.array([1, 2, None, None]), mask=pa.array([False, True])
    )
    table = pa.table({"lists": lists})
    written = cedar.from_arrow(table).write(tmp_path / "out")
    assert not pq.read_schema(written.files[0]).field("lists").type.value_field.nullable
    assert pq.read_table(written.files[0]).to_pylist() == [{"lists": [1, 2]}, {"lists": None}]


@pytest.mark.parametrize("cut", [7, 100])
def test_the_size_of_blocks_does_not_show_in_what_files_say(tmp_path: Path, cut: int):
    values = [i if i < 60 else None for i in range(100)]
    pq.write_table(pa.table({"n": values, "l": [[v] for v in values]}), tmp_path / "in.parquet", row_group_size=cut)
    written = cedar.read_parquet(str(tmp_path / "in.parquet")).take(50).write(tmp_path / "out")
    assert [f.nullable for f in pq.read_schema(written.files[0])] == [False, False]
    assert not pq.read_schema(written.files[0]).field("l").type.value_field.nullable


def test_a_job_that_goes_on_keeps_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = table_of(400)

    def late(i: int) -> int:
        if i == 350 and broken:
            raise ValueError("broken")
        return i

    broken = [True]
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=50)
    p = cedar.read_parquet(str(tmp_path / "in.parquet")).map(late, "id")
    with pytest.raises(cedar.RowError):
        p.write(tmp_path / "out", rows_per_file=100, executor="inline")
    (log,) = (tmp_path / "out/_cedar").glob("rank-*")
    layout = json.loads(min(log.glob("*.json")).read_text())["layout"]

    def never(*_: Any) -> None:
        raise AssertionError("chosen already")

    monkeypatch.setattr(layouts, "choose", never)
    broken.clear()
    written = p.write(tmp_path / "out", rows_per_file=100, executor="inline")
    assert (written.rows, written.layout) == (400, layout)
    assert len({str(layouts.layout_of(file)) for file in written.files}) == 1
    assert "stored as" in str(written)


def test_the_layout_of_a_file_has_names_with_dots(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": 1, "c.d": [2]}], "a.x": [3], "e.f": [{"g": 4}]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert list(layouts.layout_of(str(tmp_path / "t.parquet"))) == table.column_names


@pytest.mark.parametrize("layout", [{"id": ["plain"]}, {"id": ["plain", "evil"]}, {"id": ["x", "lz4"]}, [1], "plain"])
def test_a_layout_that_is_none_is_refused(tmp_path: Path, layout: Any):
    p = cedar.from_arrow(table_of(10)).filter(col("id") >= 0)
    p.write(tmp_path / "out")
    (path,) = (tmp_path / "out/_cedar").glob("rank-*/*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layout": layout}))
    with pytest.raises(cedar.SourceError, match="is damaged"):
        p.write(tmp_path / "out")


@pytest.mark.parametrize(("form", "layout"), [("jsonl", "small"), ("arrow", "pyarrow"), ("parquet", "quick")])
def test_a_layout_that_a_format_has_not_is_refused(tmp_path: Path, form: Any, layout: Any):
    with pytest.raises(cedar.PipelineError, match=f"layout='{layout}'.*'{form}' files is 'fast'"):
        cedar.from_items([{"x": 1}]).write(tmp_path / "out", format=form, layout=layout)


def test_a_job_goes_on_with_the_layout_that_it_was_begun_with(tmp_path: Path):
    p = cedar.from_items([{"x": 1}])
    p.write(tmp_path / "out", layout="small")
    with pytest.raises(cedar.PipelineError, match="begun with layout='small', but this call has layout='fast'"):
        p.write(tmp_path / "out")


def test_small_arrow_files_are_compressed(tmp_path: Path):
    table = table_of(3000)
    fast, small = (
        cedar.from_arrow(table).write(tmp_path / aim, format="arrow", layout=aim) for aim in ("fast", "small")
    )
    assert small.bytes < 0.8 * fast.bytes
    assert fast.layout == {}
    assert "stored as ipc, " in str(small)
    for written in (fast, small):
        assert cedar.read_arrow(written.files).to_arrow().to_pylist() == table.to_pylist()


def test_a_process_forked_during_trials_can_choose_a_layout():
    chosen = layouts.Layouts("fast", "disk")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with chosen._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    if (child := os.fork()) == 0:
        signal.alarm(30)  # ends a child that waits for the lock
        try:
            os._exit(chosen.file_compression(lambda _: "zstd", pa.table({})) != "zstd")
        finally:
            os._exit(99)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
