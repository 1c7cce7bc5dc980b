from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.files import read_files
from tests.datasets.reading import column, read_keyed, read_rows, travelled


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(70):
        (tmp_path / f"{i:03d}.bin").write_bytes(bytes([i]) * (i % 5))
    return tmp_path


def test_a_row_is_a_file_and_32_files_are_a_split(folder: Path):
    source = read_files(folder / "*.bin")
    assert [(s.start, s.stop, s.rows, s.bytes) for s in source.splits()] == [
        (0, 32, 32, sum(i % 5 for i in range(32))),
        (32, 64, 32, sum(i % 5 for i in range(32, 64))),
        (64, 70, 6, sum(i % 5 for i in range(64, 70))),
    ]
    rows = read_keyed(source)
    assert [key for key, _ in rows] == [(0, i) for i in range(70)]
    assert rows[7][1] == {"path": str(folder / "007.bin"), "bytes": b"\7\7"}
    assert source.url_of(0, 7) == str(folder / "007.bin")
    assert source.row_bytes == 2
    assert read_keyed(travelled(source)) == rows


def test_much_is_handed_over_in_portions(folder: Path, monkeypatch):
    source = read_files(folder / "*.bin")
    whole = read_keyed(source)
    monkeypatch.setattr("cedar.datasets.files._CHUNK_BYTES", 7)
    assert len(list(source.read(source.splits()[0]))) > 5
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
    (folder / "003.bin").unlink()
    with pytest.raises(SourceError, match=r"003\.bin: the file is not there any more") as error:
        list(source.read(splits[0]))
    assert isinstance(error.value.__cause__, FileNotFoundError)
    (folder / "040.bin").write_bytes(b"more than before")
    with pytest.raises(SourceError, match=r"040\.bin: changed while in use"):
        list(source.read(splits[1]))


def test_a_column_that_does_not_exist(folder: Path):
    with pytest.raises(PipelineError, match="there is no column 'byte'"):
        read_files(folder / "*.bin").select(["byte"])


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
