"""Runners: how far ahead tasks are, how many run at once, and what closing them ends."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.core.block import Block
from cedar.core.errors import RowError
from cedar.core.stream import Rows
from cedar.engine import runner
from cedar.engine.runner import Runner
from cedar.operators.base import BlockKernel, Env
from cedar.tasks.chain import KernelStep, Program, Result
from tests.toy_blocks import block


def most_ahead(size: int) -> int:
    """Of 16 threads, how many results of so many bytes there are at most that the caller has not had."""
    lock, started, most, had = threading.Lock(), 0, 0, 0

    def make(batch: dict[str, Any]) -> dict[str, Any]:
        nonlocal started, most
        with lock:
            started += 1
            most = max(most, started - had)
        return {"y": np.zeros((len(batch["x"]), size), np.uint8)}

    pipeline = cedar.from_arrow(pa.table({"x": np.arange(90)})).batch(1).map_batches(make, format="numpy")
    with pipeline.loader(plan="off", executor="threads", workers=16) as loader:
        for i, _ in enumerate(loader):
            with lock:
                had += 1
                most = 0 if i == 40 else most
    return most


def test_large_results_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "cores", lambda: 2)
    assert most_ahead(1 << 10) > 12, "small ones may"
    monkeypatch.setattr(runner, "_AHEAD_BYTES", 1 << 20)
    assert most_ahead(1 << 20) <= 7


def test_large_results_of_processes_do_not_pile_up() -> None:
    run = Runner("processes", 3)
    assert [run.ahead_of(size) for size in (0, 1 << 20, 25 << 20, 1 << 30)] == [6, 6, 5, 4]
    run.close()


def test_work_that_is_done_at_once_fails_where_its_result_is_taken() -> None:
    class Fails(BlockKernel):
        def __call__(self, block: Block, env: Env) -> Block:
            raise ValueError("no such format")

    runner, rows = Runner("inline", 1), Rows.of(block(x=[1, 2]))
    assert isinstance(runner.run(Program(), rows, Env()), Result)
    failed = runner.run(Program((KernelStep(Fails()),)), rows, Env())
    assert isinstance(failed, Future)
    with pytest.raises(RowError, match="no such format"):
        runner.result(failed, "a batch")
    runner.close()


def test_more_threads_run_at_once_after_a_resize() -> None:
    runner = Runner("threads", 1)
    runner.resize(3)
    together = threading.Barrier(3)
    futures = [runner.submit(together.wait, 20) for _ in range(3)]
    assert sorted(f.result() for f in futures) == [0, 1, 2]
    runner.close()


def test_closing_drops_what_an_earlier_size_has_not_begun() -> None:
    runner = Runner("threads", 1)
    begun, go = threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        go.wait(60)

    runner.submit(waits)
    begun.wait(60)
    waiting = [runner.submit(int) for _ in range(3)]
    runner.resize(2)
    runner.close()
    go.set()
    assert all(f.cancelled() for f in waiting)


def test_some_executors_keep_their_size() -> None:
    assert not Runner("inline", 1).resize(4)
