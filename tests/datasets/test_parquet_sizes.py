from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.datasets import parquet
from cedar.datasets.parquet import read_parquet


@pytest.fixture
def path(tmp_path: Path) -> str:
    rows = 10_000
    lists = pa.array([[i, i + 1] if i % 3 else [] for i in range(rows)], pa.large_list(pa.int64()))
    pairs = pa.StructArray.from_arrays([pa.array(np.arange(rows)), pa.array(["ab"] * rows)], ["n", "text"])
    table = pa.table({"same": np.zeros(rows), "lists": lists, "pairs": pairs, "n": np.arange(rows)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=4000)
    return str(tmp_path / "t.parquet")


def test_bytes_of_a_split_are_those_in_memory_however_well_the_file_is_encoded(path):
    (first, *_) = read_parquet(path, columns=["same"]).splits()
    assert first.bytes == 4000 * 8


def test_decoding_in_runs_and_handing_on_in_chunks_show_in_no_value(path, monkeypatch):
    whole = pq.read_table(path)
    monkeypatch.setattr(parquet, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(parquet, "_MIN_CHUNK_ROWS", 700)
    monkeypatch.setattr(parquet, "RUN_BYTES", 1)  # every column in its own run
    source = read_parquet(path)
    chunks = [chunk for split in source.splits() for chunk in source.read(split)]
    assert max(chunk.rows for chunk in chunks) == 700
    assert sum(chunk.rows for chunk in chunks) == whole.num_rows
    for name in whole.column_names:
        found = [value for chunk in chunks for value in chunk.columns[name].to_pylist()]
        assert found == whole[name].to_pylist()
