"""Jobs that write data sets: their rows are those of the pipeline, in order, however often they are begun."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from benchmarks import written_kills
from cedar import col
from cedar.datasets import storage
from cedar.lake import commits, writing


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_kills.generated(tmp_path_factory.mktemp("data") / "in", 600, 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


def rows_of(data: Path) -> cedar.Pipeline:
    return cedar.read_parquet(str(data)).filter(col("id") % 7 != 0)


def read(form: str, out: Path) -> list[int]:
    ids: list[int] = getattr(cedar, f"read_{form}")(f"{out}/*.{form}").to_arrow()["id"].to_pylist()
    return ids


def names(out: Path) -> list[str]:
    """What a reader finds, hidden files too, without the manifest."""
    found = (p.relative_to(out) for p in out.rglob("*") if p.is_file())
    return sorted(str(p) for p in found if p.parts[0] != "_cedar")


IDS = [i for i in range(600) if i % 7]


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@given(
    form=st.sampled_from(["parquet", "arrow", "jsonl"]),
    per_file=st.one_of(st.none(), st.integers(30, 700)),
    executor=st.sampled_from(["inline", "threads"]),
    batch=st.sampled_from([None, 1, 17]),
    shuffled=st.booleans(),
)
def test_files_hold_the_rows_in_their_order(data: Path, place: Path, form, per_file, executor, batch, shuffled):
    p = rows_of(data).shuffle(seed=1) if shuffled else rows_of(data)
    expected = p.to_arrow()["id"].to_pylist()
    p = p if batch is None else p.batch(batch, last="keep")
    out = place / f"{len(list(place.iterdir()))}"
    written = p.write(out, format=form, rows_per_file=per_file, executor=executor, workers=2)
    assert read(form, out) == expected
    assert (written.rows, written.resumed) == (len(expected), 0)
    assert written.bytes == sum(Path(file).stat().st_size for file in written.files)
    assert [Path(file).name for file in written.files] == names(out)
    if form == "parquet" and per_file is not None:
        counts = [pq.read_metadata(file).num_rows for file in written.files]
        assert max(counts) <= per_file + (batch or 1) - 1


def test_processes_encode_too(data: Path, tmp_path: Path):
    p = rows_of(data).map(str, "k", into="t")
    p.write(tmp_path / "out", rows_per_file=100, executor="processes", workers=2)
    assert read("parquet", tmp_path / "out") == IDS


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_values_come_back(tmp_path: Path, form: str):
    table = pa.table(
        {
            "id": pa.array([2**63 - 1, None, -5]),
            "f": pa.array([0.1, 1e-300, None]),
            "s": pa.array(['a\n"é', "", None]),
            "l": pa.array([[1, 2], [], None]),
            "d": pa.array([{"a": 1, "b": [0.5]}, {"a": None, "b": []}, {"a": 2, "b": None}]),
            "flag": pa.array([True, None, False]),
        }
    )
    cedar.from_arrow(table).write(tmp_path / "out", format=form)
    found = getattr(cedar, f"read_{form}")(f"{tmp_path}/out/*.{form}").to_arrow()
    assert found.to_pylist() == table.to_pylist()


def test_tar_shards_hold_the_samples(tmp_path: Path):
    rows: list[dict[str, Any]] = [
        {"key": f"d/{i:03}", "jpg": bytes([i]) * (600 * i), "txt": f"é{i}", "cls": i} for i in range(7)
    ]
    written = cedar.from_items(rows).write(tmp_path / "out", format="tar", rows_per_file=3)
    assert len(written.files) == 3
    found = cedar.read_tar(f"{tmp_path}/out/*.tar").to_arrow().to_pylist()
    assert found == [{**r, "txt": r["txt"].encode(), "cls": str(r["cls"]).encode()} for r in rows]


@pytest.mark.heavy
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b/c", None, "é x"]), st.integers(-1, 2)), min_size=1, max_size=60),
    st.one_of(st.none(), st.integers(1, 30)),
    st.integers(1, 2000),
)
def test_folders_hold_every_row_once_in_its_order(place: Path, keys, per_file, run_bytes):
    rows = [{"id": i, "k": k, "n": n} for i, (k, n) in enumerate(keys)]
    table = pa.Table.from_pylist(rows, pa.schema({"id": pa.int64(), "k": pa.string(), "n": pa.int64()}))
    out = place / f"{len(list(place.iterdir()))}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "RUN_BYTES", run_bytes)
        written = cedar.from_arrow(table).write(out, partition_by=["k", "n"], rows_per_file=per_file)
    assert written.rows == len(rows)
    assert sorted(cedar.read_parquet(str(out)), key=lambda r: r["id"]) == rows
    by_folder: dict[str, list[int]] = {}
    for file in written.files:
        ids = pq.read_table(file, partitioning=None)["id"].to_pylist()
        assert per_file is None or len(ids) <= per_file
        by_folder.setdefault(file.rpartition("/")[0], []).extend(ids)
    assert all(ids == sorted(ids) for ids in by_folder.values())


@pytest.mark.parametrize("layout", ["fast", "small", "pyarrow"])
def test_folders_of_more_rows_than_a_piece_has(layout, tmp_path: Path):
    table = pa.table({"id": range(140_000), "k": [i % 3 for i in range(140_000)]})
    out = tmp_path / "out"
    assert cedar.from_arrow(table).write(out, partition_by="k", layout=layout).rows == 140_000
    found = cedar.read_parquet(out).to_arrow().sort_by("id")
    assert found.equals(table)


def test_a_pipeline_without_rows(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    p = cedar.read_parquet(str(data)).filter(col("id") < 0)
    written = p.write(tmp_path / "out")
    assert (written.rows, len(written.files)) == (0, 1)
    assert pq.read_schema(written.files[0]).names == ["id", "k", "s"]
    assert p.write(tmp_path / "folders", partition_by="k").files == []
    assert p.write(tmp_path / "lines", format="jsonl").files == []
    assert "batch" not in caplog.text, "it has none of its own"
    assert rows_of(data).batch(64 * 1024, last="drop").write(tmp_path / "batches").rows == 0
    assert "has no batch" in caplog.text


def test_skipped_rows_are_left_out(tmp_path: Path):
    def odd(i: int) -> int:
        if i % 5 == 0:
            raise ValueError(i)
        return i

    p = cedar.from_items([{"id": i} for i in range(100)]).map(odd, "id")
    p.write(tmp_path / "out", rows_per_file=10, on_error=cedar.Skip(max_rate=0.5))
    assert read("parquet", tmp_path / "out") == [i for i in range(100) if i % 5]


# ---- ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("known", [True, False])
def test_ranks_write_parts_that_are_the_whole(data: Path, tmp_path: Path, world: int, known: bool):
    p = cedar.read_parquet(str(data)).shuffle(seed=2)
    p = p if known else p.filter(col("id") % 7 != 0)
    parts = [p.write(tmp_path / "out", rows_per_file=50, rank=rank, world=world) for rank in range(world)]
    assert sorted(read("parquet", tmp_path / "out")) == (list(range(600)) if known else IDS)
    files = [file for part in parts for file in part.files]
    assert len(set(files)) == len(files) == len(names(tmp_path / "out"))
    again = p.write(tmp_path / "out", rows_per_file=50, rank=1, world=world)
    assert again.files == parts[1].files
    with pytest.raises(cedar.PipelineError, match=f"was begun with world={world}, but this call has world=1"):
        p.write(tmp_path / "out", rows_per_file=50)


def test_ranks_begin_a_job_at_once(data: Path, tmp_path: Path):
    p, failed = rows_of(data), []

    def one(rank: int) -> None:
        try:
            p.write(tmp_path / "out", rows_per_file=50, rank=rank, world=4, executor="inline")
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failed
    assert sorted(read("parquet", tmp_path / "out")) == IDS


def test_ranks_of_the_environment(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    loader = rows_of(data).loader()
    assert (loader.rank.rank, loader.rank.world) == (1, 2)
    assert "rank 1 of 2 (from SLURM_PROCID and SLURM_STEP_NUM_TASKS)" in str(loader.report())
    (first, *_) = rows_of(data).write(tmp_path / "slurm").files
    assert Path(first).name == "part-00001-00000.parquet"
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    (first, *_) = rows_of(data).write(tmp_path / "torchrun").files
    assert Path(first).name == "part-00002-00000.parquet"
    assert [Path(f).name for f in rows_of(data).write_parquet(str(tmp_path / "alone"))] == ["part-00000.parquet"]


# ---- again -----------------------------------------------------------------------------------------------------------


def test_what_is_complete_stays_as_it_is(data: Path, tmp_path: Path):
    out = tmp_path / "out"
    first = rows_of(data).write(out, rows_per_file=100)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    again = rows_of(data).write(out, rows_per_file=100)
    assert (again.files, again.resumed) == (first.files, len(first.files))
    assert str(again).startswith(
        f"complete: 514 row(s) in 6 file(s) below {out}, 6 of them from earlier calls\nstored as "
    )
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()} == before


class Stop(BaseException):
    """Ends a job at once."""


def test_a_job_that_lacks_its_last_word_alone_writes_no_second_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    p = cedar.from_items([{"id": i} for i in range(40)]).filter(col("id") >= 0)  # only a run can tell the end
    add = commits.Log.add

    def stopped(log: Any, commit: Any) -> None:
        if commit.end:
            raise Stop
        add(log, commit)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(commits.Log, "add", stopped)
        p.write(tmp_path / "out", rows_per_file=10, executor="inline")
    p.write(tmp_path / "out", rows_per_file=10, executor="inline")
    assert sorted(read("parquet", tmp_path / "out")) == list(range(40))


@pytest.mark.heavy
@settings(max_examples=10)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=5), st.sampled_from(["filter", "flat_map", "batches", "folders"])
)
def test_a_job_that_was_stopped_goes_on(data: Path, place: Path, stops, name):
    """Whatever it was about to do to its storage, or had just done, when it ended."""
    out = place / f"{len(list(place.iterdir()))}"
    case = written_kills.CASES[name]
    p, options = case.make(cedar.read_parquet(str(data))), {**case.options, "executor": "inline", "workers": None}
    if "rows_per_file" in options:
        options["rows_per_file"] = 64
    done: set[str] = set()
    for stop in [*stops, 1 << 30]:
        left = [stop]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writing, "RUN_BYTES", 2000)
            for where, what in (
                (storage.AppendedFile, "flush"), (storage.AppendedFile, "end"), (storage.Storage, "rename"),
                (commits, "write_first"), (storage.Storage, "create"),
            ):  # fmt: skip
                patch.setattr(where, what, counted(getattr(where, what), left))
            patch.setattr(storage.AppendedFile, "drop", lambda self: None)  # who is killed removes nothing
            try:
                p.write(out, **options)
                break
            except Stop:
                there = {name for name in names(out) if "/." not in f"/{name}"}
                assert done <= there, "what is done stays"
                done = there
    assert written_kills.wrong_rows(p, out, case) == 0
    assert not [name for name in names(out) if "/." in f"/{name}"], "nothing temporary is left"


@pytest.mark.parametrize("batched", [False, True])
def test_a_job_that_was_stopped_before_its_last_commit_is_over(
    data: Path, tmp_path: Path, batched: bool, monkeypatch: pytest.MonkeyPatch
):
    """Its state is that of the next epoch, which was written, too."""
    rows = cedar.read_parquet(str(data)).shuffle(seed=1)
    rows = rows.batch(64, last="keep") if batched else rows
    real = commits.Log.add

    def stopped(log: commits.Log, commit: commits.Commit) -> None:
        if commit.end:
            raise Stop
        real(log, commit)

    with monkeypatch.context() as patch:
        patch.setattr(commits.Log, "add", stopped)
        with pytest.raises(Stop):
            rows.write(tmp_path, rows_per_file=64)
    assert rows.write(tmp_path, rows_per_file=64).rows == 600
    assert sorted(read("parquet", tmp_path)) == list(range(600))


def counted(call: Any, left: list[int]) -> Any:
    """The call, which ends the job before or after its work once others were created."""

    def made(*args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Stop
        result = call(*args)
        left[0] -= 1
        if left[0] == 0:
            raise Stop
        return result

    return made


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_jobs_that_are_killed_lose_and_repeat_nothing(tmp_path: Path):
    met, jobs, bad = written_kills.kill(tmp_path, 4, seed=3, rows=6000, only=["flat_map", "ranks"])
    assert met >= 4
    assert jobs >= 1
    assert bad == 0


def test_another_pipeline_is_refused_by_name(data: Path, tmp_path: Path):
    out = tmp_path / "out"
    rows_of(data).write(out)
    before = names(out)
    written_kills.generated(tmp_path / "other", 500, 0)
    for other, why in (
        (rows_of(data).take(5), "operator 3 was batch, and is take"),
        (rows_of(tmp_path / "other"), "the data of source 0 changed"),
        (cedar.read_parquet(str(data)).filter(col("id") % 8 != 0), "the code of a function or an expression"),
    ):
        with pytest.raises(cedar.PipelineError, match=f"was begun by another pipeline, or with other data.*{why}"):
            other.write(out)
    with pytest.raises(
        cedar.PipelineError, match="was begun with rows_per_file=None, but this call has rows_per_file=7"
    ):
        rows_of(data).write(out, rows_per_file=7)
    assert names(out) == before


def test_files_of_others_are_neither_mixed_with_nor_removed(data: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "README").write_text("mine")
    (out / ".part-00000.parquet.tmp-mine").write_text("mine")
    rows_of(data).write(out)
    assert names(out) == [".part-00000.parquet.tmp-mine", "README", "part-00000.parquet"]
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(cedar.PipelineError, match="holds 2 data files already, such as 'part-00000.parquet'"):
        rows_of(data).write(tmp_path)


def test_a_file_that_is_gone_is_named(data: Path, tmp_path: Path):
    written = rows_of(data).write(tmp_path / "out", rows_per_file=100)
    os.unlink(written.files[2])
    with pytest.raises(
        cedar.SourceError, match=r"part-00002\.parquet was written, but is now missing or has another size"
    ):
        rows_of(data).write(tmp_path / "out", rows_per_file=100)


@pytest.mark.parametrize(
    "change", [{"parts": 3}, {"parts": [{"name": "../x", "rows": 1, "bytes": 1, "temporary": "y"}]}]
)
def test_a_manifest_that_somebody_changed_is_refused(data: Path, tmp_path: Path, change: dict[str, Any]):
    rows_of(data).write(tmp_path / "out")
    (commit,) = (tmp_path / "out" / "_cedar").rglob("00000000.json")
    commit.write_text(json.dumps(json.loads(commit.read_text()) | change))
    with pytest.raises(cedar.SourceError, match="00000000.json is damaged"):
        rows_of(data).write(tmp_path / "out")


# ---- two at once -----------------------------------------------------------------------------------------------------


class Held:
    """A pipeline whose first job stays in the middle of its work, in a thread, until the block ends.

    Args:
        data: what it reads.
        out: where it writes.
    """

    def __init__(self, data: Path, out: str) -> None:
        self.ready, self.end = threading.Event(), threading.Event()
        self.pipeline, self.out = rows_of(data).map(self.wait, "id"), out
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.job)

    def __reduce__(self) -> tuple[Any, ...]:  # the code of the pipeline, which states tell of
        return Held, ()

    def wait(self, i: int) -> int:
        if i == 400 and not self.ready.is_set():
            self.ready.set()
            assert self.end.wait(300)
        return i

    def write(self) -> cedar.Written:
        return self.pipeline.write(self.out, rows_per_file=50, executor="inline")

    def job(self) -> None:
        try:
            self.write()
        except cedar.PipelineError as error:
            self.error = error

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.ready.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        self.thread.join(300)


@pytest.mark.heavy
def test_a_second_job_at_the_same_time_is_refused(data: Path, tmp_path: Path):
    with Held(data, str(tmp_path / "out")) as held, pytest.raises(cedar.PipelineError, match="another job is writing"):
        held.write()
    assert held.error is None
    assert read("parquet", tmp_path / "out") == IDS


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield fs
    fs.store.clear()


def _waiting(count: int) -> tuple[cedar.Pipeline, threading.Event, threading.Event]:
    """Rows that wait in the middle, when that is, and what lets them continue."""
    inside, go = threading.Event(), threading.Event()

    def waits(x: int) -> int:
        if x == count - count // 20:
            inside.set()
            assert go.wait(120)
        return x

    return cedar.from_arrow(pa.table({"x": range(count), "n": [0] * count})).map(waits, "x", dtype=int), inside, go


@pytest.mark.heavy
@pytest.mark.parametrize("outer", ["jsonl", "same", "parquet file"])
def test_jobs_in_folders_of_one_another_leave_each_other_alone(tmp_path: Path, outer: str):
    rows, inside, go = _waiting(200_000)
    results: list[Any] = []

    def write() -> None:
        try:
            results.append(rows.drop("n").write(tmp_path / "n=0", executor="inline", progress=False).rows)
        except cedar.PipelineError as error:
            results.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert inside.wait(120)
        few = cedar.from_items([{"x": 1, "n": 0}])
        if outer == "parquet file":
            few.write_parquet(str(tmp_path / "n=0" / "part-00000.parquet"))
        else:
            few.write(
                tmp_path, progress=False, format="jsonl" if outer == "jsonl" else "parquet",
                partition_by=None if outer == "jsonl" else "n",
            )  # fmt: skip
    finally:
        go.set()
        thread.join(120)
    found = cedar.read_parquet(str(tmp_path / "n=0" / "*.parquet")).to_arrow().num_rows
    if outer == "jsonl":
        assert (results, found) == ([200_000], 200_000)
    else:  # the file of that name is the other's, which was first
        assert "another job has written" in str(results[0])
        assert found == 1


@pytest.mark.heavy
def test_a_temporary_file_that_vanishes_is_an_error_and_not_begun_again(data: Path, tmp_path: Path):
    rows, inside, go = _waiting(200_000)
    failed: list[BaseException] = []

    def write() -> None:
        with pytest.raises(cedar.SourceError, match=r"cannot write to .*part-00000\.parquet") as caught:
            rows.write(tmp_path, executor="inline", progress=False)
        failed.append(caught.value)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert inside.wait(120)
        (temporary,) = tmp_path.glob(".part-00000.parquet.tmp-*")
        temporary.unlink()
    finally:
        go.set()
        thread.join(120)
    assert failed
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV])
def test_mounts_without_hard_links_and_locks(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    for module, name in ((os, "link"), (fcntl, "flock"), (os, "chmod"), (os, "fchmod")):
        monkeypatch.setattr(module, name, refused)
    rows, inside, go = _waiting(1000)
    results: list[Any] = []

    def write() -> None:
        try:
            results.append(rows.write(tmp_path / "out", executor="inline", progress=False).rows)
        except cedar.PipelineError as error:
            results.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert inside.wait(120)
        other = cedar.from_items([{"y": 1}]).write(tmp_path / "out", format="jsonl", progress=False)
    finally:
        go.set()
        thread.join(120)
    assert other.rows == 1, "the other had written nothing yet"
    assert "another job is writing to" in str(results[0])
    assert names(tmp_path / "out") == ["part-00000.jsonl"]
    assert cedar.from_items([{"y": 1}]).write(tmp_path / "out", format="jsonl", progress=False).resumed == 1


def test_on_storage_without_locks_one_of_two_ends_at_its_next_commit(data: Path, memory: Any):
    with Held(data, "memory://out") as held:
        held.write()
    assert str(held.error).startswith("another job is writing to 'memory://out'")
    assert cedar.read_parquet("memory://out").to_arrow()["id"].to_pylist() == IDS
    assert not [path for path in memory.find("/out") if ".tmp-" in path]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_that_says_what_to_do(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flush, left = storage.AppendedFile.flush, [3]

    def full(self: storage.AppendedFile) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(self)

    with monkeypatch.context() as patch:
        patch.setattr(storage.AppendedFile, "flush", full)
        with pytest.raises(cedar.SourceError) as caught:
            rows_of(data).write(tmp_path / "out", rows_per_file=100, executor="inline")
    said = str(caught.value)
    assert "part-00001.parquet': [Errno 28] No space left on device" in said
    assert "1 file(s) with 100 rows are complete and kept" in said
    assert "completed files are kept" in said
    assert names(tmp_path / "out") == ["part-00000.parquet"]
    written = rows_of(data).write(tmp_path / "out", rows_per_file=100)
    assert written.resumed == 1
    assert read("parquet", tmp_path / "out") == IDS


@pytest.mark.parametrize("below", ["", "/below", "/_cedar"])
def test_a_place_that_can_be_no_folder(data: Path, tmp_path: Path, below: str):
    (tmp_path / "file").write_text("kept")
    place = tmp_path / ("file" if below != "/_cedar" else "folder")
    if below == "/_cedar":
        place.mkdir()
        (place / "_cedar").write_text("kept")
    url = f"{place}{below if below == '/below' else ''}"
    for write in (rows_of(data).write, rows_of(data).write_parquet):
        with pytest.raises(cedar.SourceError, match=f"cannot write to '{url}'") as caught:
            write(url)
        assert isinstance(caught.value.__cause__, OSError)
        assert str(caught.value.site).startswith(__file__)
        assert "give a folder" in (caught.value.fix or "")


def test_a_store_that_fails_for_good(data: Path, memory: Any, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("no")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "put_file", refused)
        with pytest.raises(cedar.SourceError, match=r"cannot write to 'memory://out/part-00000.parquet'"):
            rows_of(data).write("memory://out")
    rows_of(data).write("memory://out")
    assert cedar.read_parquet("memory://out").to_arrow()["id"].to_pylist() == IDS


def test_an_error_in_the_pipeline_keeps_what_is_done(data: Path, tmp_path: Path):
    def bad(i: int) -> int:
        if i == 300 and not (tmp_path / "mended").exists():
            raise ValueError("300")
        return i

    p = rows_of(data).map(bad, "id")
    with pytest.raises(cedar.RowError):
        p.write(tmp_path / "out", rows_per_file=50, executor="inline")
    (tmp_path / "mended").touch()
    assert p.write(tmp_path / "out", rows_per_file=50).resumed > 0
    assert read("parquet", tmp_path / "out") == IDS


def test_a_job_that_wrote_nothing_binds_nobody(data: Path, tmp_path: Path):
    def bad(i: int) -> int:
        raise ValueError(i)

    with pytest.raises(cedar.RowError):
        rows_of(data).map(bad, "id", dtype=int).write(tmp_path / "out", format="jsonl")
    assert names(tmp_path / "out") == []
    rows_of(data).write(tmp_path / "out")
    assert read("parquet", tmp_path / "out") == IDS


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"x": 1}, {"format": "csv"}, "format='csv'"),
        ({"x": 1}, {"rows_per_file": 0}, "rows_per_file=0"),
        ({"x": {1, 2}}, {}, "column 'x' holds Python objects"),
        ({"x": b"a"}, {"format": "jsonl"}, "column 'x' is large_binary, and JSON has no such values"),
        ({"x": [float("nan")]}, {"format": "jsonl"}, "column 'x' has a NaN"),
        ({"x": "a"}, {"format": "tar"}, "a column 'key' of strings"),
        ({"key": "a", "x": 0.5}, {"format": "tar"}, "members are bytes, strings or integers"),
        ({"key": "a.b", "x": b""}, {"format": "tar"}, "key 'a.b' cannot name a sample"),
        ({"key": "../a", "x": b""}, {"format": "tar"}, "key '../a' cannot name a sample"),
        ({"key": "a", "X": b""}, {"format": "tar"}, "'X' cannot be an extension"),
        ({"x": 1, "k": 2}, {"partition_by": "kk"}, "there is no column 'kk'"),
        ({"x": 1, "k": 0.5}, {"partition_by": "k"}, "cannot partition by 'k' of type double"),
        ({"x": 1, "": 2}, {"partition_by": ""}, "partition by a column without a name"),
        ({"k": 1}, {"partition_by": "k"}, "partition_by leaves no column to write"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, row, options, message):
    with pytest.raises(cedar.PipelineError, match=message) as caught:
        cedar.from_items([row]).write(tmp_path / "out", **options)
    assert caught.value.site is not None
    assert not (tmp_path / "out").exists() or names(tmp_path / "out") == []


def test_an_endless_pipeline_is_refused(tmp_path: Path):
    with pytest.raises(cedar.PipelineError, match="endless"):
        cedar.from_items([{"x": 1}]).repeat().write(tmp_path / "out")
    with pytest.raises(cedar.PipelineError, match="creates a folder"):
        cedar.from_items([{"x": 1}]).write(tmp_path / "out.parquet")
    with pytest.raises(cedar.PipelineError, match="needs a folder"):
        cedar.from_items([{"x": 1}]).write_parquet(str(tmp_path / "x.parquet"), partition_by="x")


def test_a_type_that_changes_is_an_error(tmp_path: Path):
    def kinds(i: int) -> Any:
        return np.float64(i) if i < 100 else str(i)

    p = cedar.from_items([{"x": i} for i in range(200)]).map(kinds, "x")
    with pytest.raises(cedar.CedarError, match="x"):
        p.write(tmp_path / "out", rows_per_file=50)
