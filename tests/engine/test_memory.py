"""Budget(memory=): what a run may have follows what is held, by a function of that; who holds what is told."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core import process
from cedar.core.block import Block
from cedar.core.cursor import no_keys
from cedar.engine.memory import MemoryBound, allowed, named
from cedar.plan.saved import plan_from, text_of
from cedar.store.cache import Memory

MB = 1 << 20
SIZES = st.integers(0, 4 << 30)


class Machine:
    """A machine that holds what a test says, on a clock that the test moves."""

    def __init__(self, limit: int, kept: int = 0) -> None:
        self.now, self.bytes, self.queue = 0.0, 0, 0
        self.cache = Memory(1 << 40)
        for i in range(kept):
            self.cache.put("group", f"entry {i}", [Block({"x": np.zeros(MB, np.uint8)}, no_keys())])
        self.bound = MemoryBound(limit, self.cache, lambda: self.queue, self._measure, lambda: self.now)

    def _measure(self) -> dict[int, int]:
        return {1: self.bytes, process.FILES: 0}

    def ahead(self, held: int, size: int = MB, after: float = 1.0) -> int:
        self.bytes, self.now = held, self.now + after
        return self.bound.ahead(16, size)


@given(SIZES, SIZES, SIZES)
def test_what_is_allowed_never_grows_with_what_is_held(limit, held, more):
    before, after = allowed(limit, held, 0), allowed(limit, held + more, 0)
    assert after.ahead <= before.ahead
    assert before.ahead <= max(limit - held, 0)
    assert (after.idle, before.idle) != (True, False)


@given(SIZES, SIZES, SIZES)
def test_a_cache_gives_back_what_is_beyond_the_bound(limit, held, cache):
    there = allowed(limit, held + cache, cache)
    assert held + there.cache <= max(limit, held)


def test_a_run_reads_less_far_ahead_as_memory_fills_and_further_when_it_is_free_again():
    machine = Machine(128 * MB)
    assert [machine.ahead(held * MB) for held in (0, 64, 96, 120, 128, 300, 0)] == [16, 8, 4, 1, 1, 1, 16]
    assert machine.ahead(0, size=0) == 2  # until a result tells its size
    assert machine.ahead(0, size=MB // 4) == 16  # never more than without a bound


def test_a_cache_stops_growing_and_gives_way():
    machine = Machine(128 * MB, kept=10)
    machine.ahead(128 * MB)
    assert machine.cache.put("group", "more", [Block({"x": np.zeros(MB, np.uint8)}, no_keys())]) == 0
    assert machine.cache.nbytes == 10 * MB
    machine.ahead(132 * MB)
    assert (machine.cache.nbytes, machine.cache.evicted) == (6 * MB, 4)
    kept = [machine.cache.holds(f"entry {i}") for i in range(10)]
    assert kept == [True] * 6 + [False] * 4  # in a loop, those used last are needed last


def test_a_moment_beyond_the_bound_is_no_warning_and_staying_there_is_one(caplog):
    machine = Machine(128 * MB, kept=3)
    with caplog.at_level(logging.WARNING):
        machine.ahead(200 * MB)
        machine.ahead(100 * MB)
        machine.ahead(200 * MB)
        assert not caplog.records
        machine.queue = 5 * MB
        for _ in range(3):
            machine.ahead(201 * MB)
    (record,) = caplog.records
    assert "memory: 201MiB of Budget(memory='128MiB'), exceeded: process 1 201MiB" in record.getMessage()
    assert "this process: results not yet taken 5MiB" in record.getMessage()
    assert machine.bound.parts["process 1"] == 201 * MB


def test_looks_take_a_small_part_of_the_time():
    looks = []
    machine = Machine(128 * MB)

    def slow() -> dict[int, int]:
        looks.append(machine.now)
        machine.now += 0.01
        return {}

    machine.bound._measure = slow
    for _ in range(1000):
        machine.ahead(0, after=0.001)
    assert len(looks) == 3


def test_those_who_hold_memory_are_named():
    parts = named({7: 3, 5: 2, process.FILES: 1}, cached=4, queued=0)
    assert parts.items() >= {"this process: cache()": 4, "process 5": 2, "process 7": 3, "files": 1}.items()
    assert "this process: results not yet taken" not in parts


def test_a_plan_carries_its_bound_to_the_run_that_it_is_given_to():
    pipeline = cedar.from_items([{"x": i} for i in range(100)]).batch(10)
    plan = pipeline.optimize(cedar.Budget(memory="900GiB"))
    assert plan_from(text_of(plan), pipeline).memory_bytes == 900 << 30
    with pipeline.loader(plan=plan) as loader:
        assert len(list(loader)) == 10
        report = loader.report()
    assert 0 < report.memory_peak <= 900 << 30
    assert report.memory_parts == {}
    assert any(note.startswith("memory: at most") and "'900GiB'" in note for note in report.notes)


def test_a_forked_process_counts_no_results_of_its_parent():
    pipeline = cedar.from_items([{"x": i} for i in range(100)]).batch(10)
    with pipeline.loader(executor="threads", budget=cedar.Budget(memory="900GiB")) as loader:
        next(iter(loader))
        before = loader._epochs.parts.untaken
        loader._epochs.begin_in_fork()
        assert loader._epochs.parts.untaken is not before


@pytest.mark.parametrize("size", ["-5", "0", "true", '"2GiB"'])
def test_a_bound_that_is_none_is_refused(size):
    pipeline = cedar.from_items([{"x": 1}]).batch(1)
    text = text_of(pipeline.optimize(cedar.Budget(memory=5)))
    with pytest.raises(cedar.PlanError, match="memory_bytes"):
        plan_from(text.replace('"memory_bytes": 5', f'"memory_bytes": {size}'), pipeline)


def test_the_same_rows_come_out_of_however_little_memory(tmp_path):
    for i in range(6):
        pq.write_table(pa.table({"x": range(i * 1000, i * 1000 + 1000)}), tmp_path / f"{i}.parquet")
    read = cedar.read_parquet(str(tmp_path)).cache("memory")
    pipeline = read.map(lambda x: x + 1, "x", into="y").shuffle(seed=1).batch(64)

    def rows(budget: cedar.Budget | None) -> list[list[int]]:
        with pipeline.loader(budget=budget, seed=3) as loader:
            return [batch["y"].tolist() for _ in range(2) for batch in loader]

    assert rows(cedar.Budget(memory=1)) == rows(None)


SCRIPT = """
    import sys, time
    import cedar
    from cedar.core.process import resident

    pipeline = cedar.read_parquet(sys.argv[1]).batch(100)

    def peak(budget, batches=10**9):
        most = 0
        with pipeline.loader(executor="threads", workers=8, budget=budget) as loader:
            for _, batch in zip(range(batches), loader):
                time.sleep(0.005)  # a trainer: workers are ahead of it
                most = max(most, resident())
        return most

    peak(cedar.Budget(memory=1), batches=30)  # everything is imported, and splits were read ahead
    limit = resident() + (96 << 20)
    print(peak(cedar.Budget(memory=limit)) <= limit, peak(None) > limit)
"""


@pytest.mark.heavy
def test_a_run_stays_within_its_budget_where_without_one_it_does_not(tmp_path):
    values = np.random.default_rng(0).random(2_000_000).astype(np.float32)
    for i in range(24):
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values), 2000)})
        pq.write_table(table, tmp_path / f"{i:02}.parquet")
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
