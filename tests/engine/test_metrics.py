"""Metrics: what a run counts."""

from __future__ import annotations

import math
import os

import pytest

import cedar
from cedar.core.block import Observation
from cedar.engine.metrics import Metrics
from cedar.tasks.chain import Timing


def test_newer_figures_count_as_soon_as_there_are_enough() -> None:
    metrics = Metrics(labels={0: "f"})

    def calls(number: int, seconds: float) -> None:
        for _ in range(number):
            metrics.observe(0, Observation(100, 100, 0, 0, seconds * 100, seconds * 100))

    calls(40, 1e-3)
    metrics.renew()
    calls(2, 5e-3)
    assert metrics.seen[0].figures("f").cpu == pytest.approx(1e-3)
    calls(1, 5e-3)
    assert metrics.seen[0].figures("f").cpu == pytest.approx(5e-3)


def test_calls_that_ran_beside_planning_do_not_count() -> None:
    metrics = Metrics(labels={1: "map"})

    def task(began: float, process: int) -> int:
        timing = Timing(began=began, process=process, seen={1: Observation(10, 10, 0, 0, 1.0, 0.1)})
        metrics.add(timing, operators=(1,))
        return metrics.seen[1].calls

    assert task(1.0, os.getpid()) == 1
    metrics.planning_ended = math.inf
    assert task(2.0, os.getpid()) == 1
    assert task(2.0, 1) == 2, "other processes have a GIL of their own"
    metrics.planning_ended = 3.0
    assert task(2.5, os.getpid()) == 2
    assert task(3.5, os.getpid()) == 3


def test_calls_that_ran_beside_planning_count_where_nothing_better_is_known() -> None:
    metrics = Metrics(labels={1: "map"}, planning_ended=math.inf)
    for rows in (0, 10, 20):  # a call without rows measures nothing
        timing = Timing(began=1.0, process=os.getpid(), seen={1: Observation(rows, rows, 0, 0, 1.0, 0.1)})
        metrics.add(timing, operators=(1,))
    assert (metrics.seen[1].calls, metrics.seen[1].rows_in) == (1, 10)
    metrics.renew()
    metrics.add(timing, operators=(1,))
    assert metrics.seen[1].calls == 0, "the former figures are better"


def test_a_task_gets_rows_for_its_time_and_size_once_all_its_operators_are_measured() -> None:
    metrics = Metrics(labels={0: "f", 1: "g"})
    assert metrics.rows_per_task([0], 0.05, 1 << 20) is None
    metrics.observe(0, Observation(100, 100, 0, 800, 0.1, 0.1))
    assert metrics.rows_per_task([0], 0.05, 1 << 20) == 50
    assert metrics.rows_per_task([0, 1], 0.05, 1 << 20) is None
    metrics.observe(1, Observation(100, 100, 0, 100 << 17, 0.1, 0.1))
    assert metrics.rows_per_task([0, 1], 0.05, 1 << 20) == 8, "as many as fit"
    metrics.renew()
    assert metrics.rows_per_task([0, 1], 0.05, 1 << 30) == 25, "what was measured before counts, too"


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_rows_from_a_cache_count_as_much_as_rows_that_are_read(executor: str) -> None:
    loader = cedar.from_items(list(range(200))).map(abs, "item").cache().batch(8).loader(executor=executor, workers=2)
    for epoch in (1, 2):
        assert sum(len(batch["item"]) for batch in loader) == 200
        metrics = loader._epochs.job.metrics
        assert metrics.rows_entered == 200 * epoch, "else a plan seems to have stopped"
        assert executor == "processes" or metrics.rows_read == 200
