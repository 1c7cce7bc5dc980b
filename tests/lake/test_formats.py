"""Formats: files that are put together from pieces hold their rows, and what a format has no place for is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError
from cedar.lake.formats import FORMATS

READERS: dict[str, Any] = {
    "parquet": cedar.read_parquet, "arrow": cedar.read_arrow, "jsonl": cedar.read_jsonl, "tar": cedar.read_tar,
}  # fmt: skip


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"key": [f"k{i}" for i in range(start, stop)], "x": [f"é{i}".encode() for i in range(start, stop)]})


@pytest.mark.parametrize("name", READERS)
def test_a_file_holds_the_rows_of_its_pieces_in_order(tmp_path: Path, name: str):
    form, whole = FORMATS[name], rows(0, 9)
    if name == "jsonl":
        whole = whole.set_column(1, "x", whole["x"].cast(pa.string()))
    form.check(whole.schema)
    with open(tmp_path / f"a{form.suffix}", "wb") as file:
        made = form.assembly(file.write)
        for start in (0, 4, 5):
            made.add(form.encode(whole.slice(start, {0: 4, 4: 1, 5: 4}[start])))
        made.end()
    assert READERS[name](str(tmp_path / f"a{form.suffix}")).to_arrow().to_pylist() == whole.to_pylist()


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("parquet", pa.list_(pa.month_day_nano_interval()), "Parquet has no intervals"),
        ("parquet", pa.struct([("deep", pa.struct([]))]), "Parquet has no structs without fields"),
        ("jsonl", pa.list_(pa.binary()), "JSON has no such values"),
        ("jsonl", pa.date32(), "JSON has no such values"),
        ("tar", pa.float64(), "members are bytes, strings or integers"),
    ],
)
def test_types_without_a_place_are_refused_by_the_name_of_the_column(name: str, kind: pa.DataType, why: str):
    with pytest.raises(PipelineError, match=rf"write\(format='{name}'\): column 'odd' is .*{why}"):
        FORMATS[name].check(pa.schema([("key", pa.string()), ("odd", kind)]))


def test_a_line_has_the_names_of_the_columns(tmp_path: Path):
    rows = [{"": 1, "column_0": 2, "deep": {"": 3}}]
    (tmp_path / "a.jsonl").write_bytes(FORMATS["jsonl"].encode(pa.Table.from_pylist(rows)))
    assert (tmp_path / "a.jsonl").read_text() == '{"":1,"column_0":2,"deep":{"":3}}\n'
    assert cedar.read_jsonl(str(tmp_path / "a.jsonl")).to_arrow().to_pylist() == rows


def test_values_without_a_place_are_refused():
    for values in ([0.5, float("nan")], [[1.0], [float("inf")]], [{"deep": float("-inf")}]):
        with pytest.raises(PipelineError, match="column 'x' has a NaN or an infinite number"):
            FORMATS["jsonl"].encode(pa.table({"x": values}))
    keys_refused = [["a.b"], [None], ["a\0b"], ["a\0/b"], ["./a"]]
    for keys, why in ((["a", "a"], "occurs twice"), *((keys, "cannot name a sample") for keys in keys_refused)):
        with pytest.raises(PipelineError, match=why):
            FORMATS["tar"].encode(pa.table({"key": pa.array(keys, pa.string()), "x": [b""] * len(keys)}))
    with pytest.raises(PipelineError, match="cannot be an extension of members"):
        FORMATS["tar"].check(pa.schema([("key", pa.string()), ("x\0y", pa.binary())]))
    with pytest.raises(PipelineError, match="column 'x' has a null"):
        FORMATS["tar"].encode(pa.table({"key": ["a"], "x": pa.array([None], pa.binary())}))


def test_the_name_of_a_sample_comes_once_in_a_shard():
    tar = FORMATS["tar"].assembly(lambda data: len(data))
    tar.add(FORMATS["tar"].encode(rows(0, 4)))
    with pytest.raises(PipelineError, match="key 'k3' occurs twice"):
        tar.add(FORMATS["tar"].encode(rows(3, 5)))


def test_small_arrow_files_are_compressed_and_others_can_be_mapped(tmp_path: Path):
    table, sizes = pa.table({"x": [7] * 5000}), {}
    for aim in ("fast", "small"):
        form, content = FORMATS["arrow"].for_job(aim, "disk"), bytearray()
        made = form.assembly(lambda data, content=content: content.extend(memoryview(data)) or len(data))  # type: ignore[misc]
        made.add(form.encode(table))
        made.end()
        assert pa.ipc.open_file(pa.py_buffer(bytes(content))).read_all().equals(table)
        sizes[aim] = len(content)
    assert sizes["small"] < sizes["fast"] / 10
