"""What two runs gave, compared bit by bit, and told by where they differ first."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest

import cedar
import cedar.testing
from cedar.testing.compare import blocks_of, first_difference, plain
from tests.testing.toy_numbers import HERE, numbers


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
    assert first_difference([batch] * 2, [batch] * 3, "row") == "row 2: unexpected; expected 2 in all"
    assert first_difference([batch] * 2, [batch]) == "batch 1: missing; expected 2 in all"
    assert first_difference([], []) is None


def test_jagged_columns_and_tensors_compare_by_what_they_hold() -> None:
    def jagged(last: int) -> Any:
        return cedar.JaggedTensor(np.array([1, 2, last]), np.array([0, 1, 3]))

    assert plain(jagged(3)) == plain(jagged(3))
    assert first_difference([{"x": jagged(3)}], [{"x": jagged(4)}]) == "batch 0, column 'x', row 1: [2, 4], not [2, 3]"


def test_a_pipeline_that_is_deterministic_passes_everywhere() -> None:
    p = numbers().map(lambda x, rng: x + int(rng.integers(9)), "x", random=True, dtype=int).shuffle(seed=3).batch(7)
    cedar.testing.assert_deterministic(p, seed=4)
    cedar.testing.assert_deterministic(p.repeat(), executors=HERE, batches=20)
    cedar.testing.assert_deterministic(numbers(10), executors=HERE)


def test_rows_that_depend_on_the_block_are_found() -> None:
    def centered(columns: Any) -> Any:
        return {"x": columns["x"] - columns["x"].min()}

    p = numbers(2000).map(lambda x: x % 2 if x < 1000 else x, "x", dtype=int).map_batches(centered, "x", format="numpy")
    with pytest.raises(
        (AssertionError, cedar.PipelineError), match=r"in blocks of 7|depends on other rows|differs from"
    ):
        cedar.testing.assert_deterministic(p.batch(10), executors=HERE)
    hidden = numbers(2000).map_batches(lambda c: {"x": c["x"] + (len(c["x"]) > 64)}, "x", format="numpy")
    with pytest.raises(AssertionError, match=r"in blocks of 7 row\(s\) differs.*column 'x', row 0: 0, not 1") as caught:
        cedar.testing.assert_deterministic(hidden.batch(10), executors=HERE)
    assert "give map_batches size=" in str(caught.value)
    assert "test_compare.py" in str(caught.value)


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
        AssertionError, match=r"with 2, then 3, then 2 rank\(s\): \d+ of \d+ deliveries were repeated or differ"
    ):
        cedar.testing.assert_resumable(p, executors=["inline"], stops=[], worlds=(2, 3, 2))
