"""Lines of text as byte ranges: all of them, once, wherever the ranges end."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import RowError, SourceError
from cedar.datasets.csv import read_csv
from cedar.datasets.jsonl import read_jsonl
from cedar.datasets.text import read_text
from tests.datasets.reading import read_keyed, read_rows
from tests.datasets.text_files import write


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
    monkeypatch.setattr("cedar.datasets.lines._BLOCK", 1000)
    data = "".join(f"line {i} {'x' * (i % 90)}\n" for i in range(300)).encode() + b"y" * 5000 + b"\nlast"
    compress = compress or (lambda raw: pa.compress(raw, "zstd", asbytes=True))
    source = read_text(write(tmp_path, compress(data), f"t.txt{suffix}"))
    assert [split.streaming for split in source.splits()] == [True]
    rows = read_keyed(source)
    assert [(key[1], row["text"]) for key, row in rows] == model(data)
    assert [row["line"] for _, row in rows] == list(range(302))


def test_a_file_that_changes_while_it_is_streamed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.lines._BLOCK", 10)
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
