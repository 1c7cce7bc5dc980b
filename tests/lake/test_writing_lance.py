"""Jobs that write Lance data sets: their rows, one commit when all ranks are through, and jobs that were ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from cedar import PipelineError, SourceError
from tests.lake.written_rows import VALUES, rows, stopping

lance = pytest.importorskip("lance", reason="the extra lance is not installed")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


def ids(out: Path) -> list[int]:
    found: list[int] = cedar.read_lance(out).to_arrow()["id"].to_pylist()
    return found


@settings(max_examples=10)
@given(
    per_file=st.one_of(st.none(), st.integers(30, 400)),
    executor=st.sampled_from(["inline", "threads"]),
    batch=st.sampled_from([None, 17]),
)
def test_a_data_set_has_the_rows_in_their_order(place: Path, per_file, executor, batch):
    out = place / f"{len(list(place.iterdir()))}.lance"
    p = rows(300).shuffle(seed=1)
    written = (p if batch is None else p.batch(batch, last="keep")).write(
        out, format="lance", rows_per_file=per_file, executor=executor
    )
    assert cedar.read_lance(out).to_arrow().equals(p.to_arrow())
    assert (written.rows, written.resumed) == (300, 0)
    assert written.bytes == sum(Path(file).stat().st_size for file in written.files)
    found = lance.dataset(out)
    assert [f"{out}/data/{file.path}" for each in found.get_fragments() for file in each.metadata.files] == (
        written.files
    )
    found.validate()


def test_values_come_back(tmp_path: Path):
    cedar.from_arrow(VALUES).write(tmp_path / "out", format="lance")
    assert str(cedar.read_lance(tmp_path / "out").to_arrow().to_pylist()) == str(VALUES.to_pylist())
    fields = lance.dataset(tmp_path / "out").schema
    lance.write_dataset(VALUES.cast(fields), tmp_path / "out", mode="append")  # by Lance itself
    assert cedar.read_lance(tmp_path / "out").count() == 6


def test_a_job_goes_on_and_the_data_set_is_there_at_its_end(tmp_path: Path):
    p = stopping(tmp_path)

    def written() -> Any:
        return p.write(tmp_path / "out", format="lance", rows_per_file=50, executor="inline")

    with pytest.raises(cedar.RowError):
        written()
    before = list((tmp_path / "out" / "data").glob("*.lance"))
    assert before
    with pytest.raises(SourceError, match="was not found"):
        ids(tmp_path / "out")
    (tmp_path / "on").touch()
    assert (written().resumed, ids(tmp_path / "out")) == (len(before), list(range(300)))

    lance.dataset(tmp_path / "out").delete("id < 10")
    assert (written().resumed, ids(tmp_path / "out")) == (6, list(range(10, 300)))


def test_a_job_that_was_killed_before_the_data_set_was_made_makes_it_when_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cedar.lake.lance_table.commit", killed)
        with pytest.raises(KeyboardInterrupt):
            rows(30).write(tmp_path / "out", format="lance")
    assert (rows(30).write(tmp_path / "out", format="lance").resumed, ids(tmp_path / "out")) == (1, list(range(30)))


def test_the_last_rank_to_end_joins_the_files_of_all(tmp_path: Path):
    pq.write_table(rows(90).to_arrow(), tmp_path / "in.parquet", row_group_size=10)
    p = cedar.read_parquet(tmp_path / "in.parquet")
    for rank in (2, 0, 1):
        assert not (tmp_path / "out" / "_versions").exists()
        p.write(tmp_path / "out", format="lance", rows_per_file=10, rank=rank, world=3)
    assert sorted(ids(tmp_path / "out")) == list(range(90))
    files = [file.path for each in lance.dataset(tmp_path / "out").get_fragments() for file in each.metadata.files]
    assert files == sorted(files)
    assert {file.partition("-")[2][:5] for file in files} == {"00000", "00001", "00002"}


def test_no_rows_give_a_data_set_without_rows(tmp_path: Path):
    rows(30).filter(cedar.col("id") < 0).write(tmp_path / "none", format="lance")
    assert cedar.read_lance(tmp_path / "none").schema["l"] == pa.large_list(pa.int64())
    assert cedar.read_lance(tmp_path / "none").count() == 0


def test_no_rows_of_no_columns_give_no_data_set(tmp_path: Path):
    for _ in range(2):
        assert cedar.from_items([]).write(tmp_path / "none", format="lance").rows == 0
    assert not (tmp_path / "none" / "_versions").exists()


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path: Path):
    with pytest.raises(PipelineError, match="a data set has no folders"):
        rows(3).write(tmp_path / "out", format="lance", partition_by="k")
    with pytest.raises(PipelineError, match="Lance does not support memory://"):
        rows(3).write("memory://written", format="lance")
    table = pa.table({"x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(PipelineError, match="column 'x' is month_day_nano_interval, and Lance refuses it: "):
        cedar.from_arrow(table).write(tmp_path / "out", format="lance")
    with pytest.raises(PipelineError, match=r"column 'a\.b' is int64, and Lance refuses it: (?s:.*) rename it"):
        cedar.from_items([{"a.b": 1}]).write(tmp_path / "out", format="lance")
    lance.write_dataset(pa.table({"x": [1]}), tmp_path / "there")
    with pytest.raises(PipelineError, match="holds 1 data files already"):
        rows(3).write(tmp_path / "there", format="lance")
    lance.write_dataset(pa.table({"x": [1]}).slice(0, 0), tmp_path / "empty")
    with pytest.raises(PipelineError, match="is a Lance data set already"):
        rows(3).write(tmp_path / "empty", format="lance")
