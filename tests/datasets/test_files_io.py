"""Opening files: those that changed since they were listed, and those that end early, are named."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.core.errors import ResumeError, SourceError
from cedar.core.remote import Remote
from cedar.datasets.files_io import File, changed_runs, check_unchanged, pieces
from cedar.datasets.text import read_text
from tests.datasets.reading import read_rows
from tests.datasets.text_files import ROWS, text, write


def test_a_file_that_vanishes_or_changes_after_listing(tmp_path: Path):
    source = read_text(write(tmp_path, b"a\nb\n"))
    (split,) = source.splits()
    write(tmp_path, b"a\nb\nc\n")
    with pytest.raises(SourceError, match=r"t\.txt: changed while in use: 4 bytes when listed, 6 now"):
        list(source.read(split))
    (tmp_path / "t.txt").unlink()
    with pytest.raises(SourceError, match=r"t\.txt: the file no longer exists"):
        list(source.read(split))


def test_a_compressed_file_cut_short(tmp_path: Path):
    whole = gzip.compress(b"".join(b"%d some text\n" % i for i in range(10_000)))
    source = read_text(write(tmp_path, whole[: len(whole) // 2], "t.txt.gz"))
    with pytest.raises(SourceError, match=r"t\.txt\.gz"):
        read_rows(source)


def test_streams_of_xz_one_after_the_other(tmp_path: Path):
    first, second = lzma.compress(b"a\n" * 100), lzma.compress(b"b\n" * 100)
    for between in (b"", bytes(4), bytes(200_000)):
        whole = read_rows(read_text(write(tmp_path, first + between + second + between, "t.txt.xz")))
        assert [row["text"] for row in whole] == ["a"] * 100 + ["b"] * 100
    for broken in (b"\xfc" + second[1:], second[:5], second[:-1], b"garbage"):
        with pytest.raises(SourceError, match=r"t\.txt\.xz"):
            read_rows(read_text(write(tmp_path, first + broken, "t.txt.xz")))


def test_nothing_but_xz_needs_what_some_builds_of_python_lack(tmp_path: Path):
    (tmp_path / "x.txt").write_text("a\n")
    code = "import sys; sys.modules['_lzma'] = None; import cedar; print(list(cedar.read_text(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.txt")], capture_output=True, text=True, check=True
    )
    assert "'a'" in done.stdout


def parquet(path: Path, first: int) -> None:
    values = [(i + first) % ROWS for i in range(ROWS)]  # of equal statistics and size
    table = pa.table({"x": values, "y": [v * 7 for v in values]})
    pq.write_table(table, path, row_group_size=8, use_dictionary=False, compression=None)


def arrow(path: Path, first: int) -> None:
    table = pa.table({"x": [(i + first) % ROWS for i in range(ROWS)]})
    pyarrow.feather.write_feather(table, path, compression="uncompressed", chunksize=8)


WAYS: dict[str, tuple[Callable[[Path, int], None], Callable[[str], cedar.Pipeline]]] = {
    "parquet": (parquet, cedar.read_parquet),
    "jsonl": (text, cedar.read_jsonl),
    "arrow": (arrow, cedar.read_arrow),
}


def replace_by_rename(path: Path, write: Callable[[Path, int], None]) -> None:
    found = path.stat()
    other = path.with_name("other" + path.suffix)
    write(other, 1)
    os.replace(other, path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))  # by its inode alone it is another


def replace_in_place(path: Path, write: Callable[[Path, int], None]) -> None:
    write(path, 1)
    os.utime(path, (1, 1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("replace", [replace_by_rename, replace_in_place])
def test_a_file_that_is_replaced_between_two_loaders_is_told(way: str, replace: Any, tmp_path: Path) -> None:
    write, read = WAYS[way]
    write(tmp_path / f"0.{way}", 0)
    p = read(f"{tmp_path}/*.{way}").filter(cedar.col("x") > 3).with_columns(y=cedar.col("x") + 1).select("y").batch(8)
    with p.loader(executor="inline") as loader:
        assert len(list(loader)) > 1
    replace(tmp_path / f"0.{way}", write)
    with p.loader(executor="inline") as loader, pytest.raises(SourceError, match="changed while in use"):
        list(loader)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("replace", [replace_by_rename, replace_in_place])
def test_a_file_that_is_replaced_in_mid_run_is_told(way: str, replace: Any, tmp_path: Path) -> None:
    write, read = WAYS[way]
    for i in range(3):
        write(tmp_path / f"{i}.{way}", 0)
    p = read(f"{tmp_path}/*.{way}").batch(8)
    size = (tmp_path / f"2.{way}").stat().st_size
    with p.loader(executor="inline", plan="off") as loader, pytest.raises(SourceError, match=f"2.{way}") as caught:
        for step, _ in enumerate(loader):
            if not step:
                replace(tmp_path / f"2.{way}", write)
                assert (tmp_path / f"2.{way}").stat().st_size == size
    assert "changed while in use" in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_replaced_file_is_told_at_resume_and_a_copy_is_not(way: str, tmp_path: Path) -> None:
    write, read = WAYS[way]
    for i in range(3):
        write(tmp_path / f"{i}.{way}", 0)
    p = read(f"{tmp_path}/*.{way}").batch(8)
    with p.loader() as loader:
        begun = [batch["x"].tolist() for batch in islice(loader, 5)]
        state = loader.state_dict()
    assert len(json.dumps(state)) < 4096
    copied = tmp_path / "copied"
    copied.mkdir()
    for i in range(3):
        shutil.copyfile(tmp_path / f"{i}.{way}", copied / f"{i}.{way}")
        os.utime(copied / f"{i}.{way}", (i + 5, i + 5))
    with read(f"{copied}/*.{way}").batch(8).loader() as loader:
        loader.load_state_dict(state)
        rest = [batch["x"].tolist() for batch in loader]
        assert not any("changed" in note for note in loader.report().notes)
    with p.loader() as loader:
        assert begun + rest == [batch["x"].tolist() for batch in loader]
    replace_in_place(tmp_path / f"1.{way}", write)
    from cedar.engine.delivery.state import seal

    unlisted = {k: v for k, v in state.items() if k not in ("listings", "check")}
    with pytest.raises(ResumeError, match=f"1.{way} is not what it was"):
        read(f"{tmp_path}/*.{way}").batch(8).loader().load_state_dict(seal(unlisted))
    for keys in (["check"], ["files", "check"], ["files", "listings", "check"]):  # without "files": of older versions
        with read(f"{tmp_path}/*.{way}").batch(8).loader() as loader:
            loader.load_state_dict(seal({k: v for k, v in state.items() if k not in keys}))
            assert any("changed since the state was saved" in n and f"1.{way}" in n for n in loader.report().notes) == (
                "files" not in keys
            )
            again = [batch["x"].tolist() for batch in loader]
        assert len(again) == len(rest)


def test_other_storage_tells_by_its_tag_or_time(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for i in range(2):
        parquet(tmp_path / "a", 0)
        fs.pipe_file(f"/stamped/{i}.parquet", (tmp_path / "a").read_bytes())
    p = cedar.read_parquet("memory://stamped/*.parquet").batch(8)
    with p.loader(executor="inline", plan="off") as loader, pytest.raises(SourceError, match="changed while in use"):
        for step, _ in enumerate(loader):
            if not step:
                state = loader.state_dict()
                parquet(tmp_path / "a", 1)
                fs.pipe_file("/stamped/1.parquet", (tmp_path / "a").read_bytes())
    with cedar.read_parquet("memory://stamped/*.parquet").batch(8).loader() as loader:
        loader.load_state_dict(state)
        assert any("stamped/1.parquet" in note for note in loader.report().notes)
        assert len(list(loader)) == 2 * ROWS // 8 - 1


def test_one_of_very_many_files_is_no_copy() -> None:
    stamps, contents = [str(i) for i in range(16)], ["same"] * 16
    one = [*stamps[:3], "other", *stamps[4:]]
    every = [f"other {s}" for s in stamps]
    assert changed_runs(1000, (stamps, contents), (stamps, contents)) == []
    assert changed_runs(1000, (stamps, contents), (one, contents)) == [3]
    assert changed_runs(16, (stamps, contents), (one, contents)) == []
    assert changed_runs(1000, (stamps, contents), (every, contents)) == []
    assert changed_runs(16, (stamps, [""] * 16), (one, [""] * 16)) == [3], "nothing can be said of what they hold"


def test_all_of_a_small_file_is_looked_at() -> None:
    assert pieces(0) == []
    assert pieces(65536) == [(0, 65536)]
    assert [stop - start for start, stop in pieces(10**9)] == [16384] * 3
    assert pieces(10**9)[-1][1] == 10**9


class Tagged:
    """Storage that reports tags. Like object stores in fsspec, it answers from a listing until that is invalidated."""

    async_impl = True

    def __init__(self) -> None:
        self.tag = self.listed = "old"

    def info(self, path: str) -> dict[str, Any]:
        return {"ETag": self.listed}

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listed = self.tag

    def unstrip_protocol(self, path: str) -> str:
        return f"tagged://{path}"


def test_a_changed_remote_file_is_refused_every_time() -> None:
    storage = Tagged()
    file = File("d/a", "a", 1, Remote(storage), stamp=("ETag", "old"))
    storage.tag = "new"
    for _ in range(2):
        with pytest.raises(SourceError, match="tagged://d/a: changed while in use"):
            check_unchanged(file)
    storage.tag = "old"
    check_unchanged(file)
