"""Footers of Parquet files: read once, and named where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cedar.core.errors import SourceError
from cedar.datasets.parquet import read_parquet
from tests.datasets.parquet_files import two_files
from tests.datasets.reading import read_rows, traveled


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_files(tmp_path)


def test_footers_are_read_once(folder: Path, monkeypatch):
    read = []
    original = pq.read_metadata

    def read_metadata(path):
        read.append(path)
        return original(path)

    monkeypatch.setattr(pq, "read_metadata", read_metadata)
    source = read_parquet(folder)
    source.splits()
    source.schema()
    read_rows(source)
    read_rows(traveled(source))
    assert len(read) == 2


def test_an_empty_file_and_one_of_another_format(tmp_path: Path):
    for content in (b"", b"PAR1", b"hello, this is not parquet at all"):
        (tmp_path / "a.parquet").write_bytes(content)
        with pytest.raises(SourceError, match=r"a\.parquet, footer: cannot be read"):
            read_parquet(tmp_path).splits()
