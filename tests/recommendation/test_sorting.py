"""The second pass of clustering: each part in order, in files that say what holds of them."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.recommendation import cluster
from tests.recommendation.clustered_logs import check, mixed_log, rows_of


@pytest.fixture
def log(tmp_path):
    return mixed_log(tmp_path / "log")


def test_a_part_that_is_too_large_is_sorted_in_passes(log, tmp_path, monkeypatch):
    from cedar.recommendation import sorting

    passes = []
    monkeypatch.setattr(sorting, "parts_of", lambda *a, **k: passes.append(a[1]) or parts_of(*a, **k))
    from cedar.datasets.parquet import read_parquet
    from cedar.recommendation.spill import Job, parts_of, pieces, spill

    (tmp_path / "work" / "out").mkdir(parents=True)
    source = read_parquet(log)
    job = Job(source, "session", "ts", str(tmp_path / "work"), 1, 20_000, 100)
    todo = pieces(source.splits(), 60_000)
    for i, piece in enumerate(todo):
        spill(job, i, piece)
    assert sorting.write_part(job, 0, len(todo)) == 3000
    assert max(passes) > 3
    check_folder = tmp_path / "work" / "out"
    os.remove(check_folder / "part-00000.parquet.done")
    assert rows_of(pq.read_table(check_folder)) == rows_of(pq.read_table(log))
    check(check_folder, "session", "ts")


def test_columns_read_most_come_first_and_with_zstd_there_are_no_dictionaries(log, tmp_path):
    made = cluster(log, tmp_path / "out", session="session", sort="ts", columns_first=["ts", "b"], compression="zstd")
    assert pq.read_schema(made.files[0]).names == ["ts", "b", "session", "row", "a"]
    group = pq.read_metadata(made.files[0]).row_group(0)
    for i in range(group.num_columns):
        column = group.column(i)
        assert column.compression == "ZSTD"
        assert "RLE_DICTIONARY" not in column.encodings


def test_columns_without_nulls_say_so_and_others_keep_theirs(tmp_path):
    lists = pa.array([[1], None, [], [2, None]] * 5, pa.list_(pa.int64()))
    columns = {"s": range(20), "t": range(20), "full": lists, "gaps": lists, "n": [None, *range(19)]}
    columns["full"] = pa.array([[1, 2], []] * 10, pa.list_(pa.int64()))
    pq.write_table(pa.table(columns), tmp_path / "in.parquet", row_group_size=5)
    made = cluster(tmp_path / "in.parquet", tmp_path / "out", session="s", sort="t", row_group_rows=4, memory="100B")
    assert len(made.files) > 1
    schemas = {str(pq.read_schema(path).remove_metadata()) for path in made.files}
    assert len(schemas) == 1
    schema = pq.read_schema(made.files[0])
    assert [field.nullable for field in schema] == [False, False, False, True, True]
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(pa.table(columns))
    assert cedar.read_parquet(str(tmp_path / "out")).schema["full"] == pa.large_list(pa.int64())
