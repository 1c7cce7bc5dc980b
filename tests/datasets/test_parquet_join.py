"""One Parquet file out of row groups that were encoded apart: rows, figures and pages are those of each."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.datasets.parquet_footer import check_metadata
from cedar.datasets.parquet_join import MAGIC, RowGroups


def piece(start: int, stop: int, **options: Any) -> bytes:
    table = pa.table({
        "i": pa.array(range(start, stop), pa.int64()),
        "s": pa.array([None if i % 3 == 0 else f"w{i % 5}" for i in range(start, stop)], pa.string()),
        "l": pa.array([list(range(i % 4)) for i in range(start, stop)], pa.list_(pa.int64())),
    })  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=max(1, stop - start), write_page_checksum=True, **options)
    return sink.getvalue()


def joined(pieces: list[bytes]) -> bytes:
    groups, file = RowGroups(), bytearray(MAGIC)
    for each in pieces:
        file += groups.add(each, len(file))
    assert len(groups) == len(pieces)
    return bytes(file + groups.footer())


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (1, {}),
        (14, {"write_page_index": True}),
        (15, {"compression": "zstd", "use_dictionary": False}),
        (129, {}),  # the number of groups takes another byte from 15 on, and from 128
    ],
)
def test_rows_and_figures_are_those_of_the_pieces(count: int, options: dict[str, Any]):
    sizes = [n * (n + 1) // 2 % 7 for n in range(count)]
    starts = [sum(sizes[:n]) for n in range(count + 1)]
    pieces = [piece(a, b, **options) for a, b in pairwise(starts)]
    whole = joined(pieces)
    tables = [pq.read_table(io.BytesIO(each)) for each in pieces]
    file = pq.ParquetFile(io.BytesIO(whole), page_checksum_verification=True)
    assert file.read().equals(pa.concat_tables(tables))
    assert (file.metadata.num_rows, file.num_row_groups) == (starts[-1], count)
    for n in {0, count // 2, count - 1}:
        assert file.read_row_group(n).equals(tables[n])
        mine, alone = file.metadata.row_group(n), pq.read_metadata(io.BytesIO(pieces[n])).row_group(0)
        for i in range(mine.num_columns):
            assert mine.column(i).statistics == alone.column(i).statistics
            assert mine.column(i).total_compressed_size == alone.column(i).total_compressed_size


def metadata(file: bytes) -> bytes:
    return file[len(file) - 8 - int.from_bytes(file[-8:-4], "little") : -8]


def test_the_footer_is_one_that_is_read_from_files():
    pieces = [piece(0, 5, write_page_index=True), piece(5, 9, write_page_index=True)]
    assert check_metadata(metadata(joined(pieces))) == check_metadata(metadata(pieces[0])) == 3
