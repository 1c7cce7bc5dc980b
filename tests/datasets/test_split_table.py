from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import SourceError
from cedar.datasets.base import Split
from cedar.datasets.custom import adapt
from cedar.datasets.split_table import SplitTable

NUMBER = st.integers(0, 1 << 40)
MAYBE = st.none() | NUMBER
SPLITS = st.lists(st.builds(Split, NUMBER, NUMBER, MAYBE, MAYBE, MAYBE, NUMBER, st.booleans()), max_size=30)
FIELDS = ("file", "start", "stop", "rows", "bytes", "part", "streaming")


def as_columns(splits: list[Split]) -> SplitTable:
    """The same splits, of which the table has no objects."""
    columns = {f: [-1 if (v := getattr(s, f)) is None else v for s in splits] for f in FIELDS}
    kinds = dict.fromkeys(FIELDS, np.int64) | {"streaming": bool}
    return SplitTable(**{f: np.array(values, dtype=kinds[f]) for f, values in columns.items()})


@given(SPLITS, st.data())
def test_a_table_is_the_list_of_its_splits(splits: list[Split], data: st.DataObject) -> None:
    for table in (as_columns(splits), SplitTable.of(splits), pickle.loads(pickle.dumps(as_columns(splits)))):
        assert list(table) == splits
        assert table == splits
        assert len(table) == len(splits)
        assert [table[i] for i in range(-len(splits), len(splits))] == splits * 2
        low, high = (data.draw(st.integers(-35, 35)) for _ in range(2))
        assert list(table[low:high]) == splits[low:high]
        chosen = np.array([split.streaming for split in splits], dtype=bool)
        assert list(table[chosen]) == [split for split in splits if split.streaming]
        assert all(type(getattr(s, f)) in (int, bool, type(None)) for s in table for f in FIELDS)
        assert [repr(split) for split in table] == [repr(split) for split in splits]


@given(SPLITS)
def test_what_is_known_of_all_is_what_the_splits_say(splits: list[Split]) -> None:
    both = [s for s in splits if s.rows is not None and s.bytes is not None]
    for table in (as_columns(splits), SplitTable.of(splits)):
        assert table.streams == any(s.streaming for s in splits)
        assert table.counted == all(s.rows is not None for s in splits)
        assert table.known_rows == sum(s.rows or 0 for s in splits)
        assert table.known_bytes == sum(s.bytes or 0 for s in splits)
        assert table.max_rows == max((s.rows or 0 for s in splits), default=0)
        assert table.measured() == ((sum(s.rows or 0 for s in both), sum(s.bytes or 0 for s in both)) if both else None)
        for file in {s.file for s in splits}:
            assert list(table[table.column("file") == file]) == [s for s in splits if s.file == file]


def test_single_values_are_those_of_every_split_and_take_no_room_for_each() -> None:
    table = SplitTable(file=np.arange(3), rows=10)
    assert list(table) == [Split(file=i, rows=10) for i in range(3)]
    assert list(SplitTable(streaming=True, length=2)) == [Split(streaming=True)] * 2
    assert len(pickle.dumps(SplitTable(rows=10, length=1 << 40))) < 10_000


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({"rows": np.arange(3), "file": np.arange(2)}, r"arrays of different lengths: \[2, 3\]"),
        ({"rows": np.arange(3), "length": 2}, r"arrays of different lengths: \[2, 3\]"),
        ({"rows": 3}, "only single values, and no length="),
        ({"rows": np.array([1.5])}, "rows= takes integers, one or an array of them, not float64"),
        ({"file": ["a"]}, "file= takes integers"),
        ({"streaming": np.array([2])}, "streaming= takes booleans"),
        ({"rows": np.zeros((2, 2), dtype=int)}, r"not int64, shape \(2, 2\)"),
        ({"rows": np.array([1 << 63], dtype=np.uint64)}, "rows= has numbers of more than 63 bits"),
    ],
)
def test_what_is_no_table_is_refused(given_: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SplitTable(**given_)


def test_a_place_beyond_the_end_is_none() -> None:
    for place in (2, -3):
        with pytest.raises(IndexError):
            SplitTable(length=2)[place]


class Own:
    """A user's source, whose rows say which split they are of."""

    def __init__(self, splits: Any) -> None:
        self.listed = splits

    def splits(self) -> Any:
        return self.listed

    def read(self, split: Any) -> Any:
        file, start = (split.file, split.start) if isinstance(split, Split) else (split, 0)
        yield {"file": np.array([file]), "start": np.array([start])}


def rows_of(source: Any) -> list[tuple[int, int]]:
    """What is read of every split, in order."""
    chunks = [chunk.columns for split in source.splits() for chunk in source.read(split)]
    return [(int(c["file"][0].as_py()), int(c["start"][0].as_py())) for c in chunks]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_splits_of_a_users_source_are_found_by_file_and_start(places: list[tuple[int, int]]) -> None:
    file, start = (np.array(column) for column in zip(*places, strict=True))
    for listed in (SplitTable(file=file, start=start), [Split(f, s) for f, s in places]):
        source = adapt(Own(listed))
        if len(set(places)) == len(places):
            assert rows_of(source) == places
            continue
        second = next(i for i, place in enumerate(places) if place in places[:i])
        first = places.index(places[second])
        with pytest.raises(SourceError, match=f"splits {first} and {second} both have file {places[second][0]}"):
            source.splits()


def test_a_range_is_not_made_objects_of() -> None:
    source = adapt(Own(range(5, 11, 2)))
    assert list(source.splits()) == [Split(i, part=i) for i in range(3)]
    assert rows_of(source) == [(5, 0), (7, 0), (9, 0)]
