from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError, RowError
from cedar.datasets.base import Split
from cedar.datasets.iterable import from_iterable
from tests.datasets.reading import read_keyed, read_rows, traveled


def count(n: int):
    return lambda: ({"x": i, "y": str(i)} for i in range(n))


def test_one_streaming_split_in_chunks():
    source = from_iterable(count(5000))
    assert source.splits() == [Split(streaming=True)]
    assert read_keyed(source) == [((0, i), {"x": i, "y": str(i)}) for i in range(5000)]
    sizes = [chunk.rows for chunk in source.read(source.splits()[0])]
    assert sizes[0] == 64
    assert max(sizes) == 1024


def test_every_pass_begins_anew():
    source = from_iterable(count(10))
    assert read_rows(source) == read_rows(source) == read_rows(traveled(source))


def test_rows_are_taken_as_they_are_needed():
    taken = []

    def make():
        for i in range(10_000):
            taken.append(i)
            yield {"x": i}

    source = from_iterable(make)
    chunks: Any = source.read(source.splits()[0])
    next(chunks)
    assert len(taken) == 64
    chunks.close()


def test_the_iterator_is_closed():
    closed = []

    def make():
        try:
            yield from ({"x": i} for i in range(10_000))
        finally:
            closed.append(True)

    chunks: Any = from_iterable(make).read(Split(streaming=True))
    next(chunks)
    chunks.close()
    assert closed == [True]


def test_what_is_not_a_dict_and_nothing():
    assert read_rows(from_iterable(lambda: iter([1, 2]))) == [{"item": 1}, {"item": 2}]
    assert read_rows(from_iterable(lambda: [(1, "a")])) == [{"0": 1, "1": "a"}]
    assert read_rows(from_iterable(lambda: iter([]))) == []


def test_a_misfit_names_the_row():
    source = from_iterable(lambda: ({"x": i if i < 300 else "a"} for i in range(400)))
    with pytest.raises(RowError, match="column 'x': 'a'") as error:
        read_rows(source)
    assert error.value.row is not None
    assert error.value.row.row == 300
    widened = from_iterable(lambda: ({"x": i if i < 300 else 0.5} for i in range(400)), dtypes={"x": "float64"})
    assert read_rows(widened)[300] == {"x": 0.5}


def test_types_stay_those_of_the_first_pass():
    rows: list[dict[str, object]] = [{"x": 1}]
    source = from_iterable(lambda: iter(rows))
    read_rows(source)
    rows[0] = {"x": "a"}
    with pytest.raises(RowError, match="does not fit int64"):
        read_rows(source)


def test_an_iterator_that_raises():
    def make():
        yield from ({"x": i} for i in range(70))
        raise OSError("connection lost")

    with pytest.raises(RowError, match="the iterator raised OSError: connection lost") as error:
        read_rows(from_iterable(make))
    assert error.value.row is not None
    assert error.value.row.row == 70
    assert isinstance(error.value.__cause__, OSError)


def test_make_iterator_that_raises():
    def make():
        raise OSError("no connection")

    with pytest.raises(RowError, match="make_iterator raised OSError"):
        read_rows(from_iterable(make))
    with pytest.raises(RowError, match="make_iterator raised TypeError"):
        read_rows(from_iterable(lambda: 3))  # type: ignore[arg-type, return-value]


def test_an_iterator_instead_of_a_function():
    with pytest.raises(PipelineError, match="got generator, an iterator, which can be read once only") as error:
        from_iterable(count(3)())
    assert "from_iterable(make), not from_iterable(make())" in (error.value.fix or "")
    with pytest.raises(PipelineError, match="takes a function that returns an iterator, not list") as error:
        from_iterable([{"x": 1}])  # type: ignore[arg-type]
    assert "from_items" in (error.value.fix or "")


def test_a_function_that_returns_the_same_iterator_again():
    generator = count(3)()
    source = from_iterable(lambda: generator)
    assert len(read_rows(source)) == 3
    with pytest.raises(PipelineError, match="returned the same iterator twice"):
        read_rows(source)


def empty():
    return iter([])


def test_describe():
    assert from_iterable(lambda: iter([])).describe() == "from_iterable(<lambda>)"
    assert from_iterable(empty).describe() == "from_iterable(empty)"


def test_an_iterator_that_fills_one_dict_again():
    def rows():
        row = {}
        for i in range(200):
            row["x"] = i
            yield row

    class Items:
        def __init__(self):
            self.row = {}

        def __len__(self):
            return 200

        def __getitem__(self, i):
            self.row["x"] = i
            return self.row

    wanted = [{"x": i} for i in range(200)]
    assert list(cedar.from_iterable(rows).loader()) == list(cedar.from_items(Items()).loader()) == wanted


def test_declared_types_hold_without_rows_and_the_first_rows_are_made_once():
    assert from_iterable(lambda: iter([]), dtypes={"x": int}).schema() == {"x": pa.int64()}
    assert from_iterable(lambda: iter([])).schema() is None
    begun = []

    def make():
        begun.append(1)
        yield from ({"x": i, "y": str(i)} for i in range(100))

    source = from_iterable(make, dtypes={"x": "float32"})
    for _ in range(2):
        assert source.schema() == {"x": pa.float32(), "y": pa.large_string()}
    elsewhere = traveled(source)
    for passes in (1, 2):
        assert [row["x"] for row in read_rows(source)] == list(range(100)) == [row["x"] for row in read_rows(elsewhere)]
        assert len(begun) == passes


def test_first_rows_that_fail_are_the_error_of_the_run():
    def make():
        raise ValueError("no rows today")
        yield {"x": 1}

    pipeline = cedar.from_iterable(make, dtypes={"x": int})
    assert pipeline.schema == {"?": "?"}
    with pytest.raises(RowError, match="no rows today"):
        list(pipeline)
