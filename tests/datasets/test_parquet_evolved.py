"""Parquet files of one data set that differ in columns that ``schema=`` names, compared with Arrow's own promotion."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col

FILES = {
    "a": pa.table({"x": pa.array([1, 2], pa.int32()), "s": ["u", None]}),
    "b": pa.table({"x": pa.array([2**40], pa.int64()), "y": [0.5], "s": pa.nulls(1)}),
    "c": pa.table({"s": ["v"], "l": [[1, 2]], "x": pa.nulls(1)}),
}
SCHEMA = {"x": int, "y": float, "s": str, "l": pa.list_(pa.int64())}


def write(folder: Path, *names: str) -> str:
    for name in names:
        pq.write_table(FILES[name], folder / f"{name}.parquet")
    return str(folder / "*.parquet")


@pytest.mark.parametrize("names", ["ab", "ba", "abc", "ca", "cb"])
@pytest.mark.parametrize("plan", ["off", "auto"])
def test_missing_null_and_narrower_columns(tmp_path: Path, names: str, plan: str) -> None:
    present = {n for name in names for n in FILES[name].column_names}
    schema = {name: kind for name, kind in SCHEMA.items() if name in present}
    found = cedar.read_parquet(write(tmp_path, *names), schema=schema)
    want = pa.concat_tables([FILES[name] for name in sorted(names)], promote_options="permissive")
    with found.select(*want.column_names).loader(plan=plan, executor="inline", format="arrow") as loader:
        assert list(loader) == want.to_pylist()
    with found.filter(col("x") > 1).select("x").loader(plan=plan, executor="inline") as loader:
        assert [row["x"] for row in loader] == [x for x in want["x"].to_pylist() if x is not None and x > 1]
    for name in schema:
        chosen = cedar.read_parquet(str(tmp_path / "*.parquet"), schema=schema, columns=[name])
        assert [row[name] for row in chosen.loader(format="arrow", plan=plan)] == want[name].to_pylist()


@pytest.mark.parametrize(
    ("schema", "error", "message"),
    [
        (None, cedar.SourceError, "schema="),
        ({"x": int, "y": float}, cedar.SourceError, "column 's'"),
        (SCHEMA | {"z": int}, cedar.PipelineError, "no column 'z'"),
        (SCHEMA | {"x": pa.int32()}, cedar.SourceError, "cannot be converted to int32"),
        (SCHEMA | {"x": pa.list_(pa.int64())}, cedar.PipelineError, "cannot be read as"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, schema: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        list(cedar.read_parquet(write(tmp_path, "a", "b", "c"), schema=schema).loader(format="arrow"))


@pytest.mark.parametrize(
    ("kind", "held", "large"),
    [
        ("float32", [0.5, float("inf"), None], -1e39),
        ("float32", ["0.5", "inf", None], "-1e39"),
        ("float16", [0.5, float("-inf"), None], 7e4),
        ("float16", [2, None], 70_000),
    ],
)
def test_a_number_too_large_for_a_float_type_is_an_error(tmp_path: Path, kind: str, held: Any, large: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": held}), path)
    rows = cedar.read_parquet(path, schema={"x": kind}).loader(format="arrow")
    assert [row["x"] for row in rows] == [None if value is None else float(value) for value in held]
    pq.write_table(pa.table({"x": [*held, large]}), path)
    with pytest.raises(cedar.SourceError, match="column 'x' of .* cannot be converted to .* is too large"):
        list(cedar.read_parquet(path, schema={"x": kind}))
