"""Counts that are kept: those of each filter come back, what is damaged or of others is said and left alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from cedar.datasets.files_io import File
from cedar.datasets.kept_counts import CountKey, file_mark, load_counts, place_of, save_counts
from cedar.store.entry import table_body
from cedar.store.folder import Folder


def beside(tmp_path: Path, filters: str = "f", name: str = "a") -> CountKey:
    source = SimpleNamespace(manifest=str(tmp_path / name), storage_options=None, paths=())
    key = place_of(source, filters)
    assert key is not None
    return key


def file_of(key: CountKey) -> Path:
    assert isinstance(key.place, Folder)
    return Path(key.place.path(key.name))


def test_counts_come_back_under_their_filters(tmp_path: Path) -> None:
    save_counts(beside(tmp_path), {"one": (3, 0), "two": ()})
    save_counts(beside(tmp_path, "g"), {"one": (1, 1)})
    assert load_counts(beside(tmp_path)) == {"one": (3, 0), "two": ()}
    assert load_counts(beside(tmp_path, "g")) == {"one": (1, 1)}
    assert load_counts(beside(tmp_path, "h")) == load_counts(beside(tmp_path, name="b")) == {}


def test_without_a_manifest_they_are_kept_for_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = (SimpleNamespace(manifest=None, storage_options=None, paths=(path,)) for path in ("a", "b"))
    key = place_of(one, "f")
    assert key is not None
    save_counts(key, {"one": (3,)})
    again, other = place_of(one, "f"), place_of(two, "f")
    assert again is not None
    assert other is not None
    assert load_counts(again) == {"one": (3,)}
    assert load_counts(other) == {}


def test_damaged_ones_are_said_and_what_is_of_others_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = beside(tmp_path)
    for table in (pa.table({"x": [1]}), pa.table({"file": ["one"], "left": [[-1]]})):
        save_counts(key, {"one": (3,)})
        key.place.put(key.name, table_body(table), {})
        assert load_counts(key) == {}
        assert "will be recomputed" in caplog.text
        caplog.clear()
    save_counts(key, {"one": (3,)})
    file_of(key).write_bytes(file_of(key).read_bytes()[:-1])
    assert load_counts(key) == {}
    assert "will be recomputed: it is cut short" in caplog.text
    (tmp_path / "b.counts").write_text("mine")
    save_counts(beside(tmp_path, name="b"), {"one": (3,)})
    assert (tmp_path / "b.counts").read_text() == "mine"
    assert "entries cannot be saved in" in caplog.text


def test_a_file_is_known_by_its_name_size_and_stamp() -> None:
    file = File("/a", "a", 5, stamp=(1, 2, 3))
    others = [
        File("/b", "a", 5, stamp=(1, 2, 3)),
        File("/a", "a", 6, stamp=(1, 2, 3)),
        File("/a", "a", 5, stamp=(9, 2, 3)),
    ]
    assert file_mark(file) == file_mark(File("/a", "other", 5, stamp=(1, 2, 3)))
    assert len({file_mark(file), *map(file_mark, others)}) == 4
    assert file_mark(File("/a", "a", 5)) is None
