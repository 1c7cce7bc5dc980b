"""Pages of list columns, made by hand or damaged: rows may span pages, and no byte ends the process."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.datasets.parquet_lists import reader
from cedar.datasets.parquet_lists.reader import list_leaves, read_lists
from tests.datasets.parquet_lists.files import written


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def packed(values: list[int], width: int) -> bytes:
    """Numbers as a single run of packed ones."""
    groups = -(-len(values) // 8)
    bits = sum(value << (width * i) for i, value in enumerate(values))
    return varint(groups << 1 | 1) + bits.to_bytes(groups * width, "little")


def data_page(repetition: list[int], definition: list[int], values: list[int]) -> bytes:
    levels = [packed(repetition, 1), packed(definition, 2)]
    body = b"".join(len(each).to_bytes(4, "little") + each for each in levels)
    body += b"".join(value.to_bytes(8, "little") for value in values)
    size, count = varint(len(body) << 1), varint(len(repetition) << 1)
    inner = b"\x15" + count + b"\x15\x00\x15\x06\x15\x06\x00"  # entries, plain, both levels as runs
    return b"\x15\x00\x15" + size + b"\x15" + size + b"\x2c" + inner + b"\x00" + body


def column(path: Path, pages: list[bytes], entries: int, rows: int, keep: Any = None) -> pa.Array:
    path.write_bytes(b"".join(pages))
    size = path.stat().st_size
    leaf = SimpleNamespace(
        compression="UNCOMPRESSED", file_path="", data_page_offset=0, dictionary_page_offset=None, num_values=entries,
        total_compressed_size=size, total_uncompressed_size=size,
    )  # fmt: skip
    group = SimpleNamespace(column=lambda _: leaf)
    kept = np.ones(rows, np.uint8) if keep is None else np.array(keep, np.uint8)
    return read_lists(str(path), group, {"c": reader.ListLeaf(0, pa.int64(), 1, 3)}, kept).get("c")


def test_a_row_may_go_on_in_the_next_page(tmp_path: Path) -> None:
    pages = [data_page([0, 1, 0], [3, 3, 3], [1, 2, 3]), data_page([1, 1, 0, 0, 0], [3, 3, 0, 1, 3], [4, 5, 6])]
    rows = [[1, 2], [3, 4, 5], None, [], [6]]
    assert column(tmp_path / "c", pages, 8, 5).to_pylist() == rows
    assert column(tmp_path / "c", pages, 8, 5, [0, 1, 1, 0, 1]).to_pylist() == [[3, 4, 5], None, [6]]
    assert column(tmp_path / "c", pages, 8, 5, [1, 0, 0, 1, 0]).to_pylist() == [[1, 2], []]


@pytest.mark.parametrize(
    ("repetition", "definition", "values", "entries", "rows"),
    [
        ([1, 0], [3, 3], [1, 2], 2, 2),  # the first entry begins no row
        ([0, 0], [3, 2], [1], 2, 2),  # a null value
        ([0, 1], [1, 3], [1], 2, 1),  # an empty list goes on
        ([0, 1], [3, 0], [1], 2, 1),
        ([0, 0], [3, 3], [1], 2, 2),  # too few values
        ([0, 0], [3, 3], [1, 2], 2, 3),  # too few rows
        ([0, 0], [3, 3], [1, 2], 2, 1),  # too many rows
        ([0, 0], [3, 3], [1, 2], 3, 2),  # too few entries
        ([0, 0], [3, 3], [1, 2], 1, 2),  # too many entries
    ],
)
def test_what_does_not_add_up_is_left_to_arrow(
    repetition: list[int], definition: list[int], values: list[int], entries: int, rows: int, tmp_path: Path
) -> None:
    assert column(tmp_path / "c", [data_page(repetition, definition, values)], entries, rows) is None


@pytest.mark.heavy
def test_damaged_bytes_never_end_the_process(tmp_path: Path) -> None:
    draw = random.Random(9)
    for number in range(20):
        path, _ = written(tmp_path, draw, 200)
        file = pq.ParquetFile(path)
        found = list_leaves(file.schema, file.schema_arrow, range(file.metadata.num_columns))
        data, end = Path(path).read_bytes(), file.metadata.serialized_size
        for _ in range(50):
            changed = bytearray(data)
            for _ in range(draw.choice([1, 1, 5])):
                changed[draw.randrange(4, len(data) - end)] = draw.randrange(256)
            damaged = tmp_path / f"damaged{number}"
            damaged.write_bytes(changed)
            for group in range(file.metadata.num_row_groups):
                about = file.metadata.row_group(group)
                keep = np.ones(about.num_rows, np.uint8)
                for made in read_lists(str(damaged), about, found, keep).values():
                    made.validate(full=True)
