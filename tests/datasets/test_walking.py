"""Walks through folders: none goes missing, and links that lead round are followed once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.core.errors import SourceError
from cedar.datasets.listing import list_files
from cedar.testing.storage import FlakyFileSystem, flaky
from tests.datasets.text_files import ROWS, text


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("impatient")
def test_no_folder_goes_missing_from_a_listing_that_fails_at_first(seed: int, memory: Any):
    paths = [f"/d/{a}/{b}/{c}.txt" for a in "xy" for b in "pq" for c in range(2)]
    for path in paths:
        memory.pipe_file(path, b"1")
    memory.pipe_file("/d/x/other.csv", b"1")
    for pattern in ("memory://d/**/*.txt", "memory://d/*/*/?.txt"):
        FlakyFileSystem.clear_instance_cache()
        listing = list_files([flaky(pattern, status=0.2, reset=0.2, seed=seed)])
        assert [file.path for file in listing] == paths
    memory.pipe_file("/t/deep/a.parquet", b"1")
    assert len(list_files([flaky("memory://t", status=0.3, seed=seed)], (".parquet",))) == 1


def test_a_folder_that_may_not_be_listed_is_an_error(memory: Any, monkeypatch: pytest.MonkeyPatch):
    memory.pipe_file("/d/x/a.txt", b"1")
    memory.pipe_file("/d/y/a.txt", b"1")

    def ls(self: Any, path: str, detail: bool = True, **kwargs: Any) -> Any:
        if path.endswith("/y"):
            raise PermissionError(path)
        return memory.ls(path, detail=detail)

    monkeypatch.setattr(FlakyFileSystem, "ls", ls)
    with pytest.raises(SourceError, match="no permission to list"):
        list_files([flaky("memory://d/*/*.txt")])


def test_a_folder_with_links_to_itself_is_read_once(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "a" / "b").mkdir(parents=True)
    for path in (root / "0.jsonl", root / "a" / "1.jsonl", root / "a" / "b" / "2.jsonl"):
        text(path, 0)
    (root / "self").symlink_to(root)
    (root / "again").symlink_to(root)  # two of them: any walk that follows both never ends
    (root / "a" / "b" / "up").symlink_to(root / "a")
    (root / "a" / "over").symlink_to(tmp_path)
    for paths in (str(root), f"{root}/**", f"{root}/**/*.jsonl"):
        listing = list_files([paths], (".jsonl",))
        assert [file.name for file in listing] == ["0.jsonl", "a/1.jsonl", "a/b/2.jsonl"]
    assert cedar.read_jsonl(f"{root}/**/*.jsonl").count() == 3 * ROWS
    assert len(list_files([f"{root}/**/b/**/*.jsonl"])) == 1


def test_two_links_to_a_folder_or_a_file_are_two(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    text(elsewhere / "0.jsonl", 0)
    for name in ("first", "second"):
        (root / name).symlink_to(elsewhere)
        (root / f"{name}.jsonl").symlink_to(elsewhere / "0.jsonl")
    names = ["first.jsonl", "first/0.jsonl", "second.jsonl", "second/0.jsonl"]
    assert sorted(f.name for f in list_files([str(root)], (".jsonl",))) == names
    assert cedar.read_jsonl(f"{root}/**/*.jsonl").count() == 4 * ROWS


def test_a_local_folder_that_may_not_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open", "shut"):
        (tmp_path / "d" / name).mkdir(parents=True)
        text(tmp_path / "d" / name / "0.jsonl", 0)
    (tmp_path / "d" / "loop").symlink_to("loop")
    assert len(list_files([f"{tmp_path}/d/*/*.jsonl"])) == 2
    listed = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("shut"):
            raise PermissionError(path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for pattern in ("d/*/*.jsonl", "d/shut/*.jsonl", "*/shut/?.jsonl"):
        with pytest.raises(SourceError, match="no permission to list") as caught:
            list_files([f"{tmp_path}/{pattern}"])
        assert caught.value.fix == "check its owner and permissions, or name the folders: /mnt/disk/{a,b}/*.parquet"
    with pytest.raises(SourceError, match="no permission to list") as caught:
        list_files([f"{tmp_path}/d/shut"], (".jsonl",))
    assert caught.value.fix == "check its owner and permissions"
    assert len(list_files([f"{tmp_path}/d/*/0.jsonl"])) == 2, "no folder below is listed"
