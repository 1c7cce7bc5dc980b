from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import cedar
from cedar.core.columns import UNKNOWN, TensorType, type_of
from cedar.core.errors import PipelineError, RowError
from cedar.datasets.base import Split
from cedar.datasets.items import from_items, from_iterable
from tests.datasets.reading import column, read_keyed, read_rows, traveled


class Squares:
    """A map-style dataset that counts what is asked of it."""

    def __init__(self, n: int, bad: int | None = None) -> None:
        self.n, self.bad = n, bad
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.asked.append(index)
        if index == self.bad:
            raise OSError("cannot decode")
        return {"x": index * index, "image": np.full((2, 3), index, dtype=np.uint8)}


class Many(Squares):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[i] for i in indices]


def test_a_list_of_dicts():
    rows = [{"x": i, "name": f"n{i}", "tags": list(range(i % 3)), "gap": None if i % 2 else 0.5} for i in range(2500)]
    source = from_items(rows)
    assert [(s.file, s.start, s.rows) for s in source.splits()] == [(0, 0, 1024), (0, 1024, 1024), (0, 2048, 452)]
    assert read_keyed(source) == [((0, i), row) for i, row in enumerate(rows)]
    assert source.schema() == {
        "x": pa.int64(),
        "name": pa.large_string(),
        "tags": pa.large_list(pa.int64()),
        "gap": pa.float64(),
    }
    assert read_rows(traveled(source)) == rows


@pytest.mark.parametrize("kind", [Squares, Many])
def test_a_map_style_dataset(kind):
    dataset = kind(70)
    source = from_items(dataset)
    assert source.schema() == {"x": UNKNOWN, "image": UNKNOWN}
    assert set(dataset.asked) == {0}
    splits = source.splits()
    assert [(s.start, s.rows) for s in splits] == [(0, 32), (32, 32), (64, 6)]
    (chunk,) = source.read(splits[2])
    assert type_of(chunk.columns["image"]) == TensorType((2, 3), "uint8")
    assert chunk.columns["image"].shape == (6, 2, 3)
    assert column(source, "x") == [i * i for i in range(70)]


def test_torch_datasets_of_tuples():
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(4, 3), torch.tensor([0, 1, 0, 1]))
    source = from_items(dataset)
    (chunk,) = source.read(source.splits()[0])
    assert type_of(chunk.columns["0"]) == TensorType((3,), "float32")
    assert chunk.columns["0"].tolist() == torch.arange(12.0).reshape(4, 3).tolist()
    assert chunk.columns["1"].to_pylist() == [0, 1, 0, 1]


def test_no_items():
    source = from_items([])
    assert source.splits() == []
    assert source.schema() is None
    assert source.row_bytes is None


@pytest.mark.parametrize(("width", "rows"), [(1, 32), (1 << 15, 32), (1 << 17, 8), (1 << 23, 1)])
def test_large_items_are_in_splits_of_few(width: int, rows: int) -> None:
    class Images:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": np.zeros(width, np.uint8)}

    assert from_items(Images()).splits()[0].rows == rows
    assert from_items([Images()[0]] * 100).splits()[0].rows == min(100, max(1, (1 << 20) // width))


def test_types_do_not_depend_on_the_split_that_is_read_first():
    source = from_items([{"x": 1.5}] * 1024 + [{"x": 1}] * 10)
    (chunk,) = source.read(source.splits()[1])
    assert chunk.columns["x"].type == pa.float64()


@pytest.mark.parametrize("kind", [Squares, Many])
def test_an_item_that_raises_is_named(kind):
    source = from_items(kind(200, bad=150))
    splits = source.splits()
    with pytest.raises(RowError, match=r"(Squares|Many)\[150\] raised OSError: cannot decode") as error:
        list(source.read(splits[4]))
    assert isinstance(error.value.__cause__, OSError)
    assert error.value.row is not None
    assert error.value.row.row == 150


def test_getitems_that_loses_items():
    class Short(Squares):
        def __getitems__(self, indices):
            return [self[i] for i in indices[1:]]

    with pytest.raises(RowError, match="__getitems__ returned 0 of 1 items"):
        read_rows(from_items(Short(5)))


def test_row_bytes_is_a_power_of_two():
    assert from_items([{"x": 1, "y": "abc"}]).row_bytes in (16, 32)
    assert from_items(Squares(3)).row_bytes == 16
    assert from_items(Squares(3)).splits()[0].bytes == 48


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (pl.DataFrame({"x": [1]}), "from_polars"),
        (pa.table({"x": [1]}), "from_arrow"),
        ({"x": [1]}, "from_numpy"),
        ((i for i in range(3)), "from_iterable"),
        (iter([1]), "from_iterable"),
        ("abc", "read_text"),
        (3, "from_iterable"),
        ({1, 2}, "a list"),
    ],
)
def test_what_is_no_list_of_rows(value, fix):
    with pytest.raises(PipelineError, match="from_items takes a list or a dataset") as error:
        from_items(value)
    assert fix in (error.value.fix or "")
    assert error.value.site is not None
    assert error.value.site.file == __file__


def test_declared_types_hold_where_the_size_of_a_row_is_guessed_too():
    value = decimal.Decimal("1e41")
    source = from_items([{"x": value}], dtypes={"x": pa.decimal256(58, 0)})
    assert source.row_bytes is not None
    assert source.schema() == {"x": pa.decimal256(58, 0)}


def test_a_list_with_a_getitem_of_its_own_gives_what_that_returns():
    class Doubled(list):
        def __getitem__(self, index):
            return {"x": 2 * super().__getitem__(index)}

    source = from_items(Doubled([1, 2, 3]))
    assert column(source, "x") == [2, 4, 6]
    assert source.own_code


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
