"""What sources have in common: row numbers, columns that are chosen, and how they stand in a pipeline."""

from __future__ import annotations

import threading
import time
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from cedar.core.errors import PipelineError
from cedar.datasets.base import BaseSource, Chunk, Read, Split, offsets_of, once, selected
from cedar.datasets.custom import adapt
from cedar.datasets.table import from_arrow


def test_rows_are_numbered_on_from_the_split_unless_a_chunk_says_otherwise():
    columns = {"x": pa.array([5, 6, 7])}
    assert offsets_of(Chunk(columns), 40).tolist() == [40, 41, 42]
    assert offsets_of(Chunk(columns, np.array([3, 9, 27])), 40).tolist() == [3, 9, 27]
    assert offsets_of(Chunk({}, length=2), 7).tolist() == [7, 8]


def test_columns_come_in_the_order_asked_for_and_others_are_refused_by_name():
    types = {"a": 1, "b": 2, "c": 3}
    assert list(selected(types, ["c", "a"], "read()").items()) == [("c", 3), ("a", 1)]
    assert selected(types, None, "read()") == types
    assert selected(types, [], "read()") == {}
    with pytest.raises(PipelineError, match=r"there is no column 'bb'.*") as error:
        selected(types, ["bb"], "read()")
    assert "read()" in str(error.value)


class Least:
    """No more than a source must have."""

    def splits(self) -> list[Split]:
        return [Split()]

    def read(self, split: Split) -> Any:
        yield {"x": [1]}


class Ours(BaseSource):
    def splits(self) -> list[Split]:
        return [Split()]

    def read(self, split: Split) -> Any:
        yield Chunk({"x": pa.array([1])})


def test_a_source_that_says_nothing_of_itself_is_named_by_its_type():
    read = Read(adapt(Least()))
    assert (read.label(), read.schema(), read.parameters()) == ("from_source(Least)", None, {"source": "1 splits"})
    assert read.calls_functions
    ours = Ours()
    assert (ours.describe(), ours.url(3), ours.url_of(3, 1)) == ("Ours", "Ours", "Ours")
    assert (ours.schema(), ours.row_bytes, ours.identity()) == (None, None, None)


def test_a_source_that_says_more_is_asked():
    read = Read(from_arrow(pa.table({"x": [1, 2]})))
    assert (read.label(), read.schema()) == ("from_arrow(2 rows)", {"x": pa.int64()})
    assert read.parameters() == {"source": "2 rows of x: int64"}
    assert not read.calls_functions


class Thing:
    def __init__(self) -> None:
        self.made = 0

    @once
    def value(self) -> int:
        time.sleep(0.01)
        self.made += 1
        return self.made

    @once
    def twice(self) -> int:
        return 2 * self.value


def test_it_is_made_once_also_by_many_threads():
    thing = Thing()
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(thing.twice)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [2] * 8
    assert thing.made == 1


def test_instances_have_their_own():
    first, second = Thing(), Thing()
    first.made = 5
    assert (first.value, second.value) == (6, 1)


def test_what_is_known_travels():
    thing = Thing()
    assert thing.value == 1
    other = cloudpickle.loads(cloudpickle.dumps(thing))
    assert other.value == 1
    assert other.twice == 2
    assert Thing.value is Thing.__dict__["value"]
