"""What tasks leave behind them in memory: results that wait for the caller, and what measuring makes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.core.block import Block
from cedar.engine import runner
from cedar.operators.base import Env
from cedar.tasks.chain import Step, Timing, run_steps
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
    monkeypatch.setattr(runner, "available_cpus", lambda: 2)
    assert most_ahead(1 << 10) > 12, "small ones may"
    monkeypatch.setattr(runner, "_AHEAD_BYTES", 1 << 20)
    assert most_ahead(1 << 20) <= 7


class Together:
    """Two kernels in one, as those of images."""

    inexact = False

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, given: Block, env: Env) -> Block:
        self.rows += len(given)
        return given


def test_operators_that_work_together_are_measured_on_a_few_rows() -> None:
    one, two, both = Together(), Together(), Together()
    step = Step(both, (0, 1), parts=(Step(one, (0,)), Step(two, (1,))))
    for rows, looked in ((100, 6), (20, 4)):
        one.rows = two.rows = both.rows = 0
        timing = Timing()
        made = run_steps([step], block(x=list(range(rows))), Env(watch="detail"), timing)
        assert (len(made), one.rows, two.rows, both.rows) == (rows, looked, looked, rows)
        assert timing.seen[0].rows_in == looked
