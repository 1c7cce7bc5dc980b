from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError, RowError, SourceError
from cedar.datasets.csv import read_csv
from cedar.datasets.jsonl import read_jsonl
from cedar.datasets.text import LineIndex, TextSource, read_text
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
        source.select(["txt"]).schema()
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


def model(data: bytes) -> list[tuple[int, str]]:
    """(byte offset, text) of each line, the plain way."""
    lines, offset = [], 0
    for line in data.split(b"\n"):
        whole = offset + len(line) < len(data)
        if line or whole:
            text = line[:-1] if whole and line.endswith(b"\r") else line
            lines.append((offset, text.decode("utf-8" if offset else "utf-8-sig")))
        offset += len(line) + 1
    return lines


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


@given(
    st.lists(st.sampled_from(["", "a", "bc", "é", "\ufeff", "long line of text", "\r", "x\r"]), max_size=30),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(1, 40) | st.just(1000),
    st.sampled_from([1, 7, 30, 1 << 20]),
    st.randoms(use_true_random=False),
)
def test_lines_are_what_splitting_the_whole_file_gives(place: Path, lines, end, ended, size, piece, chance):
    data = (end.join(lines) + (end if ended else "")).encode()
    source = replace(read_text(write(place, data)), split_bytes=size)
    order = list(range(len(source.splits())))
    chance.shuffle(order)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cedar.datasets.text._PIECE_BYTES", piece)
        rows = read_keyed(source, order)
    assert [(key[1], row["text"]) for key, row in rows] == model(data)
    assert [row["line"] for _, row in rows] == list(range(len(rows)))
    assert {row["path"] for _, row in rows} <= {str(place / "t.txt")}


@given(
    st.lists(st.sampled_from([b"", b"a", b"bc" * 50]), max_size=20),
    st.integers(1, 60),
    st.sampled_from(["line", "text"]),
)
def test_the_lines_of_one_split_alone(place: Path, lines, size, name):
    data = b"\n".join(lines)
    source = replace(read_text(write(place, data)), split_bytes=size)
    expected = dict(read_keyed(source))
    for split in source.splits():
        fresh = replace(source).select([name])
        for chunk in fresh.read(split):
            assert chunk.offsets is not None
            for offset, value in zip(chunk.offsets.tolist(), chunk.columns[name].to_pylist(), strict=True):
                assert expected[0, offset][name] == value


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", None)]
)
def test_compressed_files_are_one_streaming_split(tmp_path: Path, suffix: str, compress, monkeypatch):
    monkeypatch.setattr("cedar.datasets.text._BLOCK", 1000)
    data = "".join(f"line {i} {'x' * (i % 90)}\n" for i in range(300)).encode() + b"y" * 5000 + b"\nlast"
    compress = compress or (lambda raw: pa.compress(raw, "zstd", asbytes=True))
    source = read_text(write(tmp_path, compress(data), f"t.txt{suffix}"))
    assert [split.streaming for split in source.splits()] == [True]
    rows = read_keyed(source)
    assert [(key[1], row["text"]) for key, row in rows] == model(data)
    assert [row["line"] for _, row in rows] == list(range(302))


def test_a_file_that_changes_while_it_is_streamed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.text._BLOCK", 10)
    source = read_text(write(tmp_path, gzip.compress(b"line\n" * 100), "t.txt.gz"))
    pieces = source.read(source.splits()[0])
    next(pieces)
    write(tmp_path, gzip.compress(b"line\n" * 101), "t.txt.gz")
    with pytest.raises(SourceError, match=r"t\.txt\.gz: changed while in use"):
        list(pieces)


@pytest.mark.parametrize("size", [1, 3, 5, 1000])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, size: int):
    path = write(tmp_path, codecs.BOM_UTF8 + "one\r\n\ufefftwo".encode())
    rows = read_rows(replace(read_text(path), split_bytes=size))
    assert [(row["line"], row["text"]) for row in rows] == [(0, "one"), (1, "\ufefftwo")]
    for read in (read_text, read_jsonl):
        only = replace(read(write(tmp_path, codecs.BOM_UTF8, "only.txt")), split_bytes=size)
        assert read_rows(only) == read_rows(read(write(tmp_path, gzip.compress(codecs.BOM_UTF8), "only.txt.gz"))) == []
    (empty,) = read_rows(read_text(write(tmp_path, codecs.BOM_UTF8 + b"\n")))
    assert empty["text"] == ""


@pytest.mark.parametrize("read", [read_csv, read_jsonl, read_text])
@pytest.mark.parametrize(
    ("encode", "problem", "fix"),
    [
        (lambda text: text.encode("utf-16"), "it is UTF-16, not UTF-8", "iconv -f UTF-16"),
        (lambda text: b"\xfe\xff" + text.encode("utf-16-be"), "it is UTF-16, not UTF-8", "iconv -f UTF-16"),
        (lambda text: text.encode("utf-32"), "it is UTF-32, not UTF-8", "iconv -f UTF-32"),
        (lambda text: gzip.compress(text.encode()), "compressed with gzip", "ends with .gz"),
        (lambda text: bz2.compress(text.encode()), "compressed with bz2", "ends with .bz2"),
        (lambda text: pa.compress(text.encode(), "zstd", asbytes=True), "compressed with zstd", "ends with .zst"),
    ],
)
def test_what_a_file_is_instead_of_utf8_is_named(tmp_path, read, encode, problem, fix):
    row = '{"input": "é", "x": 1}\n' if read is read_jsonl else "input\né\n"
    (tmp_path / "t").write_bytes(encode(row * 50))
    with pytest.raises((SourceError, RowError), match=problem) as error:
        read_rows(read(tmp_path / "t"))
    assert fix in error.value.fix


def test_a_process_forked_while_lines_are_counted_counts_them_too(tmp_path: Path):
    index, file = LineIndex(), read_text(write(tmp_path, b"a\nb\n")).listing[0]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with index._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    if (child := os.fork()) == 0:
        signal.alarm(30)  # ends a child that waits for the lock
        try:
            os._exit(index.before(0, 1, file, 2))
        finally:
            os._exit(99)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
