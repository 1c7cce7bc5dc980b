"""What may be removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cedar.store.ownership import (
    MARK,
    ForeignFile,
    holds_foreign,
    is_owned,
    make_owned,
    mark_of,
    remove_file,
    remove_tree,
    temporary_folder,
)

NAMES = re.compile(r"(out/)?part-\d\.bin")


def test_a_folder_that_was_made_is_ours_and_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b")
    make_owned(path, "test 1")
    make_owned(path, "test 1")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert is_owned(path, "test 1")
    assert not is_owned(path, "test 2")
    assert not remove_tree(path, "test 2")
    assert remove_tree(path, "test 1")
    assert not remove_tree(path, "test 1")
    assert not remove_tree("", "test 1")
    assert remove_tree(temporary_folder("test"), "test")


def test_a_folder_of_others_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(ForeignFile, match="thesis.txt"):
            make_owned(str(path), "test 1")
        assert not remove_tree(str(path), "test 1")
    ours = tmp_path / "ours"
    make_owned(str(ours), "test 1")
    (tmp_path / "link").symlink_to(ours)
    assert not is_owned(str(tmp_path / "link"), "test 1"), "a link may point anywhere tomorrow"
    (ours / MARK).write_text("something else")
    with pytest.raises(ForeignFile):
        make_owned(str(ours), "test 1")


def test_a_folder_that_was_not_finished_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_owned(str(tmp_path / "empty"), "test 1")
    assert is_owned(str(tmp_path / "empty"), "test 1")


def test_only_files_of_the_format_are_removed(tmp_path: Path) -> None:
    ours, out, theirs = tmp_path / "ours", tmp_path / "ours" / "out", tmp_path / "theirs"
    make_owned(str(ours), "test 1")
    out.mkdir()
    theirs.mkdir()
    for folder in (ours, out, theirs):
        for name in ("part-1.bin", "part-2.bin.bak"):
            (folder / name).write_text("x")
    (ours / "part-3.bin").symlink_to(theirs / "part-1.bin")
    (ours / "part-4.bin").mkdir()
    names = ("part-1.bin", "part-2.bin.bak", "part-3.bin", "part-4.bin", "out/part-1.bin", "../theirs/part-1.bin")
    assert [remove_file(str(ours), name, "test 1", NAMES) for name in names] == [True, False, False, False, True, False]
    assert not remove_file(str(theirs), "part-1.bin", "test 1", NAMES)
    out.rename(tmp_path / "moved")
    out.symlink_to(theirs)
    assert not remove_file(str(ours), "out/part-1.bin", "test 1", NAMES)
    assert (theirs / "part-1.bin").exists()


def test_a_folder_that_another_thread_marks_meanwhile_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(path: str) -> list[str]:
        (tmp_path / MARK).write_bytes(mark_of("test 1"))
        return [MARK]

    monkeypatch.setattr(os, "listdir", listed)
    assert holds_foreign(str(tmp_path), "test 1") == ""
