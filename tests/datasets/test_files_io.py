"""Opening files: those that changed since they were listed, and those that end early, are named."""

from __future__ import annotations

import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from cedar.core.errors import SourceError
from cedar.datasets.text import read_text
from tests.datasets.reading import read_rows
from tests.datasets.text_files import write


def test_a_file_that_vanishes_or_changes_after_listing(tmp_path: Path):
    source = read_text(write(tmp_path, b"a\nb\n"))
    (split,) = source.splits()
    write(tmp_path, b"a\nb\nc\n")
    with pytest.raises(SourceError, match=r"t\.txt: changed while in use: 4 bytes when listed, 6 now"):
        list(source.read(split))
    (tmp_path / "t.txt").unlink()
    with pytest.raises(SourceError, match=r"t\.txt: the file no longer exists"):
        list(source.read(split))


def test_a_compressed_file_cut_short(tmp_path: Path):
    whole = gzip.compress(b"".join(b"%d some text\n" % i for i in range(10_000)))
    source = read_text(write(tmp_path, whole[: len(whole) // 2], "t.txt.gz"))
    with pytest.raises(SourceError, match=r"t\.txt\.gz"):
        read_rows(source)


def test_streams_of_xz_one_after_the_other(tmp_path: Path):
    first, second = lzma.compress(b"a\n" * 100), lzma.compress(b"b\n" * 100)
    for between in (b"", bytes(4), bytes(200_000)):
        whole = read_rows(read_text(write(tmp_path, first + between + second + between, "t.txt.xz")))
        assert [row["text"] for row in whole] == ["a"] * 100 + ["b"] * 100
    for broken in (b"\xfc" + second[1:], second[:5], second[:-1], b"garbage"):
        with pytest.raises(SourceError, match=r"t\.txt\.xz"):
            read_rows(read_text(write(tmp_path, first + broken, "t.txt.xz")))


def test_nothing_but_xz_needs_what_some_builds_of_python_lack(tmp_path: Path):
    (tmp_path / "x.txt").write_text("a\n")
    code = "import sys; sys.modules['_lzma'] = None; import cedar; print(list(cedar.read_text(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.txt")], capture_output=True, text=True, check=True
    )
    assert "'a'" in done.stdout
