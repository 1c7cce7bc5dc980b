"""Whole rows of CSV files: the same wherever blocks end, and not tied to the length of a block."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import SourceError
from cedar.datasets.csv import read_csv
from tests.datasets.reading import column, read_keyed, read_rows

TEXT = st.text('a"\n\r, \ufeff', max_size=6)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv")


@given(
    st.lists(st.tuples(TEXT, TEXT), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.integers(1, 30),
)
def test_rows_are_the_same_wherever_blocks_end(place: Path, rows, end: str, quoting, block: int):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=quoting).writerows([("p", "q"), *rows])
    (place / "t.csv").write_bytes(text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cedar.datasets.csv._BLOCK", block)
        read = read_keyed(read_csv(place / "t.csv", dtypes={"p": str, "q": str}))
    assert [(key[1], row["p"], row["q"]) for key, row in read] == [(i, *row) for i, row in enumerate(rows)]


def test_a_quote_inside_a_value_is_a_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "t.csv").write_text('x,y\n5" pipe,"a\n""b"\nc"",d\n "e",f\n"g"h",i\n')
    for block in range(1, 40):
        monkeypatch.setattr("cedar.datasets.csv._BLOCK", block)
        rows = [tuple(row.values()) for row in read_rows(read_csv(tmp_path / "t.csv"))]
        assert rows == [('5" pipe', 'a\n"b'), ('c""', "d"), (' "e"', "f"), ('gh"', "i")]


def test_a_row_may_be_longer_than_a_block_but_not_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cedar.datasets.csv._BLOCK", 100)
    (tmp_path / "t.csv").write_text('x,y\n1,"' + "a\n" * 500 + '"\n2,b\n')
    assert column(read_csv(tmp_path / "t.csv"), "y") == ["a\n" * 500, "b"]
    monkeypatch.setenv("CEDAR_MAX_LINE_BYTES", "900")
    with pytest.raises(
        SourceError, match=r"t\.csv: a row \(unless a quote is never closed\) is longer than the limit line_bytes"
    ):
        read_rows(read_csv(tmp_path / "t.csv"))


def test_nothing_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A thread that still reads a Python stream as its process ends would have it abort."""
    (tmp_path / "t.csv").write_text("x,y\n" + "1,a\n" * 1000)
    source = read_csv(tmp_path / "t.csv")
    assert list(source.schema()) == ["x", "y"]
    stream = io.BytesIO((tmp_path / "t.csv").read_bytes())
    monkeypatch.setattr("cedar.datasets.csv._BLOCK", 64)
    monkeypatch.setattr("cedar.datasets.csv.open_native", lambda file: stream)
    chunks = source.read(source.splits()[0])
    for read in (4 + 64, 4 + 128):
        next(chunks)
        assert stream.tell() == read
