"""assert_resumable: what it finds, what it says of it, and what it lets pass."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import cedar
import cedar.testing
from tests.testing.toy_numbers import HERE, numbers


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
