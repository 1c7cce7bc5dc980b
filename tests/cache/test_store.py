"""The store: budgets, least recently used, damaged entries, places that cannot be written."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from torch.utils.dlpack import from_dlpack

import cedar
from cedar.cache import folder, store
from cedar.cache.cost import load_seconds_per_byte, note_load
from cedar.cache.entry_reader import read_entry
from cedar.cache.eviction import EntryInfo, PassTimes, leaving, surplus
from cedar.cache.folder import INSIDE
from cedar.cache.memory import Memory
from cedar.cache.store import Store
from cedar.core.block import Block
from cedar.core.columns import objects
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError
from cedar.core.ownership import MARK
from tests.toy_entries import Key, assert_same, word


def block(first: int = 0, rows: int = 100) -> Block:
    return Block({"x": np.arange(first, first + rows * 2).reshape(rows, 2)}, Keys(np.arange(rows)))


def entry(folder: Path, name: str) -> Path:
    return folder / INSIDE / f"{'-'.join(map(word, name.split('-')))}.arrow"


def entries(folder: Path) -> list[Path]:
    return list((folder / INSIDE).glob("*.arrow"))


def stored(folder: Path) -> set[str]:
    names = (path.name.removesuffix(".arrow").split("-") for path in entries(folder))
    return {"-".join(bytes.fromhex(part).rstrip(b"\0").decode() for part in name) for name in names}


# ---- who makes room --------------------------------------------------------------------------------------------------


def test_the_least_recently_used_of_others_go_first() -> None:
    held = [
        EntryInfo("a", "old", 10, 3.0),
        EntryInfo("b", "old", 10, 1.0),
        EntryInfo("c", "mine", 10, 0.0),
        EntryInfo("d", "old", 10, 9.0),
    ]
    assert [e.name for e in leaving(held, 5, 45, "mine", since=5.0) or ()] == []
    assert [e.name for e in leaving(held, 10, 40, "mine", since=5.0) or ()] == ["b"]
    assert [e.name for e in leaving(held, 20, 40, "mine", since=5.0) or ()] == ["b", "a"]
    assert leaving(held, 30, 40, "mine", since=5.0) is None, "neither its own group nor what is in use"
    assert [e.name for e in surplus(held, 20)] == ["c", "b"]


def test_a_pass_ends_where_a_split_comes_again() -> None:
    passes = PassTimes()
    for now, name in enumerate("abcabcab"):
        passes.visit("g", name, float(now))
    assert passes.since("g") == 3.0, "the pass before the present one, which began at 6"
    assert passes.since("other") == 0.0


def test_memory_keeps_a_part_of_a_loop_over_more_than_fits() -> None:
    size = block().nbytes
    memory = Memory(3 * size)
    for _ in range(3):
        hits = 0
        for name in "abcdef":
            found = memory.get("g", name)
            hits += found is not None
            if found is None:
                memory.put("g", name, [block()])
    assert hits == 3, "least recently used alone would keep nothing"
    assert memory.evicted == 0


def test_memory_forgets_another_plan_in_order_of_use() -> None:
    ticks = iter(range(100))
    memory = Memory(3 * block().nbytes, clock=lambda: float(next(ticks)))
    for name in "abc":
        memory.put("old", name, [block()])
    memory.get("old", "a")
    memory.get("new", "d")
    assert memory.put("new", "d", [block()])
    assert [memory.holds(n) for n in "abcd"] == [True, False, True, True]
    assert not memory.put("new", "e", [block(rows=1000)]), "more than the budget"


def test_memory_is_not_reached_by_what_is_done_to_rows() -> None:
    memory = Memory(1 << 20)
    numbers = pa.array(np.zeros(2, dtype=np.int64))
    given = Block({"x": np.zeros((2, 2)), "o": objects([[1], [2]]), "a": numbers}, Keys(np.arange(2)))
    memory.put("g", "n", [given])
    for write in (True, False, False):
        if write:
            given.columns["x"][:] = 7
        else:
            with pytest.raises(ValueError, match="read-only"):
                given.columns["x"][:] = 7
        given.columns["o"][0].append(5)
        from_dlpack(given.columns["a"])[:] = 7
        (given,) = memory.get("g", "n") or []
        assert given.columns["x"].sum() == 0
        assert given.columns["o"].tolist() == [[1], [2]]
        assert given.columns["a"].to_pylist() == [0, 0]


# ---- a directory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["{}/kept", "file://{}/kept", "memory://{}/kept"])
def test_a_place_keeps_entries_for_other_loaders(where: str, tmp_path: Path) -> None:
    where = where.format(tmp_path)
    key = Key("g", "0", (1,), ("x",))
    assert Store().get(key, where) is None
    writer = Store()
    writer.put(key, where, [block()])
    reader = Store()
    assert_same((reader.get(key, where) or [])[0], block())
    assert (reader.hits, reader.misses, writer.stored_bytes > 1600) == (1, 0, True)
    assert reader.kept([Key("g", "0").name, Key("g", "1").name], where) == 1


def test_what_is_done_to_rows_does_not_reach_the_file(tmp_path: Path) -> None:
    key = Key("g", "0")
    Store().put(key, str(tmp_path), [block()])
    for _ in range(2):
        (read,) = Store().get(key, str(tmp_path)) or []
        read.columns["x"][:] = -1
    assert_same((Store().get(key, str(tmp_path)) or [])[0], block())


def test_files_are_for_this_user_alone(tmp_path: Path) -> None:
    Store().put(Key("g", "0"), str(tmp_path / "a" / "kept"), [block()])
    assert (tmp_path / "a" / "kept").stat().st_mode & 0o777 == 0o700
    assert entry(tmp_path / "a" / "kept", "g-0").stat().st_mode & 0o777 == 0o600


def test_fewer_columns_are_served_from_more(tmp_path: Path) -> None:
    both = Block({"a": np.zeros((3, 1)), "b": np.ones((3, 1))}, Keys(np.arange(3)))
    for where in ("memory", str(tmp_path)):
        kept = Store()
        kept.put(Key("g", "0", (), ("a", "b")), where, [both])
        assert list((kept.get(Key("g", "0", (), ("b",)), where) or [])[0].columns) == ["b"]
        assert list((kept.get(Key("g", "0", (), ("b", "a")), where) or [])[0].columns) == ["b", "a"]
        assert kept.get(Key("g", "0", (), ("a", "c")), where) is None


def test_a_directory_keeps_to_its_budget_in_order_of_use(tmp_path: Path) -> None:
    first = Store()
    first.put(Key("old", "0"), str(tmp_path), [block()])
    size = entries(tmp_path)[0].stat().st_size
    for i in (1, 2):
        first.put(Key("old", str(i)), str(tmp_path), [block(i)])
    for i, used in ((0, 300), (1, 100), (2, 200)):
        os.utime(entry(tmp_path, f"old-{i}"), (used, 50))
    second = Store(disk=3 * size + 100)
    second.get(Key("new", "0"), str(tmp_path))
    for i in range(5):
        second.put(Key("new", str(i)), str(tmp_path), [block(i)])
        if i == 0:
            assert stored(tmp_path) == {"old-0", "old-2", "new-0"}
    assert stored(tmp_path) == {"new-0", "new-1", "new-2"}
    assert second.evictions == 3
    assert any("is full" in note for note in second.notes)
    assert Store(disk=size + 100).get(Key("new", "0"), str(tmp_path)), "a lower budget takes effect with the next entry"
    third = Store(disk=size + 100)
    third.get(Key("other", "0"), str(tmp_path))
    third.put(Key("other", "0"), str(tmp_path), [block()])
    assert stored(tmp_path) == {"other-0"}


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_entry_is_said_once_and_removed(damage: str, tmp_path: Path, caplog: Any) -> None:
    keys = [Key("g", str(i)) for i in range(3)]
    writer = Store()
    for key in keys:
        writer.put(key, str(tmp_path), [block()])
        assert writer.get(key, str(tmp_path)), "its checksum is known to this process now"
    for path in entries(tmp_path):
        raw = bytearray(path.read_bytes())
        raw[40] ^= 4
        path.write_bytes({"flip": raw, "cut": raw[:-9], "empty": b"", "other": b"ARROW1" * 100}[damage])
    with caplog.at_level(logging.WARNING, "cedar"):
        assert [writer.get(key, str(tmp_path)) for key in keys] == [None] * 3
    assert writer.rejected == 3
    assert len(caplog.records) == len(writer.notes) == 1
    assert stored(tmp_path) == set()
    writer.put(keys[0], str(tmp_path), [block()])
    assert writer.get(keys[0], str(tmp_path))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("broken", ["_seal", "os.replace", "os.makedirs"])
def test_a_place_that_cannot_be_written_stops_nothing(
    code: int, broken: str, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    where = str(tmp_path / "kept")
    Store().put(Key("g", "old"), where, [block()])
    monkeypatch.setattr(folder, "_seal", fail) if broken == "_seal" else monkeypatch.setattr(broken, fail)
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
        assert "give a directory of your own" in str(caught.value)


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
    with pytest.raises(PipelineError, match="is no directory"):
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


# ---- what is not ours ------------------------------------------------------------------------------------------------


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
        with pytest.raises(PipelineError, match="no directory|did not make"):
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


def test_a_url_with_a_folder_that_cedar_did_not_make_is_left_alone() -> None:
    fs, root = fsspec.url_to_fs(f"memory://others/{INSIDE}")
    fs.pipe_file(f"{root}/{Key('g', '0').name}.arrow", b"precious")
    kept = Store()
    assert kept.get(Key("g", "0"), "memory://others") is None, "it is no entry"
    kept.put(Key("g", "0"), "memory://others", [block()])
    assert fs.cat_file(f"{root}/{Key('g', '0').name}.arrow") == b"precious"
    assert any("did not make" in note for note in kept.notes)


def test_a_checksum_is_computed_once_per_process(tmp_path: Path, monkeypatch: Any) -> None:
    checked = []
    real = read_entry
    monkeypatch.setattr(store, "read_entry", lambda raw, o, known: checked.append(known) or real(raw, o, known))
    Store().put(Key("once", "0"), str(tmp_path), [block()])
    for _ in range(3):
        Store().get(Key("once", "0"), str(tmp_path))
    assert checked == [False, True, True]


def test_objects_are_kept_in_memory_instead(tmp_path: Path) -> None:
    kept = Store()
    kept.put(Key("g", "0"), str(tmp_path), [Block({"o": objects([{}, {}])}, Keys(np.arange(2)))])
    assert "holds Python objects" in kept.notes[0]
    assert not list(tmp_path.iterdir())


def test_the_cost_of_loading_follows_what_was_measured(monkeypatch: Any) -> None:
    monkeypatch.setattr("cedar.cache.cost._seen", {})
    assert 0 < load_seconds_per_byte("auto") < load_seconds_per_byte("kept") < load_seconds_per_byte("s3://b/kept")
    note_load("disk", 1 << 30, 2.0)
    assert load_seconds_per_byte("kept") == 2.0 / (1 << 30)
