"""How much Python runs for a batch is bounded: counted, not timed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import cedar
from benchmarks.grows import calls
from cedar import col
from cedar.datasets.clicklog import write_sessions
from cedar.plan.lower import lower


@pytest.fixture(autouse=True)
def no_task_is_long(monkeypatch):
    """Long tasks are asked how long they waited for a core, which takes calls; tasks are long on a busy machine."""
    monkeypatch.setattr("cedar.tasks.chain._LONG_SECONDS", math.inf)


@pytest.fixture
def clicks(tmp_path: Path) -> cedar.Pipeline:
    """README's pipeline."""
    write_sessions(str(tmp_path), 3000, 0)
    return (
        cedar.read_parquet(str(tmp_path / "*.parquet"))
        .filter(col("label").is_not_null())
        .with_columns(d0=col("d0").fill_null(0.0).log1p())
        .shuffle(seed=1)
        .batch(64)
    )


def later(pipeline: cedar.Pipeline, format: str = "numpy") -> int:
    """Calls to a batch in the middle of an epoch; the least of some, as some batches begin a block."""
    with pipeline.loader(executor="inline", plan="off", format=format) as loader:
        batches = iter(loader)
        next(batches)
        return min(calls(lambda: next(batches)) for _ in range(20))


@pytest.mark.parametrize("format", ["numpy", "torch"])
def test_a_batch_of_many_columns_takes_few_calls(clicks, format):
    assert later(clicks, format=format) <= 60  # 58; 60 for torch


def test_columns_of_numbers_take_no_calls_of_their_own():
    few, many = ({f"c{i}": np.arange(640.0) for i in range(n)} for n in (2, 200))
    gaps = {f"g{i}": pa.array([None, 1.5] * 320) for i in range(100)}
    plain, wide = (cedar.from_arrow(pa.table(columns)).shuffle().batch(16) for columns in (few, {**many, **gaps}))
    assert later(wide) <= later(plain) + 8


def test_a_second_loader_of_a_pipeline_takes_fewer_calls_to_its_first_batch(clicks, monkeypatch):
    monkeypatch.setattr("cedar.engine.binding.lower", lower)  # without the check that tests add
    with clicks.loader(executor="inline") as first:
        next(iter(first))
    needed = []
    for _ in range(3):  # a task that waits for a core is asked why
        with clicks.loader(executor="inline") as second:
            plans = second._epochs.job.plans
            plans.settings = replace(plans.settings, poll=math.inf)  # how often plans are compared depends on time
            batches = iter(second)
            needed.append(calls(lambda: next(batches)))  # noqa: B023 - called here
    assert min(needed) < 1450  # 1,408; a few more where temporary files lie elsewhere
