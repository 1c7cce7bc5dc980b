"""What runs keep for later ones: what cannot be kept or used costs no more than making it again."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import fsspec
import pytest

from cedar.store.keep import exclusive_at, load, once, read_file, save, store_next_to, user_place, write_file
from cedar.store.place import INSIDE, name_of

NAME = name_of("kind", 1)


def test_values_are_kept_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load(user_place(), NAME, lambda entry: entry.about) is None
    assert save(user_place(), NAME, lambda _: {"x": 1})
    assert load(user_place(), NAME, lambda entry: entry.about) == {"x": 1}
    assert (tmp_path / "cache" / "cedar" / INSIDE).stat().st_mode & 0o777 == 0o700
    assert load(None, NAME, lambda entry: entry.about) is None
    assert not save(None, NAME, lambda _: {})


def test_what_is_not_what_it_should_be_is_removed_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = store_next_to(str(tmp_path / "a"), 1 << 20)
    save(place, NAME, lambda _: {"x": 1})
    assert load(place, NAME, lambda entry: entry.about["y"]) is None
    assert "cannot be used and will be recomputed" in caplog.text
    assert load(place, NAME, lambda entry: entry.about["x"]) is None, "it was removed"


def test_other_versions_are_replaced_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = store_next_to(str(tmp_path / "a"), 1 << 20)
    save(place, NAME, lambda _: {"x": 1}, {"code": "1"})
    assert load(place, NAME, lambda entry: entry.about["x"], {"code": "2"}) is None
    assert caplog.text == ""


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").write_text("mine")
    place = store_next_to(str(tmp_path / "a"), 1 << 20)
    assert not any(save(place, NAME, lambda _: {}) for _ in range(3))
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "entries cannot be saved in" in record.getMessage()
    assert (tmp_path / "a").read_text() == "mine"


def test_a_folder_of_others_in_the_place_of_ours_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = user_place()
    assert place is not None
    inside = tmp_path / "cedar" / INSIDE
    inside.mkdir()
    (inside / "mine").write_text("mine")
    with place.alone(NAME):
        assert not save(place, NAME, lambda _: {})
    assert os.listdir(inside) == ["mine"]
    assert "did not make" in caplog.text


def test_json_is_made_once(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"x": len(made)}

    place = store_next_to(str(tmp_path / "a"), 1 << 20)
    threads = [threading.Thread(target=once, args=(place, NAME, make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert once(store_next_to(str(tmp_path / "a"), 1 << 20), NAME, make) == {"x": 1}
    assert once(None, NAME, make) == {"x": 2}


def test_a_place_beside_data_may_be_a_url() -> None:
    save(store_next_to("memory://beside/a", 1 << 20), NAME, lambda _: {"x": 1})
    assert load(store_next_to("memory://beside/a", 1 << 20), NAME, lambda entry: entry.about) == {"x": 1}


def test_a_named_file_is_written_whole_here_and_elsewhere(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for where in (str(tmp_path / "a"), "memory://kepttest/a"):
        assert read_file(where) is None
        for content in (b"first, and longer", b"second"):
            with exclusive_at(where):
                write_file(where, content)
            assert read_file(where) == content
    assert os.listdir(tmp_path) == ["a"]
    fs.rm("kepttest", recursive=True)


def test_a_named_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="a"):
        write_file(str(tmp_path / "a"), b"x")
    assert os.listdir(tmp_path) == ["a"]
