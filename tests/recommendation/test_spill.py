"""The first pass of clustering: rows apart by a hash of their session."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.core.errors import PipelineError, RowError
from cedar.datasets.base import Split
from cedar.datasets.parquet import read_parquet
from cedar.recommendation import cluster, history
from cedar.recommendation.spill import Job, check_columns, nullable, parts_of, pieces, read_part, spill


def job_of(folder, **columns):
    pq.write_table(pa.table(columns), folder / "in.parquet", row_group_size=7)
    return Job(read_parquet(str(folder / "in.parquet")), "s", "t", str(folder), 4, 1000, 100)


def test_every_row_is_once_in_the_part_of_its_session(tmp_path):
    numbers = [None if i == 30 else i for i in range(50)]
    columns = {
        "s": [f"user {i % 9}" for i in range(50)],
        "t": list(range(50)),
        "n": numbers,
        "l": [[i] for i in numbers],
    }
    job = job_of(tmp_path, **columns)
    todo = pieces(job.source.splits(), 1300)
    assert 1 < len(todo) < len(job.source.splits())
    assert sum(spill(job, number, splits) for number, splits in enumerate(todo)) == 50
    found = [[row for table in read_part(job, part, len(todo)) for row in table.to_pylist()] for part in range(4)]
    assert sorted((row for rows in found for row in rows), key=lambda row: row["t"]) == pa.table(columns).to_pylist()
    for rows in found:
        assert [row["t"] for row in rows] == sorted(row["t"] for row in rows)
    sessions = [{row["s"] for row in rows} for rows in found]
    assert sum(map(len, sessions)) == len(set().union(*sessions)) == 9
    assert nullable(job, len(todo)) == {"n", "l"}


def test_pieces_hold_as_many_splits_as_may_be_held():
    splits = [Split(i, bytes=size) for i, size in enumerate([10, 10, 30, 5, None, 5, 40])]
    runs = pieces(splits, 20)
    assert [[split.file for split in run] for run in runs] == [[0, 1], [2], [3, 4, 5], [6]]


def test_the_part_of_a_session_depends_on_its_value_alone():
    keys = [f"user {i % 40}" for i in range(200)]
    parts = parts_of(pa.array(keys), 8)
    assert dict(zip(keys, parts.tolist(), strict=True)) == dict(zip(keys[:40], parts[:40].tolist(), strict=True))
    assert set(parts.tolist()) <= set(range(8))
    assert len(set(parts.tolist())) > 4
    assert parts_of(pa.array(keys), 8, salt=1).tolist() != parts.tolist()


def test_columns_that_cannot_be_clustered_by_are_refused(tmp_path):
    job = job_of(tmp_path, s=[1], t=[1], l=[[1]], made=[1])
    check_columns(job)
    for change, why in (
        ({"session": "x"}, "there is no column 'x'"),
        ({"sort": "l"}, "column 'l' of large_list.* has no order"),
        ({"histories": (history("x", 3),)}, "there is no column 'x'"),
        ({"histories": (history("t", 3, into="made"),)}, "there is a column 'made' already"),
    ):
        with pytest.raises(PipelineError, match=why):
            check_columns(replace(job, **change))


@pytest.mark.parametrize("name", ["session", "ts"])
def test_a_null_key_names_its_row(tmp_path, name):
    columns = {"session": [1, 1, 2, 2], "ts": [1, 2, 3, 4]} | {name: [1, 2, None, 3]}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet", row_group_size=2)
    with pytest.raises(RowError, match=f"column '{name}', is null") as failure:
        cluster(tmp_path / "in.parquet", tmp_path / "out", session="session", sort="ts")
    assert failure.value.row.row == 2
    assert "in.parquet" in str(failure.value)
    assert not (tmp_path / "out").exists()
