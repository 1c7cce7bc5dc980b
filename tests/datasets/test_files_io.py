"""Opening files: those that changed since they were listed, and those that end early, are named."""

from __future__ import annotations

import gzip
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
    with pytest.raises(SourceError, match=r"t\.txt: the file is not there any more"):
        list(source.read(split))


def test_a_compressed_file_cut_short(tmp_path: Path):
    whole = gzip.compress(b"".join(b"%d some text\n" % i for i in range(10_000)))
    source = read_text(write(tmp_path, whole[: len(whole) // 2], "t.txt.gz"))
    with pytest.raises(SourceError, match=r"t\.txt\.gz"):
        read_rows(source)
