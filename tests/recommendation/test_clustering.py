"""Clustering a log by session: the same rows, whole sessions, in order of time, in bounded memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError, SourceError, WorkerError
from cedar.recommendation import add_sessions, cluster, history
from tests.recommendation.clustered_logs import check, mixed_log, rows_of
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def log(tmp_path):
    return mixed_log(tmp_path / "log")


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


@pytest.mark.heavy
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


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_on_a_dask_cluster_the_result_is_the_same(log, tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"session": "session", "sort": "ts", "row_group_rows": 200, "memory": "64KiB", "workers": 2}
    cluster(log, tmp_path / "here", **options)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, protocol="tcp://"
    ) as there:
        cluster(log, tmp_path / "there", **options, address=there.scheduler_address)
    assert pq.read_table(tmp_path / "here").equals(pq.read_table(tmp_path / "there"))


def test_a_dask_cluster_whose_workers_left_is_not_waited_for(log, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    from cedar.recommendation import clustering

    def late(*_, **__):
        raise TimeoutError

    def none_joins(*_):
        raise WorkerError("no worker joined", done="nothing was run")

    monkeypatch.setattr(distributed, "wait", late)
    monkeypatch.setattr(clustering, "wait_for_workers", none_joins)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp://"
        ) as there,
        pytest.raises(WorkerError, match="no worker joined") as error,
    ):
        cluster(log, tmp_path / "there", session="session", sort="ts", address=there.scheduler_address)
    assert error.value.done == "finished parts are kept, and the same call continues"


_go, _done = threading.Event(), list[int]()


def _first_piece_fails(_job, number, _piece):
    if number == 0:
        raise ValueError("damaged")
    _go.wait(20)
    _done.append(number)


@pytest.mark.heavy
def test_an_error_on_a_dask_cluster_does_not_wait_for_the_other_tasks(log, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    from cedar.recommendation import clustering

    monkeypatch.setattr(clustering, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(clustering, "spill", _first_piece_fails)
    options = {"session": "session", "sort": "ts", "row_group_rows": 200, "memory": "64KiB"}
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, protocol="tcp://"
    ) as there:
        with pytest.raises(ValueError, match="damaged"):
            cluster(log, tmp_path / "there", **options, address=there.scheduler_address)
        assert not _done
        _go.set()
        assert eventually(lambda: _done)
    with warnings.catch_warnings():  # Dask leaves a socket of the client that did not wait
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_no_scheduler_is_said(log, tmp_path):
    distributed = pytest.importorskip("distributed")
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(WorkerError, match="127.0.0.1:9"):
        cluster(log, tmp_path / "out", session="session", sort="ts", address="tcp://127.0.0.1:9")
    assert distributed


# ---- bad input -------------------------------------------------------------------------------------------------------


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
    with pytest.raises(PipelineError, match="already exists"):
        call("full")
    pq.write_table(pa.table({"s": pa.array([], pa.int64()), "t": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    with pytest.raises(SourceError, match="has no rows"):
        cluster(tmp_path / "none.parquet", tmp_path / "out", session="s", sort="t")
