from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.files import read_files
from cedar.datasets.text import read_text
from tests.datasets.reading import column, read_keyed, read_rows, traveled


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(70):
        (tmp_path / f"{i:03d}.bin").write_bytes(bytes([i]) * (i % 5))
    return tmp_path


def test_a_row_is_a_file_and_some_32_files_are_a_split(folder: Path):
    source = read_files(folder / "*.bin")
    splits = source.splits()
    ends = [*[split.part for split in splits][1:], 70]
    assert splits[0].part == 0
    assert [(s.start, s.stop, s.rows, s.bytes) for s in splits] == [
        (0, stop - s.part, stop - s.part, sum(i % 5 for i in range(s.part, stop)))
        for s, stop in zip(splits, ends, strict=True)
    ]
    rows = read_keyed(source)
    assert [key for key, _ in rows] == [(i, 0) for i in range(70)]
    assert rows[7][1] == {"path": str(folder / "007.bin"), "bytes": b"\7\7"}
    assert source.url_of(7, 0) == str(folder / "007.bin")
    assert source.row_bytes == 2
    assert read_keyed(traveled(source)) == rows


def test_a_file_that_is_added_or_removed_moves_no_other_border_of_splits(folder: Path):
    def begins() -> list[str]:
        source = read_files(folder / "*.bin")
        return [source.listing[split.part].name for split in source.splits()]

    for i in range(70, 900):
        (folder / f"{i:03d}.bin").write_bytes(b"")
    before = begins()
    assert 12 < len(before) < 70
    (folder / "0000.bin").write_bytes(b"")
    (folder / "5005.bin").write_bytes(b"")
    (folder / "333.bin").unlink()
    assert {*before[1:]} - {"333.bin"} <= {*begins()}
    assert len(begins()) - len(before) in range(-1, 3)


def test_large_files_are_splits_of_their_own(folder: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.files._SPLIT_BYTES", 2)
    splits = read_files(folder / "*.bin").splits()
    assert all(i in {split.part for split in splits} for i in range(70) if i % 5 >= 2)


def test_much_is_handed_over_in_portions(folder: Path, monkeypatch):
    source = read_files(folder / "*.bin")
    whole = read_keyed(source)
    split = max(source.splits(), key=lambda split: split.rows or 0)
    monkeypatch.setattr("cedar.datasets.files._CHUNK_BYTES", 7)
    assert len(list(source.read(split))) > 5
    assert read_keyed(source) == whole


def test_without_bytes_no_file_is_opened(folder: Path):
    source = read_files(folder / "*.bin").select(["path"])
    splits = source.splits()
    for path in folder.iterdir():
        path.unlink()
    assert len([row for split in splits for chunk in source.read(split) for row in chunk.columns["path"]]) == 70


def test_a_file_that_vanishes_or_changes_after_listing(folder: Path):
    source = read_files(folder / "*.bin")
    splits = source.splits()

    def read() -> None:
        for split in splits:
            list(source.read(split))

    (folder / "003.bin").rename(folder / "003.gone")
    with pytest.raises(SourceError, match=r"003\.bin: the file no longer exists") as error:
        read()
    (folder / "003.gone").rename(folder / "003.bin")
    assert isinstance(error.value.__cause__, FileNotFoundError)
    (folder / "040.bin").write_bytes(b"more than before")
    with pytest.raises(SourceError, match=r"040\.bin: changed while in use"):
        read()


def test_a_column_that_does_not_exist(folder: Path):
    with pytest.raises(PipelineError, match="there is no column 'byte'"):
        read_files(folder / "*.bin").select(["byte"]).schema()


def test_a_directory(folder: Path):
    with pytest.raises(SourceError, match="is a directory where a file is expected"):
        read_files(folder).splits()


def test_the_digest_tells_sizes(folder: Path):
    before = read_files(folder / "*.bin").digest()
    (folder / "000.bin").write_bytes(b"x")
    assert read_files(folder / "*.bin").digest() != before


def test_other_storage():
    fs = fsspec.filesystem("memory")
    fs.pipe({"filestest/a": b"one", "filestest/b": b""})
    try:
        assert read_rows(read_files("memory://filestest/*")) == [
            {"path": "memory://filestest/a", "bytes": b"one"},
            {"path": "memory://filestest/b", "bytes": b""},
        ]
    finally:
        fs.rm("filestest", recursive=True)


def test_photographs(shared_data: Path):
    source = read_files(shared_data / "photos" / "*.jpg")
    assert all(content.startswith(b"\xff\xd8") for content in column(source, "bytes"))
    assert len(source.listing) == 4


def test_a_name_that_is_not_utf8(tmp_path: Path):
    (tmp_path / os.fsdecode(b"\xff.bin")).write_bytes(b"a\n")
    for read in (read_files, read_text):
        with pytest.raises(SourceError, match=r"udcff\.bin': the file's name is not UTF-8") as error:
            read_rows(read(tmp_path / "*.bin"))
        assert "rename the file" in (error.value.fix or "")
    assert column(read_files(tmp_path / "*.bin").select(["bytes"]), "bytes") == [b"a\n"]
