from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from cedar.core.errors import CedarError, PipelineError, SourceError
from cedar.datasets.arrow import read_arrow
from tests.datasets.arrow_tables import table
from tests.datasets.reading import column, read_keyed, read_rows, traveled


def write(path: Path, data: pa.Table, rows: int, stream: bool = False, **options) -> Path:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(path, data.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(data, max_chunksize=rows)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.arrow", table(100), 30)
    feather.write_feather(table(50, 100), tmp_path / "b.feather", chunksize=50)
    return tmp_path


def test_all_rows_of_files(folder: Path):
    source = read_arrow([folder / "a.arrow", folder / "b.feather"])
    assert [(s.file, s.start, s.rows, s.part) for s in source.splits()] == [(0, 0, 100, 0), (1, 0, 50, 0)]
    rows = read_keyed(source)
    assert [row for _, row in rows] == table(150).to_pylist()
    assert rows[120][0] == (1, 20)
    assert read_keyed(traveled(source)) == rows
    assert source.schema()["name"] == pa.large_string()
    assert source.schema()["kind"] == pa.large_string()


def test_splits_are_runs_of_record_batches(folder: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.arrow._ROWS", 60)
    source = read_arrow(folder / "a.arrow")
    assert [(s.start, s.stop, s.part) for s in source.splits()] == [(0, 60, 0), (60, 100, 2)]
    assert column(source, "id") == list(range(100))


def test_a_stream_that_changes_while_it_is_read(tmp_path: Path):
    source = read_arrow(write(tmp_path / "a.arrow", table(100), 30, stream=True))
    chunks = source.read(source.splits()[0])
    next(chunks)
    with open(tmp_path / "a.arrow", "ab") as file:
        file.write(b"more")
    with pytest.raises(SourceError, match=r"a\.arrow: changed while in use"):
        list(chunks)


def test_columns_and_select(folder: Path):
    source = read_arrow(folder / "a.arrow", columns=["tags", "id"])
    assert read_rows(source)[5] == {"tags": [0, 1], "id": 5}
    assert read_rows(source.select(["id"]))[5] == {"id": 5}
    assert len(read_rows(source.select([]))) == 100
    with pytest.raises(PipelineError, match="there is no column 'ids'"):
        read_arrow(folder / "a.arrow", columns=["ids"]).schema()


def test_the_stream_format_and_directories(tmp_path: Path):
    write(tmp_path / "a.arrow", table(100), 30, stream=True)
    source = read_arrow(tmp_path)
    assert [(s.streaming, s.rows) for s in source.splits()] == [(True, None)]
    assert read_rows(source) == table(100).to_pylist()
    assert column(source.select(["id"]), "id") == list(range(100))


def test_compressed_buffers(tmp_path: Path):
    write(tmp_path / "a.arrow", table(100), 30, compression="zstd")
    assert read_rows(read_arrow(tmp_path)) == table(100).to_pylist()


def test_files_whose_schemas_differ(folder: Path):
    write(folder / "c.arrow", table(3).drop_columns(["tags"]), 3)
    with pytest.raises(SourceError, match="column 'tags' .* is missing in the second"):
        read_arrow([folder / "a.arrow", folder / "c.arrow"]).splits()


@pytest.mark.parametrize("content", [b"", b"hello", b"FEA1rest", b"ARROW1\0\0"])
def test_what_is_no_ipc_file(tmp_path: Path, content: bytes):
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.arrow"):
        read_arrow(tmp_path).splits()


@pytest.mark.parametrize("stream", [False, True])
def test_damaged_files_give_an_error_or_the_right_number_of_rows(tmp_path: Path, stream: bool):
    whole = write(tmp_path / "whole.ipc", table(200), 50, stream=stream).read_bytes()
    damaged = tmp_path / "damaged.arrow"
    chance = random.Random(5)
    outcomes: set[int | str] = set()
    for i in range(60):
        content = bytearray(whole)
        if i % 2:
            del content[chance.randrange(len(content) - 10) :]
        else:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        damaged.write_bytes(content)
        try:
            outcomes.add(len(read_rows(read_arrow(damaged))))
        except CedarError as error:
            outcomes.add("named" if "damaged.arrow" in str(error) else str(error))
    # A stream that ends between two batches looks whole: the format does not say how many there are.
    assert outcomes <= ({"named", 200} | ({0, 50, 100, 150} if stream else set()))
