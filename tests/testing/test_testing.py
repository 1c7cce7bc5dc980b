"""cedar.testing: what it finds, what it says of it, and what it leaves alone."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import cedar
import cedar.testing
from cedar.testing.compare import first_difference, plain
from cedar.testing.deterministic import blocks_of

HERE = ("inline", "threads")


def numbers(n: int = 60) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])


# ---- comparing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ({"x": np.arange(3)}, {"x": np.arange(3)}, None),
        ({"x": np.array([0.0, np.nan])}, {"x": np.array([0.0, np.nan])}, None),
        ({"x": np.array([0.0])}, {"x": np.array([-0.0])}, "batch 0, column 'x', row 0: -0.0, not 0.0"),
        ({"x": np.arange(3)}, {"x": np.arange(3.0)}, "column 'x', row 0: 0.0, not 0"),
        ({"x": np.zeros(2, np.int8)}, {"x": np.zeros(2, np.int16)}, "column 'x': of type int16, not int8"),
        ({"x": np.arange(3)}, {"x": np.arange(2)}, "column 'x': 2 rows, not 3"),
        ({"x": np.arange(3)}, {"y": np.arange(3)}, "columns ['y'], not ['x']"),
        ({"x": 1, "s": "a"}, {"x": 1, "s": "b"}, "column 's': 'b', not 'a'"),
        ({"x": [np.zeros(2), None]}, {"x": [np.zeros(2), 1]}, "column 'x', row 1: 1, not None"),
    ],
)
def test_the_first_difference_is_named(one: Any, other: Any, says: str | None) -> None:
    found = first_difference([one], [other])
    assert found is None if says is None else says in str(found)


def test_lengths_that_differ_are_named() -> None:
    batch = {"x": np.arange(2)}
    assert first_difference([batch] * 2, [batch] * 3, "row") == "row 2: there are more of them, not 2"
    assert first_difference([batch] * 2, [batch]) == "batch 1: there are no more of them, not 2"
    assert first_difference([], []) is None


def test_jagged_columns_and_tensors_compare_by_what_they_hold() -> None:
    def jagged(last: int) -> Any:
        return cedar.JaggedTensor(np.array([1, 2, last]), np.array([0, 1, 3]))

    assert plain(jagged(3)) == plain(jagged(3))
    assert first_difference([{"x": jagged(3)}], [{"x": jagged(4)}]) == "batch 0, column 'x', row 1: [2, 4], not [2, 3]"


# ---- deterministic ---------------------------------------------------------------------------------------------------


def test_a_pipeline_that_is_deterministic_passes_everywhere() -> None:
    p = numbers().map(lambda x, rng: x + int(rng.integers(9)), "x", random=True, dtype=int).shuffle(seed=3).batch(7)
    cedar.testing.assert_deterministic(p, seed=4)
    cedar.testing.assert_deterministic(p.repeat(), executors=HERE, batches=20)
    cedar.testing.assert_deterministic(numbers(10), executors=HERE)


def test_rows_that_depend_on_the_block_are_found() -> None:
    def centred(columns: Any) -> Any:
        return {"x": columns["x"] - columns["x"].min()}

    p = numbers(2000).map(lambda x: x % 2 if x < 1000 else x, "x", dtype=int).map_batches(centred, "x", format="numpy")
    with pytest.raises(
        (AssertionError, cedar.PipelineError), match=r"in blocks of 7|depends on other rows|differs from"
    ):
        cedar.testing.assert_deterministic(p.batch(10), executors=HERE)
    hidden = numbers(2000).map_batches(lambda c: {"x": c["x"] + (len(c["x"]) > 64)}, "x", format="numpy")
    with pytest.raises(AssertionError, match=r"in blocks of 7 row\(s\) differs.*column 'x', row 0: 0, not 1") as caught:
        cedar.testing.assert_deterministic(hidden.batch(10), executors=HERE)
    assert "give map_batches size=" in str(caught.value)
    assert "test_testing.py" in str(caught.value)


def test_state_between_calls_is_found() -> None:
    count = itertools.count()
    with pytest.raises(AssertionError, match=r"a second run differs from the first: row 0, column 'x': 5, not 0"):
        cedar.testing.assert_deterministic(numbers(5).map(lambda x: next(count), "x", dtype=int), executors=HERE)


def test_a_function_that_knows_its_process_is_found() -> None:
    main = threading.main_thread
    p = numbers(5).map(lambda x: x + (threading.current_thread() is main()), "x", dtype=int)
    with pytest.raises(AssertionError, match=r"executor='threads' differs from the first: row 0, column 'x': 0, not 1"):
        cedar.testing.assert_deterministic(p, executors=["threads"])


def test_blocks_are_as_small_as_asked() -> None:
    seen: list[int] = []

    def note(columns: Any) -> Any:
        seen.append(len(columns["x"]))
        return columns

    with blocks_of(5), numbers().map_batches(note, "x", format="numpy").batch(10).loader(executor="inline") as loader:
        assert len(list(loader)) == 6
    assert max(seen[-12:]) == 5


# ---- resumable -------------------------------------------------------------------------------------------------------


def test_a_pipeline_resumes_anywhere() -> None:
    cedar.testing.assert_resumable(numbers().shuffle(seed=2).batch(4, last="keep"), stops=3)
    cedar.testing.assert_resumable(
        numbers().filter(lambda x: x % 3 > 0, "x").batch(4), executors=HERE, worlds=(3, 1, 2)
    )
    cedar.testing.assert_resumable(numbers(9), executors=HERE, stops=[0, 1, 5, 9])
    cedar.testing.assert_resumable(numbers().repeat().batch(4), executors=HERE, batches=40)
    cedar.testing.assert_resumable(numbers().batch(7, last="pad"), executors=HERE)


def test_an_iterator_that_begins_elsewhere_each_time_is_found() -> None:
    starts = itertools.count(0, 1000)

    def rows() -> Any:
        start = next(starts)
        return ({"x": start + i} for i in range(20))

    with pytest.raises(AssertionError, match=r"differs from one run: batch 0, column 'x', row 0: \d+, not \d+"):
        cedar.testing.assert_resumable(cedar.from_iterable(rows).batch(4), executors=HERE)


class Forgets:
    """A source that gives other rows after it was read for a while."""

    def splits(self) -> list[Any]:
        return [cedar.datasets.base.Split(file=i, rows=10, bytes=80) for i in range(4)]

    def read(self, split: Any) -> Any:
        import pyarrow as pa

        Forgets.reads += 1
        return [pa.table({"x": [split.file * 10 + i + 100 * (Forgets.reads > 12) for i in range(10)]})]

    reads = 0


def test_batches_that_other_ranks_do_not_have_are_counted() -> None:
    p = cedar.from_source(Forgets()).batch(5)
    with pytest.raises(
        AssertionError, match=r"with 2, then 3, then 2 rank\(s\): \d of \d deliveries came twice, or are"
    ):
        cedar.testing.assert_resumable(p, executors=["inline"], stops=[], worlds=(2, 3, 2))


# ---- killing ---------------------------------------------------------------------------------------------------------


def test_workers_are_killed_and_nothing_is_lost() -> None:
    p = numbers(3000).map(abs, "x", dtype=int).shuffle(seed=1).batch(16)
    with p.loader(executor="inline") as loader:
        whole = [batch["x"].tolist() for batch in loader]
    with cedar.testing.kill_workers(rate=15, seed=5, most=4) as kills, p.loader(executor="processes", workers=2) as run:
        for _ in range(30):
            assert [batch["x"].tolist() for batch in run] == whole
            run.set_epoch(0)
            if kills.count == 4:
                break
        report = run.report()
    assert kills.count == len(kills.times) == 4
    assert report.restarts <= 4
    assert all("SIGKILL" in death for death in report.deaths)
    assert not any(thread.name == "cedar-killer" for thread in threading.enumerate())


def test_what_runs_after_it_loses_no_worker() -> None:
    p = cedar.from_items([{"x": i} for i in range(400)]).map(abs, "x", dtype=int).batch(20)
    for seed in range(5):
        with p.loader(executor="processes", workers=2, plan="off") as run:  # its workers are there for the next one
            assert sum(len(batch["x"]) for batch in run) == 400
        with cedar.testing.kill_workers(rate=1e6, seed=seed, most=1) as kills:
            while not kills.count:
                time.sleep(0)
        with p.loader(executor="processes", workers=2, plan="off") as run:
            assert sum(len(batch["x"]) for batch in run) == 400
        assert run.report().restarts == 0


def test_a_rate_is_above_zero() -> None:
    with pytest.raises(cedar.PipelineError, match=r"kill_workers\(rate=0\)"), cedar.testing.kill_workers(rate=0):
        pass


@pytest.mark.parametrize(
    ("call", "ends"),
    [("crash()", -11), ("crash('exit')", 3), ("crash('kill')", -9), ("crash('memory')", -9), ("hang('lock')", None)],
)
def test_trouble_is_what_it_says(call: str, ends: int | None) -> None:
    code = f"import cedar.testing as t; print(1, flush=True); t.{call}"
    process: Any = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout.read(1) == b"1"
        if ends is None:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        else:
            assert process.wait(60) == ends
    finally:
        process.kill()
        process.communicate()


def test_a_way_that_is_not_there() -> None:
    for call in (cedar.testing.crash, cedar.testing.hang):
        with pytest.raises(cedar.PipelineError, match="there is no such way"):
            call("slowly")


def test_its_names_are_there_and_importing_it_imports_little() -> None:
    assert all(callable(getattr(cedar.testing, name)) for name in cedar.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cedar.testing.nothing
    code = "import sys, cedar.testing; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
