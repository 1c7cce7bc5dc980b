"""Entries in a directory: for this user alone, and nothing else in it is touched."""

from __future__ import annotations

import datetime as dt
import errno
import logging
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError
from cedar.core.requests import ATTEMPTS
from cedar.store import folder
from cedar.store.cache import Store
from cedar.store.files import MARK
from cedar.store.place import INSIDE
from cedar.testing import flaky
from tests.store.toy_stored import block, entries, entry
from tests.toy_entries import Key


def test_files_are_for_this_user_alone(tmp_path: Path) -> None:
    Store().put(Key("g", "0"), str(tmp_path / "a" / "kept"), [block()])
    assert (tmp_path / "a" / "kept").stat().st_mode & 0o777 == 0o700
    assert entry(tmp_path / "a" / "kept", "g-0").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("broken", ["tail", "os.replace", "os.makedirs"])
def test_a_place_that_cannot_be_written_stops_nothing(
    code: int, broken: str, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    where = str(tmp_path / "kept")
    Store().put(Key("g", "old"), where, [block()])
    monkeypatch.setattr(folder, "tail", fail) if broken == "tail" else monkeypatch.setattr(broken, fail)
    kept = Store()
    with caplog.at_level(logging.WARNING, "cedar"):
        for i in range(3):
            kept.put(Key("g", str(i)), where, [block()])
    assert len(caplog.records) == len(kept.notes) == 1
    assert os.strerror(code) in kept.notes[0]
    assert kept.get(Key("g", "old"), where), "what is there is still read"
    left = {p.name for p in (tmp_path / "kept" / INSIDE).iterdir()}
    assert left == {MARK, entry(tmp_path, "g-old").name}, "nothing is left behind"


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    real = os.stat

    def foreign(path: Any, **how: Any) -> Any:
        found = real(path, **how)
        return os.stat_result([*found[:4], found.st_uid + 1, *found[5:]]) if str(path) == str(tmp_path) else found

    Store().put(Key("g", "0"), str(tmp_path), [block()])
    monkeypatch.setattr(os, "stat", foreign)
    for use in (lambda: Store().get(Key("g", "0"), str(tmp_path)), lambda: Store().kept([], str(tmp_path))):
        with pytest.raises(PipelineError) as caught:
            use()
        assert "belongs to another user" in str(caught.value)
        assert "give your own directory" in str(caught.value)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_can_write_is_refused(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PipelineError, match="can be written by others") as caught:
        Store().get(Key("g", "0"), str(tmp_path))
    assert "chmod go-w" in str(caught.value)
    tmp_path.chmod(0o755)
    assert Store().get(Key("g", "0"), str(tmp_path)) is None


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    with pytest.raises(PipelineError, match="is not a directory"):
        Store().get(Key("g", "0"), str(tmp_path / "kept"))


def test_temporary_files_of_a_killed_run_go(tmp_path: Path) -> None:
    Store().put(Key("g", "0"), str(tmp_path), [block()])
    old, new, others = f".{'a' * 32}.tmp", f".{'b' * 32}.tmp", ".backup.tmp"
    for name, age in ((old, 2 * folder._ABANDONED), (new, 10), (others, 2 * folder._ABANDONED)):
        path = tmp_path / INSIDE / name
        path.write_text("x")
        now = path.stat().st_mtime
        os.utime(path, (now - age, now - age))
    Store().put(Key("g", "1"), str(tmp_path), [block()])
    left = {p.name for p in (tmp_path / INSIDE).iterdir()}
    assert left == {new, others, MARK, entry(tmp_path, "g-0").name, entry(tmp_path, "g-1").name}


def test_temporary_objects_of_a_killed_run_go(memory: Any) -> None:
    where, root = "memory://killed", f"/killed/{INSIDE}"
    Store().put(Key("g", "0"), where, [block()])
    old, new, others = f".{'a' * 32}.tmp", f".{'b' * 32}.tmp", ".backup.tmp"
    for name, age in ((old, 2 * folder._ABANDONED), (new, 10), (others, 2 * folder._ABANDONED)):
        memory.pipe_file(f"{root}/{name}", b"x")
        memory.store[f"{root}/{name}"].created -= dt.timedelta(seconds=age)
    Store().put(Key("g", "1"), where, [block()])
    left = {path.rpartition("/")[2] for path in memory.find(root)}
    assert left == {new, others, MARK, *(f"{Key('g', each).name}.arrow" for each in "01")}


def test_the_folder_of_the_data_keeps_all_that_it_holds(tmp_path: Path) -> None:
    data = tmp_path / "ds"
    data.mkdir()
    for i in range(3):
        with pa.ipc.new_file(data / f"{i}-{'a' * 16}.arrow", pa.schema({"x": pa.int64()})) as writer:
            writer.write_batch(pa.record_batch({"x": np.arange(100) + i}))
    before = {p.name: p.read_bytes() for p in data.iterdir()}
    for paths in (str(data), f"{data}/*.arrow", f"{data}/**/*.arrow"):
        for _ in range(2):
            p = cedar.read_arrow(paths).map(lambda x: x + 1, "x", dtype=int).cache(str(data))
            assert p.count() == 300
            assert sum(row["x"] for row in p) == 3 * sum(range(100)) + 600
    assert entries(data), "it was kept there"
    tight = Store(disk=1)
    tight.put(Key("g", "0"), str(data), [block()])
    assert {name: (data / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("foreign", ["file", "link", "unmarked"])
def test_a_folder_that_cedar_did_not_make_is_refused(foreign: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    theirs = mine / f"{'a' * 16}-{'b' * 16}.arrow"
    theirs.write_text("precious")
    where = tmp_path / "kept"
    where.mkdir(mode=0o700)
    if foreign == "file":
        (where / INSIDE).write_text("x")
    elif foreign == "link":
        (where / INSIDE).symlink_to(mine)
    else:
        mine.rename(where / INSIDE)
        theirs = where / INSIDE / theirs.name
    for use in (
        lambda: Store().get(Key("g", "0"), str(where)),
        lambda: Store().put(Key("g", "0"), str(where), [block()]),
    ):
        with pytest.raises(PipelineError, match="not a directory|did not make"):
            use()
    assert theirs.read_text() == "precious"


def test_what_others_put_beside_entries_stays(tmp_path: Path) -> None:
    for where, at in ((str(tmp_path), tmp_path), ("memory://beside", None)):
        kept = Store(disk=5000)
        kept.put(Key("g", "0"), where, [block()])
        names = ["train-0.arrow", "precious.arrow", "manifest.json.bak", f"{'a' * 16}-{'b' * 16}.parquet"]
        fs, root = fsspec.url_to_fs(f"{where}/{INSIDE}")
        for name in names:
            fs.pipe_file(f"{root}/{name}", b"precious" * 1000)
        if at is not None:
            (at / INSIDE / f"{'c' * 16}-{'d' * 16}.arrow").mkdir()  # no file, whatever its name
        for i in range(4):
            Store(disk=5000).put(Key("h", str(i)), where, [block()])
        assert all(fs.cat_file(f"{root}/{name}") == b"precious" * 1000 for name in names)


@pytest.mark.parametrize(("small", "maps"), [(4 << 20, 128), (0, 128), (0, 3)])
def test_entries_hold_few_files_open(small: int, maps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_SMALL", small)
    monkeypatch.setattr(folder, "_MAX_MAPS", maps)
    (tmp_path / "data").mkdir()
    for number in range(40):
        (tmp_path / "data" / f"{number:02}.txt").write_text(f"{number}\n")
    pipeline = cedar.read_text(f"{tmp_path}/data/*.txt").map(str.title, "text").cache(str(tmp_path / "kept"))
    loader = pipeline.shuffle(seed=1).batch(8).loader(executor="inline", plan="off")
    assert len(list(loader)) == 5
    most = 0

    class Counted(weakref.WeakSet[mmap.mmap]):
        def add(self, item: mmap.mmap) -> None:
            nonlocal most
            super().add(item)
            most = max(most, len(self))

    monkeypatch.setattr(folder, "_maps", Counted())
    rows = [text for batch in loader for text in batch["text"].tolist()]
    assert sorted(rows) == sorted(map(str, range(40)))
    if small:
        assert most == 0, "they are read"
    else:
        assert most == min(maps, 40), "all entries of the window at once, or as many as may be"


def test_a_url_with_a_folder_that_cedar_did_not_make_is_left_alone() -> None:
    fs, root = fsspec.url_to_fs(f"memory://others/{INSIDE}")
    fs.pipe_file(f"{root}/{Key('g', '0').name}.arrow", b"precious")
    kept = Store()
    assert kept.get(Key("g", "0"), "memory://others") is None, "it is not an entry"
    kept.put(Key("g", "0"), "memory://others", [block()])
    assert fs.cat_file(f"{root}/{Key('g', '0').name}.arrow") == b"precious"
    assert any("did not make" in note for note in kept.notes)


def test_what_fails_and_passes_costs_no_entry() -> None:
    kept, where = Store(), flaky("memory://cache-faults", status=0.1, reset=0.1, short=0.1)
    keys = [Key("g", str(i)) for i in range(10)]
    for i, key in enumerate(keys):
        kept.put(key, where, [block(i)], {"group": key.group})
    found = [kept.get(key, where) for key in keys]
    assert [blocks and blocks[0].columns["x"][0, 0] for blocks in found] == list(range(10))
    assert kept.kept([key.name for key in keys], where) == 10
    assert (kept.notes, kept.rejected, len(kept.records(where))) == ([], 0, 1)


def test_a_storage_that_is_down_is_said_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPTS, "2")
    kept, where = Store(), flaky("memory://cache-down", status=0.999)
    for i in range(3):
        assert kept.get(Key("g", str(i)), where) is None
        kept.put(Key("g", str(i)), where, [block()])
    reading, writing = kept.notes
    assert "cannot be read" in reading
    assert "cannot be written" in writing
    assert all("failed 2 time(s)" in note and "503" in note for note in kept.notes)
