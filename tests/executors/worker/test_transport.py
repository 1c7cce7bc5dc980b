"""Rows from and to worker processes: where they lie, how long, and what happens if there is no room."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.executors import processes
from cedar.executors.processes.pool import Pool
from cedar.executors.worker import arena, wire
from tests.executors.worker.shared_memory import LARGE, mapped, shares

WORKERS = 2
FDS = Path("/proc/self/fd")


@pytest.fixture
def one() -> Iterator[Pool]:
    pool = Pool(1)
    pool.submit(int).result()
    yield pool
    pool.shutdown()


@pytest.fixture(scope="module")
def pool() -> Pool:
    return processes.warm(WORKERS)


@pytest.fixture
def first_warning() -> None:
    for once in arena._log.filters:
        once.reported = False  # type: ignore[union-attr]


# ---- workers ---------------------------------------------------------------------------------------------------------


def filled(value: int, size: int = LARGE) -> Any:
    return np.full(size, value, dtype=np.uint8)


def total(values: Any) -> int:
    return int(values.sum())


@shares
def test_inputs_and_results_are_shared(one: Pool) -> None:
    assert mapped(one.submit(filled, 3).result())
    for number in range(5):
        assert one.submit(total, filled(number)).result() == number * LARGE


@shares
def test_a_consumer_that_keeps_everything_gets_everything(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "Inbox", lambda number: arena.Inbox(number, 8 * LARGE))
    pool = Pool(1)
    kept = [pool.submit(filled, number).result() for number in range(30)]
    assert [(int(array[0]), int(array[-1])) for array in kept] == [(n, n) for n in range(30)]
    assert not caplog.records, "that is not a fault"
    pool.shutdown()


@shares
def test_descriptors_do_not_grow_with_blocks(one: Pool) -> None:
    def files() -> int:
        return len(os.listdir(FDS))

    kept = [one.submit(filled, 0).result()]
    here, there = files(), one.submit(files).result()
    kept += [one.submit(filled, number).result() for number in range(100)]
    assert (files(), one.submit(files).result()) == (here, there)
    assert sum(map(mapped, kept[:5])) == 5


@shares
def test_a_worker_killed_while_it_writes_hands_over_nothing_torn() -> None:
    pool = Pool(WORKERS)
    size = 4 << 20
    got = 0
    for number in range(4):
        futures: list[Future[Any]] = [pool.submit(filled, value, size) for value in range(20)]
        futures[number].result()
        for pid in pool.pids()[:1]:
            os.kill(pid, signal.SIGKILL)
        for value, future in enumerate(futures):
            if future.exception() is None:
                array = future.result()
                assert len(array) == size
                assert (array == value).all()
                got += 1
    assert got >= 4
    pool.shutdown()


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@shares
def test_little_shared_memory_is_one_warning(first_warning: None, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        pool = Pool(1)
        pool.submit(limit_files, 3 * LARGE).result()
        futures = [pool.submit(filled, number) for number in range(12)]
        kept = [future.result() for future in futures]
        assert [(int(array[0]), int(array[-1])) for array in kept] == [(n, n) for n in range(12)]
        pool.shutdown()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "pipes" in caplog.text


def test_without_shared_memory_pipes_do(
    monkeypatch: pytest.MonkeyPatch, first_warning: None, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(arena, "_open_unnamed_file", missing)
    pool = Pool(1)
    assert [int(pool.submit(filled, number).result()[-1]) for number in range(3)] == [0, 1, 2]
    pool.shutdown()
    assert len(caplog.records) == (1 if sys.platform == "linux" else 0)


# ---- threads of native libraries -------------------------------------------------------------------------------------

LIMITED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS",
           "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "TOKENIZERS_PARALLELISM")  # fmt: skip


def test_native_libraries_run_one_thread_unless_the_user_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: os.environ[name] for name in names} | {"arrow": pa.cpu_count()}

    for name in LIMITED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    pool = Pool(1)
    found = pool.submit(threads, LIMITED).result()
    pool.shutdown()
    assert found == dict.fromkeys(LIMITED, "1") | {
        "OMP_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "false", "arrow": 1,
    }  # fmt: skip


# ---- loaders ---------------------------------------------------------------------------------------------------------


def images() -> cedar.Pipeline:
    made = cedar.from_items([{"i": i} for i in range(40)])
    return made.map(lambda i: np.full((64, 64, 3), i, dtype=np.float32), "i", into="image").batch(8)


@pytest.mark.parametrize("form", ["numpy", "torch", "arrow"])
def test_batches_are_those_of_threads(form: str, pool: Pool) -> None:
    if form == "torch":
        pytest.importorskip("torch")
    found = {}
    for executor in ("threads", "processes"):
        with images().loader(executor=executor, workers=WORKERS, format=form) as loader:
            found[executor] = list(loader)
    for batch, expected in zip(found["processes"], found["threads"], strict=True):
        if form == "arrow":
            assert batch.equals(expected)
            continue
        for name in expected:
            mine, theirs = (np.asarray(values[name]) for values in (batch, expected))
            assert (mine == theirs).all()
            assert mine.flags.writeable == theirs.flags.writeable


@shares
def test_batches_live_longer_than_their_loader(pool: Pool) -> None:
    with images().loader(executor="processes", workers=WORKERS) as loader:
        first = next(iter(loader))["image"]
    assert mapped(first)
    del loader
    gc.collect()
    for _ in range(2):
        list(images().loader(executor="processes", workers=WORKERS))
    assert (first == np.arange(8, dtype=np.float32)[:, None, None, None]).all()
    first *= 2
    assert first[7, 0, 0, 0] == 14


def test_a_batch_cut_from_blocks_that_are_kept_is_right_after_many_more(pool: Pool) -> None:
    rows = cedar.from_items([{"i": i} for i in range(120)])
    p = rows.map(lambda i: np.full(LARGE // 8, i), "i", into="x").shuffle(window=40, seed=3).batch(5)

    def seen(executor: str) -> list[tuple[int, int, int]]:
        with p.loader(executor=executor, workers=WORKERS) as loader:
            return [(int(i), int(x[0]), int(x[-1])) for b in list(loader) for i, x in zip(b["i"], b["x"], strict=True)]

    got = seen("processes")
    assert all(i == low == high for i, low, high in got)
    assert got == seen("inline")
