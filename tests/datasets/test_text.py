from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.text import TextSource, read_text
from tests.datasets.reading import column, read_keyed, read_rows, traveled
from tests.datasets.text_files import write


def test_several_files(tmp_path: Path):
    write(tmp_path, b"one\ntwo\n", "b.txt")
    write(tmp_path, b"", "a.txt")
    write(tmp_path, b"three", "c.txt")
    source = read_text(tmp_path / "*.txt")
    assert read_keyed(source) == [
        ((1, 0), {"path": str(tmp_path / "b.txt"), "line": 0, "text": "one"}),
        ((1, 4), {"path": str(tmp_path / "b.txt"), "line": 1, "text": "two"}),
        ((2, 0), {"path": str(tmp_path / "c.txt"), "line": 0, "text": "three"}),
    ]


def test_lines_are_counted_only_if_asked_for(tmp_path: Path, monkeypatch):
    counted = []

    def count(*args):
        counted.append(args)
        return 0

    monkeypatch.setattr("cedar.datasets.text.count_newlines", count)
    source = replace(read_text(write(tmp_path, b"a\nb\n" * 100)), split_bytes=16)
    last = source.splits()[-1]
    list(source.select(["path", "text"]).read(last))
    assert counted == []
    list(source.read(last))
    assert len(counted) == len(source.splits()) - 1
    list(source.read(last))
    list(traveled(source).read(last))
    assert len(counted) == len(source.splits()) - 1


def test_reading_in_order_counts_nothing_twice(tmp_path: Path, monkeypatch):
    source = replace(read_text(write(tmp_path, b"a\nbcd\n\n" * 100)), split_bytes=16)
    monkeypatch.setattr("cedar.datasets.text.count_newlines", lambda *args: pytest.fail("counted"))
    assert column(source, "line") == list(range(300))


def test_bytes_that_are_not_utf8(tmp_path: Path):
    path = write(tmp_path, b"fine\nalso \xc3\xa9\nbad \xff here\n")
    with pytest.raises(SourceError, match=r"t\.txt: not utf-8: byte 0xff at byte offset 17") as error:
        read_rows(read_text(path))
    assert error.value.fix is not None
    assert "replace" in error.value.fix
    assert column(read_text(path, errors="replace"), "text") == ["fine", "also é", "bad � here"]
    assert len(read_rows(read_text(path).select(["line"]))) == 3


def test_columns_and_arguments(tmp_path: Path):
    path = write(tmp_path, b"a\n")
    source = read_text(path)
    assert list(source.schema()) == ["path", "line", "text"]
    assert read_rows(source.select(["text", "line"])) == [{"text": "a", "line": 0}]
    assert len(read_rows(source.select([]))) == 1
    with pytest.raises(PipelineError, match="there is no column 'txt'"):
        source.select(["txt"])
    with pytest.raises(PipelineError, match="errors is"):
        read_text(path, errors="ignore")  # type: ignore[arg-type]


def test_other_storage():
    fs = fsspec.filesystem("memory")
    fs.pipe("texttest/a.txt", b"one\r\n\r\ntwo")
    try:
        source: TextSource = replace(read_text("memory://texttest/a.txt"), split_bytes=3)
        assert [(r["line"], r["text"]) for r in read_rows(source)] == [(0, "one"), (1, ""), (2, "two")]
    finally:
        fs.rm("texttest", recursive=True)


def test_tinyshakespeare(shared_data: Path):
    path = shared_data / "tinyshakespeare.txt"
    lines = path.read_text().split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    source = replace(read_text(path), split_bytes=100_000)
    assert column(source, "text") == lines
    assert column(source, "line") == list(range(len(lines)))
    assert lines.count("") > 5000
