"""Metrics: what a run counts."""

from __future__ import annotations

import pytest

import cedar
from cedar.core.block import Observation
from cedar.engine.metrics import Metrics


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
