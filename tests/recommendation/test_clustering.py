"""Clustering a log by session: the same rows, whole sessions, in order of time, in bounded memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError, RowError, SourceError, WorkerError
from cedar.recommendation import add_sessions, cluster, history
from tests.toy_sessions import interleaved, sessions

ROOT = Path(__file__).resolve().parents[2]


def rows_of(table):
    names = sorted(table.column_names)
    return sorted(repr([row[name] for name in names]) for row in table.to_pylist())


def check(folder, session, sort):
    """Sessions whole in their row groups, and in order of time."""
    seen = set()
    for name in sorted(os.listdir(folder)):
        file = pq.ParquetFile(folder / name)
        for i in range(file.num_row_groups):
            group = file.read_row_group(i)
            keys, times = group[session].to_pylist(), group[sort].to_pylist()
            runs = [key for j, key in enumerate(keys) if j == 0 or keys[j - 1] != key]
            assert len(runs) == len(set(runs)), "a session's rows are next to each other"
            assert not seen & set(runs), "a session is in one row group"
            seen |= set(runs)
            assert all(times[j - 1] <= times[j] for j in range(1, len(keys)) if keys[j] == keys[j - 1])
    return seen


@pytest.fixture
def log(tmp_path):
    """3,000 rows of 300 sessions, mixed; in two files of several row groups."""
    table = interleaved(sessions(3000, 10, 0.9, vary=True), 40)
    table = table.append_column("ts", pa.array(np.arange(3000)))
    (tmp_path / "log").mkdir()
    pq.write_table(table.slice(0, 1800), tmp_path / "log" / "a.parquet", row_group_size=250)
    pq.write_table(table.slice(1800), tmp_path / "log" / "b.parquet", row_group_size=250)
    return tmp_path / "log"


def test_the_same_rows_with_whole_sessions(log, tmp_path):
    made = cluster(log, tmp_path / "out", session="session", sort="ts", row_group_rows=200, memory="600KiB", workers=2)
    assert made.rows == 3000
    assert made.row_groups > len(made.files) > 2
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(pq.read_table(log))
    assert len(check(tmp_path / "out", "session", "ts")) == len(set(pq.read_table(log)["session"].to_pylist()))
    assert not (tmp_path / "out.part").exists()
    for path in made.files:
        meta = pq.read_metadata(path)
        groups = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        assert all(rows >= 200 for rows in groups[:-1])


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_files_are_compressed_as_asked(log, tmp_path, compression):
    made = cluster(log, tmp_path / "out", session="session", sort="ts", compression=compression)
    column = pq.read_metadata(made.files[0]).row_group(0).column(0)
    assert column.compression == compression.upper()
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(pq.read_table(log))


def test_the_result_does_not_depend_on_workers_and_hardly_on_memory(log, tmp_path):
    tables = []
    for i, (workers, memory) in enumerate(((1, "64KiB"), (3, "192KiB"))):
        cluster(
            log, tmp_path / str(i), session="session", sort="ts", workers=workers, memory=memory, row_group_rows=200
        )
        tables.append([pq.read_table(tmp_path / str(i) / name) for name in sorted(os.listdir(tmp_path / str(i)))])
    assert tables[0] == tables[1]


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), min_size=1, max_size=60),
    st.booleans(), st.integers(1, 20), st.integers(1, 20),
)  # fmt: skip
def test_any_log(tmp_path_factory, rows, text, group_rows, written_rows):
    folder = tmp_path_factory.mktemp("any")
    key = [f"user {k}" if text else k for k, _ in rows]
    table = pa.table({"k": key, "t": [t for _, t in rows], "n": np.arange(len(rows))})
    pq.write_table(table, folder / "in.parquet", row_group_size=written_rows)
    cluster(
        folder / "in.parquet",
        folder / "out",
        session="k",
        sort="t",
        row_group_rows=group_rows,
        memory="600B",
        workers=2,
    )
    found = pq.read_table(folder / "out")
    check(folder / "out", "k", "t")
    assert rows_of(found) == rows_of(table)
    last = {}
    for k, t, n in zip(*(found[name].to_pylist() for name in "ktn"), strict=True):
        assert last.get(k, (-1, -1)) < (t, n), "equal times keep the order in which they were read"
        last[k] = (t, n)


def test_sessions_of_users_with_histories_are_those_of_the_whole_table(log, tmp_path):
    made = [history("row", 4), history("row", 3, "event", into="recent")]
    cluster(
        log, tmp_path / "out", session="session", sort="ts", gap=1.0, histories=made, row_group_rows=100,
        memory="64KiB", columns_first=["hist_row"],
    )  # fmt: skip
    found = pq.read_table(tmp_path / "out")
    assert found.column_names[0] == "hist_row"
    wanted = add_sessions(pq.read_table(log), "session", "ts", gap=1.0, histories=made)
    key = {row: i for i, row in enumerate(found["row"].to_pylist())}
    order = [key[row] for row in wanted["row"].to_pylist()]
    for name in ("hist_row", "recent"):
        assert found[name].take(order).to_pylist() == wanted[name].to_pylist()
    pairs = set(zip(found["session_id"].take(order).to_pylist(), wanted["session_id"].to_pylist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}), "the same sessions, by other numbers"
    check(tmp_path / "out", "session_id", "ts")


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


def test_a_shuffle_by_session_keeps_sessions_whole_and_ranks_cut_one_at_most(log, tmp_path):
    cluster(log, tmp_path / "out", session="session", sort="ts", row_group_rows=100, memory="64KiB")
    p = cedar.read_parquet(str(tmp_path / "out")).shuffle(seed=1, by="session", window=100)
    shares = []
    for options in ({}, {"rank": 0, "world": 2}, {"rank": 1, "world": 2}):
        with p.loader(executor="inline", **options) as loader:
            shares.append([row["session"] for row in loader])
    for keys in shares:
        runs = [k for i, k in enumerate(keys) if i == 0 or keys[i - 1] != k]
        assert len(runs) == len(set(runs))
    assert len(shares[0]) == len(shares[1]) + len(shares[2]) == 3000
    assert len(set(shares[1]) & set(shares[2])) <= 1


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


# ---- interruptions ---------------------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_where_it_was(log, tmp_path, monkeypatch):
    module = sys.modules["cedar.recommendation.clustering"]
    calls = []

    def dies(job, part, files):
        calls.append(part)
        if len(calls) == 3:
            raise OSError("no space left")
        return real(job, part, files)

    real = module.write_part
    monkeypatch.setattr(module, "write_part", dies)
    options = {"session": "session", "sort": "ts", "row_group_rows": 200, "memory": "64KiB", "workers": 1}
    with pytest.raises(SourceError, match="no space"):
        cluster(log, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.part").exists()
    spilled = []
    monkeypatch.setattr(module, "spill", lambda *a: spilled.append(a))
    done, calls[:] = calls[:2], []
    calls.extend([-1] * 3)
    cluster(log, tmp_path / "out", **options)
    assert not spilled
    assert not set(done) & set(calls[3:])
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(pq.read_table(log))


DIES = """
import sys, threading
from cedar.recommendation import cluster
module = sys.modules["cedar.recommendation.clustering"]
real, calls = module.write_part, []

def write_part(job, part, files):
    calls.append(part)
    if len(calls) == 3:
        print("reached", flush=True)
        threading.Event().wait(100)
    return real(job, part, files)

module.write_part = write_part
cluster(sys.argv[1], sys.argv[2], session="session", sort="ts", row_group_rows=200, memory="64KiB", workers=1)
"""


def test_a_killed_process_leaves_what_the_next_one_goes_on_from(log, tmp_path):
    command = [sys.executable, "-c", DIES, str(log), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reached\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    done = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out.part" / "out").glob("*.parquet")}
    assert len(done) == 2
    cluster(log, tmp_path / "out", session="session", sort="ts", row_group_rows=200, memory="64KiB", workers=1)
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == written for name, written in done.items())
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(pq.read_table(log))


def test_another_job_starts_anew(log, tmp_path, monkeypatch):
    module = sys.modules["cedar.recommendation.clustering"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_part", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cluster(log, tmp_path / "out", session="session", sort="ts")
    made = cluster(log, tmp_path / "out", session="row", sort="ts")
    assert made.rows == 3000
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(pq.read_table(log))


def test_two_at_the_same_folder_are_refused(log, tmp_path, monkeypatch):
    module = sys.modules["cedar.recommendation.clustering"]
    real, inside, go = module.write_part, threading.Event(), threading.Event()

    def waits(*arguments):
        inside.set()
        assert go.wait(60)
        return real(*arguments)

    monkeypatch.setattr(module, "write_part", waits)
    first = threading.Thread(target=lambda: cluster(log, tmp_path / "out", session="session", sort="ts", workers=1))
    first.start()
    try:
        assert inside.wait(60)
        with pytest.raises(SourceError, match="another process"):
            cluster(log, tmp_path / "out", session="session", sort="ts", workers=1)
    finally:
        go.set()
        first.join()
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(pq.read_table(log))


# ---- a cluster of machines -------------------------------------------------------------------------------------------


def test_on_a_dask_cluster_the_result_is_the_same(log, tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"session": "session", "sort": "ts", "row_group_rows": 200, "memory": "64KiB", "workers": 2}
    cluster(log, tmp_path / "here", **options)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, protocol="tcp://"
    ) as there:
        cluster(log, tmp_path / "there", **options, address=there.scheduler_address)
    assert pq.read_table(tmp_path / "here").equals(pq.read_table(tmp_path / "there"))


def test_no_scheduler_is_said(log, tmp_path):
    distributed = pytest.importorskip("distributed")
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(WorkerError, match="127.0.0.1:9"):
        cluster(log, tmp_path / "out", session="session", sort="ts", address="tcp://127.0.0.1:9")
    assert distributed


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["session", "ts"])
def test_a_null_key_names_its_row(tmp_path, name):
    columns = {"session": [1, 1, 2, 2], "ts": [1, 2, 3, 4]} | {name: [1, 2, None, 3]}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet", row_group_size=2)
    with pytest.raises(RowError, match=f"column '{name}', is null") as failure:
        cluster(tmp_path / "in.parquet", tmp_path / "out", session="session", sort="ts")
    assert failure.value.row.row == 2
    assert "in.parquet" in str(failure.value)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_clustered_is_refused(log, tmp_path):
    def call(out="out", **options):
        return cluster(log, tmp_path / out, **({"session": "session", "sort": "ts"} | options))

    for options, said in (
        ({"session": "sesion"}, "'session'"),
        ({"sort": "a"}, "has no order"),
        ({"columns_first": ["nothing"]}, "nothing"),
        ({"histories": [history("row", 3)]}, "give gap="),
        ({"gap": 1, "histories": [history("row", 3, into="a")]}, "column 'a' already"),
        ({"gap": 0}, "above 0"),
        ({"row_group_rows": 0}, "above 0"),
        ({"compression": "rar"}, "compression='rar'"),
    ):
        with pytest.raises(PipelineError, match=said):
            call(**options)
    with pytest.raises(PipelineError, match="writes into folders"):
        cluster(log, "s3://bucket/out", session="session", sort="ts")
    (tmp_path / "mine.part").mkdir()
    (tmp_path / "mine.part" / "thesis.txt").write_text("mine")
    with pytest.raises(PipelineError, match="holds what cedar did not write, such as 'thesis.txt'"):
        call("mine")
    assert (tmp_path / "mine.part" / "thesis.txt").read_text() == "mine"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    with pytest.raises(PipelineError, match="is there already"):
        call("full")
    pq.write_table(pa.table({"s": pa.array([], pa.int64()), "t": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    with pytest.raises(SourceError, match="has no rows"):
        cluster(tmp_path / "none.parquet", tmp_path / "out", session="s", sort="t")
