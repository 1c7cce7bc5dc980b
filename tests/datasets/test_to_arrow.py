"""Blocks as Arrow tables: what they hold, and what Arrow cannot hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import CedarError, col
from cedar.core.block import Block
from cedar.core.columns import TensorType, objects
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError
from cedar.datasets.to_arrow import to_arrow_table
from cedar.operators import image
from tests.datasets.blocks import block


def test_python_objects_are_refused():
    odd = Block({"x": pa.array([1]), "o": objects([{1, 2}])}, Keys(np.arange(1)))
    with pytest.raises(PipelineError, match="column 'o' holds Python objects"):
        to_arrow_table([odd])
    with pytest.raises(PipelineError, match="column 'c' of complex128 cannot be stored in Arrow"):
        to_arrow_table([Block({"c": np.zeros((1, 2), dtype=complex)}, Keys(np.arange(1)))])


def test_a_type_that_changes():
    blocks = [block({"x": [1]}), block({"x": ["a"]})]
    with pytest.raises(PipelineError, match="column 'x' is int64 in the first rows and large_string in later ones"):
        to_arrow_table(blocks)
    with pytest.raises(PipelineError, match="column 'y' is missing in the first rows"):
        to_arrow_table([block({"x": [1]}), block({"x": [1], "y": [2]})])


def test_to_arrow_table():
    table = to_arrow_table([block({"x": [1, 2]}), block({"x": pa.array([], pa.int64())}), block({"x": [3]})])
    assert table.equals(pa.table({"x": [1, 2, 3]}))
    images = to_arrow_table([block({"i": np.arange(8).reshape(2, 2, 2)})])
    assert images["i"].to_pylist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_to_arrow_table_without_blocks():
    assert to_arrow_table([]).num_columns == 0
    empty = to_arrow_table([], {"x": pa.int64(), "v": TensorType((2,), "float32")})
    assert empty.schema == pa.schema([("x", pa.int64()), ("v", pa.list_(pa.float32(), 2))])


DTYPES = ("uint8", "int64", "float16", "float32", "float64", "bool", "datetime64[us]")


READERS: dict[str, Any] = {"parquet": cedar.read_parquet, "arrow": cedar.read_arrow, "lance": cedar.read_lance}


def arrays(i: int) -> dict[str, Any]:
    """A row: an array of each type, an image, a vector, a number."""
    row: dict[str, Any] = {name: (np.arange(6).reshape(2, 3) + i).astype(name) for name in DTYPES}
    return row | {"image": np.full((4, 5, 3), i, np.uint8), "vector": np.arange(3.0) + i, "i": i}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return list(a) == list(b) and all(
        type(a[n]) is type(b[n]) and np.array_equal(a[n], b[n]) and np.asarray(a[n]).dtype == np.asarray(b[n]).dtype
        for n in a
    )


@pytest.mark.heavy
@pytest.mark.parametrize("layout", ["fast", "small", "pyarrow"])
@pytest.mark.parametrize("form", READERS)
def test_written_arrays_come_back(form: str, layout: str, tmp_path: Path) -> None:
    if form == "lance":
        pytest.importorskip("lance", reason="the extra lance is not installed")
    layout = layout if form == "parquet" else "fast"
    wanted = [arrays(i) for i in range(30)]
    p = cedar.from_items(wanted)
    p.write(tmp_path / "out", format=form, rows_per_file=7, layout=layout)
    found = READERS[form](tmp_path / "out")
    kinds = {name: TensorType((2, 3), name) for name in DTYPES} | {"image": TensorType((4, 5, 3), "uint8")}
    assert {name: kind for name, kind in found.schema.items() if isinstance(kind, TensorType)} == kinds
    columns = [*DTYPES, "image", "i"]
    rows = list(found.select(*columns).loader())
    assert all(equal(a, {name: b[name] for name in columns}) for a, b in zip(rows, wanted, strict=True))
    assert found.select("vector").to_arrow()["vector"].to_pylist() == [row["vector"].tolist() for row in wanted]
    assert found.with_columns(v=col("vector").arr.sum()).take(1).to_arrow()["v"].to_pylist() == [3.0]


def test_tables_and_no_rows(tmp_path: Path) -> None:
    p = cedar.from_items([arrays(i) for i in range(5)])
    again = cedar.from_arrow(p.to_arrow())
    assert again.schema["image"] == TensorType((4, 5, 3), "uint8")
    assert again.to_arrow().equals(p.to_arrow(), check_metadata=True)
    p.filter(col("i") < 0).write(tmp_path / "none")
    assert cedar.read_parquet(tmp_path / "none").schema["image"] == TensorType((4, 5, 3), "uint8")
    assert list(cedar.read_parquet(tmp_path / "none").loader()) == []


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_images_are_read_by_plans(executor: Any, tmp_path: Path) -> None:
    rows = [{"i": i, "image": np.full((8, 9, 3), i % 256, np.uint8), "other": np.ones((2, 2)) * i} for i in range(300)]
    cedar.from_items(rows).write(tmp_path / "out", rows_per_file=70)

    def pipeline() -> cedar.Pipeline:
        p = cedar.read_parquet(tmp_path / "out").map(image.random_resized_crop(4), "image")
        p = p.map(image.to_float(), "image").filter(col("i") % 3 == 0)
        return (
            p.map(lambda x: float(x.sum()), "other", into="sum", dtype=float)
            .drop("other")
            .shuffle(seed=3)
            .batch(16, last="keep")
        )

    with pipeline().loader(plan="off", executor="inline") as loader:
        wanted = list(loader)
    with pipeline().loader(executor=executor) as loader:
        for _ in range(2):
            found = list(loader)
    with pipeline().loader(plan="off", executor="inline") as loader:
        loader.set_epoch(1)
        again = list(loader)
    assert sorted(i for b in wanted for i in b["i"]) == list(range(0, 300, 3))
    for a, b in zip(found, again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in ("i", "image", "sum"))
        assert a["image"].shape[1:] == (4, 4, 3)


def test_other_readers_see_lists_and_other_lists_stay_lists(tmp_path: Path) -> None:
    p = cedar.from_items([{"x": np.arange(4).reshape(2, 2)}])
    p.write(tmp_path / "bytes")
    (file,) = (tmp_path / "bytes").rglob("*.parquet")
    assert np.frombuffer(pq.read_table(file)["x"].to_pylist()[0], np.int64).tolist() == [0, 1, 2, 3]
    p.write(tmp_path / "out", layout="pyarrow")
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert pq.read_table(file)["x"].to_pylist() == pl.read_parquet(file)["x"].to_list() == [[[0, 1], [2, 3]]]
    plain = pa.table({"x": pa.array([[[0, 1], [2, 3]]], pa.list_(pa.list_(pa.int64(), 2), 2))})
    pq.write_table(plain, tmp_path / "plain.parquet")
    assert list(cedar.read_parquet(tmp_path / "plain.parquet").loader()) == [{"x": [[0, 1], [2, 3]]}]
    both = cedar.read_parquet([str(file), str(tmp_path / "plain.parquet")])  # those of both are what both can be
    assert list(both.loader()) == [{"x": [[0, 1], [2, 3]]}] * 2


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[]",
        "{}",
        '{"shape": [3], "dtype": "int8"}',
        '{"shape": [2, 2], "dtype": "O"}',
        '{"shape": [-1, -4], "dtype": "int8"}',
        '{"shape": [2, 2], "dtype": "f4"}',
    ],
)
def test_fields_that_say_what_cannot_be(told: str, tmp_path: Path) -> None:
    rows = pa.array([b"abcd", b"efgh"], pa.binary(4))
    schema = pa.schema([pa.field("x", rows.type, metadata={"cedar.array": told})])
    pq.write_table(pa.table([rows], schema=schema), tmp_path / "x.parquet")
    assert list(cedar.read_parquet(tmp_path / "x.parquet").loader()) == [{"x": b"abcd"}, {"x": b"efgh"}]


@pytest.mark.parametrize("marked", ["a", "b"])
@pytest.mark.parametrize("manifest", [None, "m"])
def test_lists_come_of_files_that_do_not_all_say_arrays(marked: str, manifest: str | None, tmp_path: Path) -> None:
    table = cedar.from_items([{"x": np.arange(4).reshape(2, 2)}]).to_arrow()
    plain = pa.table(table.columns, schema=pa.schema([pa.field("x", table.schema.field("x").type)]))
    for name in "ab":
        pq.write_table(table if name == marked else plain, tmp_path / f"{name}.parquet")
    one, other = (pq.read_metadata(tmp_path / f"{name}.parquet").schema for name in "ab")
    assert one.equals(other)
    where = None if manifest is None else tmp_path / manifest
    p = cedar.read_parquet(tmp_path, manifest=where)
    assert not isinstance(p.schema["x"], TensorType)
    assert list(p.loader()) == [{"x": [[0, 1], [2, 3]]}] * 2


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_nulls_that_another_program_put_there(form: str, tmp_path: Path) -> None:
    cedar.from_items([{"x": np.arange(4).reshape(2, 2)}] * 3).write(tmp_path / "bytes")
    (whole,) = map(str, (tmp_path / "bytes").rglob("*.parquet"))
    stored = pq.read_table(whole).cast(pq.read_schema(whole).set(0, pq.read_schema(whole).field(0).with_nullable(True)))
    pq.write_table(stored.take(pa.array([0, None, 2])), whole)
    with pytest.raises(CedarError, match="null.* its field says that it holds arrays"):
        list(cedar.read_parquet(whole).loader())
    table = cedar.from_items([{"x": np.arange(4).reshape(2, 2)}] * 3).to_arrow()
    holes = pa.table([table["x"].combine_chunks().take(pa.array([0, None, 2]))], schema=table.schema)
    file = str(tmp_path / f"f.{form}")
    if form == "parquet":
        pq.write_table(holes, file)
    else:
        with pa.ipc.new_file(file, holes.schema) as out:
            out.write_table(holes)
    with pytest.raises(CedarError, match=r"null lists") as error:
        list(READERS[form](file).loader())
    assert file in str(error.value)


def test_converted_and_laid_out(tmp_path: Path) -> None:
    wanted = [{"i": i, "x": np.arange(4.0).reshape(2, 2) + i} for i in range(50)]
    cedar.from_items(wanted).write(tmp_path / "a")
    cedar.convert(tmp_path / "a", tmp_path / "b", format="arrow")
    rows = list(cedar.read_arrow(tmp_path / "b").loader())
    assert all(equal(a, b) for a, b in zip(rows, wanted, strict=True))
    cedar.from_items(wanted).map(lambda i: i % 3, "i", into="k", dtype=int).write(tmp_path / "c", partition_by=["k"])
    parted = list(cedar.read_parquet(tmp_path / "c").loader())
    assert sorted(row["i"] for row in parted) == list(range(50))
    assert all(isinstance(row["x"], np.ndarray) for row in parted)
