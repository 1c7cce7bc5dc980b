"""Random Parquet files with columns of lists."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TYPES = [pa.int64(), pa.int32(), pa.float64(), pa.float32()]


def lists(draw: random.Random, rows: int, kind: pa.DataType, *, nullable: bool, items_nullable: bool) -> pa.Array:
    """Random lists: most short, some empty, null or long."""
    distinct = draw.choice([1, 3, 200, 1 << 24])
    runs = draw.random() < 0.3  # several equal lists in a row, for runs of equal levels and indices
    values: list[list[int] | None] = []
    for _ in range(rows):
        if runs and values and draw.random() < 0.8:
            values.append(values[-1])
        elif nullable and draw.random() < 0.1:
            values.append(None)
        else:
            length = draw.choice([0, 1, 1, 2, 3, 5, 8, 40])
            values.append([draw.randrange(distinct) - distinct // 2 for _ in range(length)])
    item = pa.field("element", kind, nullable=items_nullable)
    return pa.array(values, draw.choice([pa.list_, pa.large_list])(item))


def written(folder: Path, draw: random.Random, rows: int) -> tuple[str, pa.Table]:
    fields, columns = [], []
    for i, kind in enumerate([*TYPES, draw.choice(TYPES)]):
        nullable, items_nullable = draw.random() < 0.7, draw.random() < 0.7
        column = lists(draw, rows, kind, nullable=nullable, items_nullable=items_nullable)
        fields.append(pa.field(f"c{i}", column.type, nullable=nullable))
        columns.append(column)
    table = pa.table(columns, schema=pa.schema(fields))
    path = str(folder / f"{draw.random()}.parquet")
    pq.write_table(
        table,
        path,
        compression=draw.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=draw.choice([True, False, ["c0.list.element"]]),
        data_page_version=draw.choice(["1.0", "2.0"]),
        data_page_size=draw.choice([64, 1000, 1 << 20]),
        dictionary_pagesize_limit=draw.choice([200, 1 << 20]),  # a small dictionary is followed by plain pages
        write_batch_size=draw.choice([7, 1024]),
        row_group_size=draw.choice([max(1, rows // 2), rows]),
    )
    return path, table
