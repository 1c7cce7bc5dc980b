"""Measuring a pipeline, operator by operator."""

import itertools
import time

import numpy as np
import pytest

import cedar
from cedar import col
from cedar.core.errors import PipelineError, RowError
from cedar.engine.profiling import profile
from cedar.profile import Machine


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """Nothing starts a process here to ask what it costs."""
    monkeypatch.setattr("cedar.engine.profiling.machine", lambda: Machine(cores=2, memory=1 << 30))


def rows(n=200):
    return cedar.from_items([{"x": i, "y": float(i)} for i in range(n)])


def measured(pipeline, seconds=5.0):
    """Figures by label."""
    return {figures.label: figures for figures in profile(pipeline.node, seconds).operators.values()}


def test_each_operator_is_seen_by_itself():
    found = measured(
        rows().filter(col("x") >= 50).with_columns(z=col("x") * 2).map(lambda z: [z] * 3, "z", into="w").drop("y")
    )
    assert [figures.rows for figures in found.values()] == [200, 200, 150, 150, 150]
    source, kept, doubled, wide, dropped = found.values()
    assert kept.keep == 0.75
    assert source.columns == {"x": 8, "y": 8}
    assert doubled.columns == {"z": 8}
    assert wide.bytes_out > wide.bytes_in
    assert dropped.bytes_out < dropped.bytes_in
    assert all(figures.wall > 0 for figures in found.values())


def test_batches_and_what_follows_them_are_seen():
    found = measured(rows().shuffle(window=64).batch(50).map(lambda x: x + 1, "x").map(np.cumsum, "y", into="s"))
    assert found["map(<lambda>)"].rows == 200
    assert found["map(cumsum)"].calls % 4 == 0, "a batch is a call"


def test_the_numbers_are_those_of_the_pipeline_as_written():
    pipeline = rows().map(str, "x").map(len, "x")
    found = profile(pipeline.node, 5.0)
    assert sorted(found.operators) == [0, 1, 2]
    assert found.pipeline == pipeline.subject.digest
    assert (found.rows, found.executor, found.workers) == (200, "inline", 1)


class Loads:
    """A model that takes its time, once for each thread that needs one."""

    def __init__(self):
        time.sleep(0.05)

    def __call__(self, x):
        return x


def test_loading_a_model_is_not_part_of_its_cost_per_row():
    found = measured(rows(20).map(Loads, "x"))
    assert found["map(Loads)"].wall < 0.05 / 20
    assert found["map(Loads)"].calls >= 2


def test_a_first_call_that_is_slow_does_not_count():
    slow = [True]

    def first(x):
        if slow:
            slow.clear()
            time.sleep(0.2)
        return x

    found = measured(rows(10).map(first, "x", dtype="int64"))
    assert found["map(first)"].wall < 0.2 / 10


# ---- the time holds --------------------------------------------------------------------------------------------------


def endless():
    return cedar.from_iterable(lambda: ({"x": i} for i in itertools.count()))


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda: endless().map(str, "x"),
        lambda: rows().repeat(),
        lambda: endless().shuffle().batch(4).map(np.cumsum, "x"),
        lambda: endless().filter(lambda x: False, "x").map(str, "x"),
    ],
    ids=["iterator", "repeat", "window", "nothing left"],
)
def test_a_pipeline_without_end_ends_with_the_time(pipeline):
    found = profile(pipeline().node, 0.1)
    assert found.rows > 0
    assert found.seconds < 60


def test_operators_that_rows_do_not_reach_in_time_are_seen_on_the_sample():
    def nap(x):
        time.sleep(0.001)
        return x

    found = measured(rows(2000).map(nap, "x").shuffle().batch(500).map(np.cumsum, "y"), seconds=0.05)
    assert found["map(cumsum)"].calls >= 2
    assert found["map(nap)"].rows == found["from_items(list of 2000)"].rows


# ---- what it must stand ----------------------------------------------------------------------------------------------


def test_no_rows_at_all_are_no_figures():
    found = profile(cedar.from_items([]).batch(2).node, 1.0)
    assert found.operators == {}
    assert "nothing was measured" in found.table()


def test_an_operator_without_rows_is_left_out():
    assert "map(str)" not in measured(rows().filter(col("x") < 0).map(str, "x"))


def test_what_an_operator_raises_is_the_error_of_a_run():
    def bad(x):
        raise ValueError("no such luck")

    pipeline = rows().map(bad, "x", dtype="int64")
    with pytest.raises(RowError) as raised:
        profile(pipeline.node, 1.0)
    assert isinstance(raised.value.__cause__, ValueError)
    assert "test_profiling.py" in str(raised.value)
    assert raised.value.row.row == 0
    assert raised.value.row.epoch == 0


def test_a_source_that_raises_is_the_error_of_a_run():
    def broken():
        yield {"x": 1}
        raise OSError("gone")

    with pytest.raises(RowError, match="gone"):
        profile(cedar.from_iterable(broken).node, 1.0)


def test_rows_that_are_skipped_do_not_stop_it(tmp_path):
    def odd(x):
        if x % 2:
            raise ValueError
        return x

    policy = cedar.Skip(max_count=1, quarantine=str(tmp_path))
    found = measured(rows().map(odd, "x", on_error=policy, dtype="int64"))
    assert found["map(odd)"].keep == 0.5
    assert list(tmp_path.iterdir()) == []


def test_random_operators_are_measured():
    found = measured(rows().map(lambda x, rng: x + rng.integers(9), "x", random=True, name="jitter"))
    assert len(found) == 2


def test_stateful_operators_shared_branches_and_several_sources_are_measured():
    shared = rows().map(str, "x")
    both = cedar.concat(shared.map(len, "x"), shared.map(lambda x: len(x) * 2, "x"))
    mixed = cedar.mix([(both, 0.5), (rows(100).select("x", "y"), 0.5)], stop="all")
    found = measured(mixed.sample(n=50).take(40).batch(8))
    assert found["map(str)"].rows > 0
    assert found["from_items(list of 100)"].rows > 0


def test_a_cache_neither_keeps_nor_gives_anything(tmp_path):
    calls = []

    def counted(x):
        calls.append(x)
        return x

    pipeline = rows(50).map(counted, "x", dtype="int64").cache(str(tmp_path / "kept"))
    assert measured(pipeline)["map(counted)"].rows >= 50
    assert not (tmp_path / "kept").exists()
    calls.clear()
    measured(pipeline)
    assert len(calls) >= 50


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "2", None, True])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(PipelineError, match="seconds="):
        profile(rows().node, seconds)


# ---- the GIL ---------------------------------------------------------------------------------------------------------


def test_who_holds_the_gil_is_told_where_threads_ran_long_enough():
    def nap(x):
        time.sleep(0.005)
        return x

    found = measured(rows(100).map(nap, "x", dtype="int64").drop("y"))
    assert found["map(nap)"].gil == 1.0, "it runs Python for every row, and cores that idle do not say otherwise"
    assert next(figures for label, figures in found.items() if label.startswith("drop")).gil == 0.0
    assert all(figures.gil is None for figures in measured(rows(5).drop("y")).values())


def test_on_one_core_nobody_can_tell(monkeypatch):
    monkeypatch.setattr("cedar.engine.profiling.machine", lambda: Machine(cores=1, memory=1 << 30))
    assert all(figures.gil is None for figures in measured(rows().map(str, "x")).values())


def test_a_call_of_an_expression_costs_something_whatever_its_rows():
    found = measured(rows().with_columns(z=col("x") * 2).map(str, "x"))
    assert found["with_columns(z)"].call > 0
    assert found["map(str)"].call == 0
