"""Jobs that write Vortex files: their rows, their checksums, and the rest of a job that was ended."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from cedar import PipelineError, SourceError
from tests.lake.written_rows import VALUES, rows, stopping

pytest.importorskip("vortex", reason="the extra vortex is not installed")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


def names(out: Path) -> list[str]:
    found = (p.relative_to(out) for p in out.rglob("*") if p.is_file())
    return sorted(str(p) for p in found if p.parts[0] != "_cedar")


@settings(max_examples=10)
@given(
    per_file=st.one_of(st.none(), st.integers(30, 400)),
    executor=st.sampled_from(["inline", "threads"]),
    batch=st.sampled_from([None, 17]),
)
def test_files_hold_the_rows_in_their_order_and_have_checksums(place: Path, per_file, executor, batch):
    out = place / f"{len(list(place.iterdir()))}"
    p = rows(300).shuffle(seed=1)
    written = (p if batch is None else p.batch(batch, last="keep")).write(
        out, format="vortex", rows_per_file=per_file, executor=executor
    )
    assert cedar.read_vortex(out, verify=True).to_arrow().equals(p.to_arrow())
    assert (written.rows, written.resumed) == (300, 0)
    assert written.bytes == sum(Path(file).stat().st_size for file in written.files)
    files = [Path(file).name for file in written.files]
    assert names(out) == sorted([*files, *(f"{name}.crc" for name in files)])


def test_values_come_back(tmp_path: Path):
    cedar.from_arrow(VALUES).write(tmp_path / "out", format="vortex")
    found = cedar.read_vortex(tmp_path / "out").to_arrow()
    assert str(found.to_pylist()) == str(VALUES.to_pylist())


def test_a_job_goes_on_and_its_checksums_with_it(tmp_path: Path):
    p = stopping(tmp_path)
    with pytest.raises(cedar.RowError):
        p.write(tmp_path / "out", format="vortex", rows_per_file=50, executor="inline")
    (tmp_path / "on").touch()
    before = names(tmp_path / "out")
    assert before
    assert len(before) % 2 == 0
    written = p.write(tmp_path / "out", format="vortex", rows_per_file=50)
    assert (written.rows, written.resumed, len(written.files)) == (300, len(before) // 2, 6)
    assert cedar.read_vortex(tmp_path / "out", verify=True).to_arrow()["id"].to_pylist() == list(range(300))
    assert p.write(tmp_path / "out", format="vortex", rows_per_file=50).resumed == 6
    (tmp_path / "out" / "part-00001.vortex.crc").unlink()
    with pytest.raises(
        SourceError, match=r"part-00001\.vortex\.crc was written, but is now missing or has another size"
    ):
        p.write(tmp_path / "out", format="vortex", rows_per_file=50)


def test_folders_other_storage_and_no_rows(tmp_path: Path):
    rows(30).write(tmp_path / "by", format="vortex", partition_by="k")
    assert names(tmp_path / "by")[:2] == ["k=k0/part-00000.vortex", "k=k0/part-00000.vortex.crc"]
    found = cedar.read_vortex(tmp_path / "by", verify=True).to_arrow()["id"].to_pylist()
    assert found == [i for k in range(3) for i in range(k, 30, 3)]
    rows(30).write("memory://written-vortex/out", format="vortex")
    assert cedar.read_vortex("memory://written-vortex/out", verify=True).count() == 30
    fsspec.filesystem("memory").rm("/written-vortex", recursive=True)
    rows(30).filter(cedar.col("id") < 0).write(tmp_path / "none", format="vortex")
    assert cedar.read_vortex(tmp_path / "none").schema["l"] == pa.large_list(pa.int64())


def test_what_vortex_cannot_hold_is_refused_by_name(tmp_path: Path):
    table = pa.table({"x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(PipelineError, match="column 'x' is month_day_nano_interval, and Vortex has no such values"):
        cedar.from_arrow(table).write(tmp_path / "out", format="vortex")
