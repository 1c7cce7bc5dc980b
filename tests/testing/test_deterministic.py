"""assert_deterministic: what it finds, what it says of it, and what it lets pass."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

import cedar
import cedar.testing
from cedar.testing.deterministic import blocks_of
from tests.testing.toy_numbers import HERE, numbers


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
    assert "test_deterministic.py" in str(caught.value)


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
