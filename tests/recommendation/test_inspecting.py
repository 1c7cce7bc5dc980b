"""Logs as they are: clustered or not, what repeats, and whether the prediction holds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.core.errors import PipelineError, RowError, SourceError
from cedar.recommendation import check_clustered, cluster, inspect, read_clustered
from tests.toy_sessions import interleaved, sessions


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    table = interleaved(sessions(8000, 16, 0.9), 400).append_column("ts", pa.array(np.arange(8000)))
    pq.write_table(table, folder / "mixed.parquet", row_group_size=2000)
    cluster(folder / "mixed.parquet", folder / "out", session="session", sort="ts", row_group_rows=2000, workers=1)
    return folder


def achieved(path, batch):
    p = cedar.read_parquet(str(path)).select("a", "session").dedup([["a"]], session="session").batch(batch)
    with p.loader(format="numpy", executor="inline") as loader:
        list(loader)
        return loader.report().dedup["a"]


def test_a_log_by_time_and_the_same_log_clustered(logs):
    mixed = inspect(logs / "mixed.parquet", session="session", sort="ts", batch=512)
    whole = inspect(logs / "out", session="session", sort="ts", batch=512)
    assert not mixed.clustered
    assert mixed.split == mixed.sessions == 500
    assert "interleaved: 500 of 500" in str(mixed)
    assert whole.clustered
    assert "in order of time" in str(whole)
    assert mixed.samples == whole.samples == 16
    assert whole.samples_in_batch > 10 > 2 > mixed.samples_in_batch
    for found in (mixed, whole):
        (a,) = (f for f in found.features if f.name == "a")
        assert a.repeats == pytest.approx(0.9, abs=0.02)
        assert a.clustered == pytest.approx(achieved(logs / "out", 512), rel=0.15)
    (a,) = (f for f in mixed.features if f.name == "a")
    assert a.now == pytest.approx(achieved(logs / "mixed.parquet", 512), rel=0.15)


def test_scalars_are_measured_too(logs):
    (row,) = (f for f in inspect(logs / "out", session="session").features if f.name == "row")
    assert (row.repeats, row.length, row.clustered) == (0.0, 1.0, 1.0)


def test_only_the_first_rows_are_looked_at(logs):
    found = inspect(logs / "out", session="session", rows=100)
    assert found.looked_at == 100
    assert found.rows == 8000


def test_what_was_clustered_is_read_without_a_look_and_others_are_checked(logs, tmp_path, monkeypatch):
    assert read_clustered(logs / "out", session="session", sort="ts").count() == 8000
    pq.write_table(pq.read_table(logs / "out").replace_schema_metadata(None), tmp_path / "plain.parquet")
    assert read_clustered(tmp_path / "plain.parquet", session="session", sort="ts").count() == 8000
    check_clustered(tmp_path / "plain.parquet", session="session")
    from cedar.recommendation import inspecting

    monkeypatch.setattr(inspecting, "check_clustered", lambda *a, **k: 1 / 0)
    assert inspecting.read_clustered(logs / "out", session="session", sort="ts").count() == 8000


def test_marks_of_several_outputs_do_not_say_that_no_session_is_in_two(tmp_path):
    for name in "ab":
        pq.write_table(pa.table({"u": [1, 2], "ts": [0, 1]}), tmp_path / f"{name}.parquet")
        cluster(tmp_path / f"{name}.parquet", tmp_path / f"out_{name}", session="u", sort="ts", workers=1)
    with pytest.raises(SourceError, match="belongs to a session that appeared before"):
        read_clustered([f"{tmp_path}/out_a", f"{tmp_path}/out_b"], session="u", sort="ts")


def test_a_log_that_is_not_clustered_is_refused_by_its_first_row_out_of_place(logs, tmp_path):
    with pytest.raises(SourceError, match="belongs to a session that appeared before") as failure:
        read_clustered(logs / "mixed.parquet", session="session", sort="ts")
    assert failure.value.row.row == 400
    pq.write_table(pa.table({"s": [1, 1, 2], "t": [1, 0, 0]}), tmp_path / "back.parquet")
    with pytest.raises(SourceError, match="is out of order") as failure:
        read_clustered(tmp_path / "back.parquet", session="s", sort="t")
    assert failure.value.row.row == 1
    pq.write_table(pa.table({"s": [1, 2, 2, 3]}), tmp_path / "cut.parquet", row_group_size=2)
    with pytest.raises(SourceError, match="appeared before") as failure:
        read_clustered(tmp_path / "cut.parquet", session="s")
    assert failure.value.row.row == 2


def test_a_null_session_names_its_row(tmp_path):
    pq.write_table(pa.table({"s": [1, 2, None, 3]}), tmp_path / "x.parquet", row_group_size=2)
    for call in (inspect, check_clustered):
        with pytest.raises(RowError, match="column 's', is null") as failure:
            call(tmp_path / "x.parquet", session="s")
        assert failure.value.row.row == 2


def test_columns_that_are_not_there(logs):
    for call in (inspect, check_clustered):
        with pytest.raises(PipelineError, match="no column 'sess'"):
            call(logs / "out", session="sess")
    with pytest.raises(PipelineError, match="at least 1"):
        inspect(logs / "out", session="session", batch=0)
