"""Where sinks write: whole files get their names, and nothing is left of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.storage import Storage
from cedar.lake.sinks import write_files
from cedar.testing.storage import flaky
from tests.datasets.blocks import files_of

ROWS = pa.table({"x": [0, 1, 2]})


@pytest.mark.usefixtures("impatient")
def test_a_sink_writes_all_rows_to_a_storage_that_fails(memory: Any):
    url = flaky("memory://out", status=0.15, reset=0.1, seed=4)
    written = cedar.from_items([{"x": i} for i in range(300)]).write_parquet(url)
    assert [u.rpartition("/")[2] for u in written] == ["part-00000.parquet"]
    assert [path for path in memory.find("/out") if "/_cedar/" not in path] == ["/out/part-00000.parquet"]
    assert cedar.read_parquet("memory://out").to_arrow()["x"].to_pylist() == list(range(300))


def test_nothing_is_sent_of_files_that_an_error_cut_short(memory: Any):
    def rows() -> Iterator[dict[str, int]]:
        yield from ({"x": i} for i in range(100_000))
        raise ValueError("enough")

    with pytest.raises(cedar.CedarError):
        cedar.from_iterable(rows).write_parquet("memory://out")
    assert memory.find("/out") == ["/out/_cedar/job.json"]


def test_data_that_is_there_is_not_mixed_with(tmp_path: Path):
    write_files(tmp_path / "out", [ROWS])
    before = files_of(tmp_path)
    with pytest.raises(PipelineError, match="holds 1 data files already, such as 'part-00000.parquet'"):
        write_files(tmp_path / "out", [ROWS])
    with pytest.raises(PipelineError, match="exists already"):
        write_files(tmp_path / "out" / "part-00000.parquet", [ROWS])
    assert files_of(tmp_path) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README").write_text("hello")
    write_files(tmp_path / "notes", [ROWS])
    assert files_of(tmp_path / "notes") == ["README", "part-00000.parquet"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nothing_remains_after_an_interruption(tmp_path: Path, error):
    def tables() -> Iterator[pa.Table]:
        yield ROWS
        yield ROWS
        raise error("stop")

    with pytest.raises(error):
        write_files(tmp_path / "out", tables())
    assert files_of(tmp_path) == []
    write_files(tmp_path / "out", [ROWS])


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "no space left")])
def test_no_local_copy_remains_of_a_failed_upload(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any
):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("cedar.datasets.storage.upload", fail)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else SourceError):
        write_files("memory://out", [ROWS])
    assert (files_of(tmp_path), memory.find("/out")) == ([], [])


def test_no_file_is_seen_before_it_is_whole(tmp_path: Path):
    def tables() -> Iterator[pa.Table]:
        for _ in range(2):
            yield ROWS
            assert not [f for f in files_of(tmp_path) if not f.rpartition("/")[2].startswith(".")]

    write_files(tmp_path / "out", tables())
    assert files_of(tmp_path) == ["out/part-00000.parquet", "out/part-00001.parquet"]


def test_a_place_that_cannot_be_written_to(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises((SourceError, PipelineError), match="file"):
        write_files(tmp_path / "file" / "out", [ROWS])
    with pytest.raises(SourceError, match=r"cannot write to 'nosuch://\*\*\*@x/out'"):
        write_files("nosuch://me:secret@x/out", [ROWS])


def test_a_fault_is_not_taken_for_a_free_name(memory: Any, monkeypatch: pytest.MonkeyPatch):
    memory.pipe({"/out/.a.tmp": b"mine", "/out/a": b"theirs"})
    monkeypatch.setattr(memory, "exists", lambda path: False)  # as fsspec answers after any failure
    with pytest.raises(PipelineError, match="another job has written 'memory://out/a'"):
        Storage.at("memory://out").check("/out/.a.tmp", 4, "/out/a")
