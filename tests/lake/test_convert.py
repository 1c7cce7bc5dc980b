"""cedar.convert: the same rows in another format, after telling what each is worth."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.cli import main
from cedar.lake import convert as converting

WITH = [name for name in ("vortex", "lance") if importlib.util.find_spec(name) is not None]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(2):
        rows = range(300 * number, 300 * number + 300)
        table = pa.table(
            {"id": rows, "x": np.arange(300) / 7, "l": [list(range(i % 4)) for i in rows], "s": map(str, rows)}
        )
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=70)
    return tmp_path / "in"


def piped(data: Path) -> cedar.Pipeline:
    return cedar.read_parquet(str(data)).filter(col("id") % 2 == 0).select("id", y=col("x") * 2).batch(32)


def tried(made: Any) -> set[tuple[str, str]]:
    return {(each.format, each.layout) for each in made.worth}


@pytest.mark.heavy
def test_it_measures_what_each_format_is_worth_for_a_pipeline_and_writes_nothing(data: Path):
    made = cedar.convert(data, pipeline=piped(data))
    expected = {("parquet", "as is"), ("parquet", "pyarrow"), ("parquet", "fast"), ("parquet", "small")}
    expected |= {("arrow", "fast"), ("arrow", "small")} | {(name, "fast") for name in WITH}
    assert expected <= tried(made)
    assert made.columns == ("id", "x")
    assert made.written is None
    assert [p.name for p in data.parent.iterdir()] == ["in"]
    assert all(each.decoding > 0 and each.pipeline and each.bytes > 0 for each in made.worth)
    assert [each.seconds for each in made.worth] == sorted(each.seconds for each in made.worth)
    lines = str(made).splitlines()
    assert len(lines) == 2 + len(made.worth)
    assert "2 column(s) decoded" in lines[0]


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["parquet", "arrow", *WITH])
def test_the_rows_are_the_same_in_their_order(form: Any, data: Path, tmp_path: Path):
    made = cedar.convert(data, tmp_path / "out", format=form)
    assert made.written is not None
    found = getattr(cedar, f"read_{form}")(str(tmp_path / "out")).to_arrow()
    assert found.to_pylist() == cedar.read_parquet(str(data)).to_arrow().to_pylist()


def test_what_takes_least_time_is_written(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def measured(*_: Any) -> Any:
        for form, layout, seconds in [("arrow", "fast", 3e-6), ("csv", "-", 1e-9), ("parquet", "as is", 1e-8),
                                      ("parquet", "small", 2e-6), ("parquet", "fast", 4e-6)]:  # fmt: skip
            yield converting.FormatCost(form, layout, 10.0, seconds, None, 0.0)

    monkeypatch.setattr(converting, "_measure", measured)
    made = cedar.convert(data, tmp_path / "out")
    job = json.loads((tmp_path / "out/_cedar/job.json").read_text())
    assert (job["format"], job["layout"]) == ("parquet", "small")
    assert made.written is not None
    assert made.written.rows == 600
    cedar.convert(data, tmp_path / "arrow", format="arrow")
    job = json.loads((tmp_path / "arrow/_cedar/job.json").read_text())
    assert (job["format"], job["layout"]) == ("arrow", "fast")

    monkeypatch.setattr(converting, "_measure", lambda *_: pytest.fail("measured again"))
    again = cedar.convert(data, tmp_path / "out")  # continues in the format that it began with
    assert again.written is not None
    assert again.written.resumed == 1


def test_rows_that_are_missing_are_an_error(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(converting, "_known_rows", lambda _: 601)
    with pytest.raises(cedar.SourceError, match="600 rows can be read, 600 were written, 601 expected"):
        cedar.convert(data, tmp_path / "out", format="arrow", layout="fast")


def test_a_format_that_has_no_place_for_a_column_ends_nothing(tmp_path: Path):
    items = [{"a.b": i, "l": []} for i in range(9)]
    cedar.from_items(items).write(tmp_path / "in", layout="pyarrow")
    cedar.convert(tmp_path / "in", tmp_path / "out", format="arrow")
    assert cedar.read_arrow(tmp_path / "out").to_arrow().to_pylist() == items


@pytest.mark.heavy
@pytest.mark.parametrize("ending", ["csv", "jsonl", "arrow"])
def test_other_formats_are_read(ending: str, tmp_path: Path):
    table = pa.table({"a": range(50), "b": [f"t{i}" for i in range(50)]})
    path = tmp_path / f"in.{ending}"
    if ending == "csv":
        path.write_text("a,b\n" + "".join(f"{i},t{i}\n" for i in range(50)))
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        pyarrow.feather.write_feather(table, path)
    made = cedar.convert(path, tmp_path / "out", format="parquet")
    assert made.written is not None
    assert cedar.read_parquet(made.written.files).to_arrow().to_pylist() == table.to_pylist()


@pytest.mark.skipif(importlib.util.find_spec("lance") is None, reason="needs lance")
def test_a_lance_data_set_is_read_and_measured(data: Path, tmp_path: Path):
    import lance

    lance.write_dataset(cedar.read_parquet(str(data)).to_arrow(), tmp_path / "in.lance")
    made = cedar.convert(tmp_path / "in.lance", tmp_path / "out", format="parquet")
    assert {("lance", "as is"), ("lance", "fast")} <= tried(made)
    assert cedar.read_parquet(str(tmp_path / "out")).count() == 600


def test_what_cannot_be_told_is_an_error(data: Path, tmp_path: Path):
    with pytest.raises(cedar.PipelineError, match="no files are given"):
        cedar.convert([])
    (tmp_path / "in.bin").write_text("x")
    with pytest.raises(cedar.PipelineError, match="no file has a known extension"):
        cedar.convert(tmp_path / "in.bin")
    other = cedar.read_parquet(str(data)).select("id")
    with pytest.raises(cedar.PipelineError, match="the pipeline has 2 sources"):
        cedar.convert(data, pipeline=cedar.concat(other, cedar.read_parquet(str(data)).select("id")))
    pq.write_table(pa.table({"z": [1]}), tmp_path / "z.parquet")
    with pytest.raises(cedar.PipelineError, match="the pipeline reads id, x, which the data does not have"):
        cedar.convert(tmp_path / "z.parquet", pipeline=piped(data))


@pytest.mark.heavy
def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    module = tmp_path / "pipelines.py"
    module.write_text(f"import cedar\ntrain = cedar.read_parquet({str(data)!r}).select('id').batch(8)\n")
    assert main(["data", "convert", str(data), "--measure", "--for", f"{module}:train"]) == 0
    assert "1 column(s) decoded" in capsys.readouterr().out
    assert main(["data", "convert", str(data), str(tmp_path / "out"), "--format", "arrow"]) == 0
    assert "complete: 600 row(s)" in capsys.readouterr().out
    assert main(["data", "convert", str(data)]) != 0
    assert "DST is missing" in capsys.readouterr().err
