from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from cedar import col, from_source
from cedar.core.columns import OBJECT, type_of
from cedar.core.errors import PipelineError, RowError, SourceError
from cedar.datasets.base import Chunk, Split
from cedar.datasets.custom import adapt
from cedar.datasets.items import from_items
from tests.datasets.reading import column, read_keyed, read_rows, traveled


class Made:
    """A source of two splits that yields what a function makes of each."""

    def __init__(self, make, splits=("a", "b")) -> None:
        self.make, self.listed = make, splits
        self.read_splits: list[Any] = []

    def splits(self):
        return self.listed

    def read(self, split):
        self.read_splits.append(split)
        return self.make(split)


ROWS = [{"x": 1, "s": "p"}, {"x": 2, "s": "q"}]
TABLE = pa.table({"x": [1, 2], "s": ["p", "q"]})


@pytest.mark.parametrize(
    "make",
    [
        lambda _: [TABLE],
        lambda _: TABLE,
        lambda _: TABLE.to_batches(),
        lambda _: TABLE.to_reader(),
        lambda _: iter([pl.DataFrame(TABLE)]),
        lambda _: pl.DataFrame(TABLE),
        lambda _: [{"x": [1, 2], "s": ["p", "q"]}],
        lambda _: {"x": np.array([1, 2]), "s": np.array(["p", "q"])},
        lambda _: [{"x": pa.array([1]), "s": ["p"]}, {"x": pa.array([2]), "s": ("q",)}],
        lambda _: [ROWS],
        lambda _: [ROWS[:1], ROWS[1:]],
        lambda _: ROWS,
        lambda _: (row for row in ROWS),
        lambda _: [Chunk({"x": pa.array([1, 2]), "s": pa.array(["p", "q"])})],
    ],
)
def test_what_read_may_yield(make):
    source = adapt(Made(make))
    assert read_keyed(source) == [((f, i), row) for f in (0, 1) for i, row in enumerate(ROWS)]
    assert read_rows(traveled(source)) == ROWS * 2
    backwards = adapt(Made(make))
    assert [row for _, row in read_keyed(backwards, [1, 0])] == ROWS * 2


def test_each_split_is_read_once_in_order():
    made = Made(lambda _: (row for row in ROWS))
    read_rows(adapt(made))
    assert made.read_splits == ["a", "b"]


def test_arrays_and_objects():
    made = Made(lambda _: [{"image": np.zeros((3, 4, 4), np.uint8), "any": np.array([1, "a", None], object)}])
    source = adapt(made)
    (chunk,) = source.read(source.splits()[0])
    assert chunk.columns["image"].shape == (3, 4, 4)
    assert type_of(chunk.columns["any"]) == OBJECT


def test_splits_that_are_split_objects_are_kept():
    listed = [Split(file=3, start=10, rows=2), Split(file=3, start=20, rows=2)]
    made = Made(lambda split: [{"x": [split.start, split.start + 1]}], listed)
    source = adapt(made)
    assert source.splits() == listed
    assert [key for key, _ in read_keyed(source)] == [(3, 10), (3, 11), (3, 20), (3, 21)]
    assert made.read_splits == listed


def test_offsets_of_chunks_are_kept():
    made = Made(lambda _: [Chunk({"x": pa.array([1, 2])}, np.array([5, 9]))], ["a"])
    assert [key for key, _ in read_keyed(adapt(made))] == [(0, 5), (0, 9)]


def test_files_of_chunks_are_kept():
    made = Made(lambda _: [Chunk({"x": pa.array([1, 2])}, np.zeros(2, np.int64), files=np.array([5, 9]))], ["a"])
    assert [key for key, _ in read_keyed(adapt(made))] == [(5, 0), (9, 0)]


def test_what_splits_say_of_themselves():
    class Piece:
        rows, bytes = 2, 100

    made = Made(lambda _: ROWS, [Piece(), "x"])
    assert [(s.rows, s.bytes) for s in adapt(made).splits()] == [(2, 100), (None, None)]


def _pieces(*lengths):
    return lambda split: ({"x": list(range(n)), "y": [0] * n} for n in (lengths if split.file == 1 else (10,)))


def _selectable(make, listed):
    class Selectable(Made):
        def select(self, columns):
            return _selectable(lambda split: ({c: given[c] for c in columns} for given in make(split)), listed)

    return Selectable(make, listed)


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize("made", [Made, _selectable])
@pytest.mark.parametrize(
    ("lengths", "gave"), [((11,), "at least 11"), ((10, 1), "at least 11"), ((4, 5), "9"), ((), "0")]
)
def test_a_split_that_miscounts_is_an_error(lengths, gave, made, executor):
    """Else rows would be lost: which ones, by the number of ranks and by where a resume continues."""
    source = made(_pieces(*lengths), [Split(file=i, rows=10) for i in range(3)])
    p = from_source(source).filter(col("x") < 3).batch(2)
    said = rf"split 1 \(file 1, .*: the split states 10 rows, but read\(\) returned {gave}\n"
    with pytest.raises(SourceError, match=said) as caught:
        list(p.loader(executor=executor, workers=2))
    assert "omit it" in caught.value.fix
    assert caught.value.site.file == __file__


def test_splits_that_count_rightly_or_not_at_all():
    listed = [Split(file=0, rows=10), Split(file=1), Split(file=2, rows=10)]
    assert len(read_rows(adapt(Made(_pieces(3, 9), listed)))) == 32
    listed = [Split(file=i, rows=10) for i in range(3)]
    assert len(read_rows(adapt(Made(_pieces(3, 7, 0), listed)))) == 30


def test_splits_with_the_same_keys():
    with pytest.raises(SourceError, match="splits 0 and 1 both have file 0 and start 0"):
        adapt(Made(lambda _: ROWS, [Split(), Split()])).splits()


def test_optional_methods():
    class Full(Made):
        row_bytes = 12

        def schema(self):
            return pa.schema([("x", pa.int32())])

        def url(self, file):
            return f"there/{file}"

        def digest(self):
            return "abc"

        def select(self, columns):
            return Made(lambda _: [pa.table({c: pa.array([7], pa.int32()) for c in columns})])

    source = adapt(Full(lambda _: [{"x": 1}]))
    assert source.schema() == {"x": pa.int32()}
    assert (source.url(3), source.digest(), source.row_bytes) == ("there/3", "abc", 12)
    assert source.describe() == "from_source(Full)"
    (chunk,) = source.read(source.splits()[0])
    assert chunk.columns["x"].type == pa.int32()
    assert read_rows(source.select(["y"])) == [{"y": 7}] * 2  # type: ignore[attr-defined]
    plain = adapt(Made(lambda _: ROWS))
    assert not plain.selects
    assert plain.schema() is None
    assert plain.digest() == "2 splits"
    assert plain.url(1) == "from_source(Made)"


def test_types_are_fixed_by_split_0_whichever_is_read_first():
    made = Made(lambda split: [{"x": 1.5 if split == "a" else 1}])
    source = adapt(made)
    assert column(source, "x") == [1.5, 1.0]
    source = adapt(made)
    (chunk,) = source.read(source.splits()[1])
    assert chunk.columns["x"].type == pa.float64()


def test_a_source_of_ours_is_kept():
    source = from_items([1])
    assert adapt(source) is source


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (object(), "object has no splits and no read method"),
        (type("Half", (), {"splits": lambda self: []})(), "Half has no read method"),
        (Made, "Made is a class: give an instance"),
    ],
)
def test_what_is_no_source(source, message):
    with pytest.raises(PipelineError, match=message) as error:
        adapt(source)
    assert "a source has splits()" in (error.value.fix or "")


def fail(*_: Any):
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda _: [3], SourceError, "read.. yields int"),
        (lambda _: [[1, 2]], SourceError, "read.. yields list"),
        (lambda _: None, SourceError, "read.. raised TypeError"),
        (fail, SourceError, r"from_source\(Made\), split 0: read.. raised OSError: no disk"),
        (lambda _: [{"x": [1, 2], "y": [1]}], SourceError, "columns differ in length: {'x': 2, 'y': 1}"),
        (lambda _: [{"x": [1]}, {"x": ["a"]}], RowError, "column 'x': 'a' .* does not fit int64"),
        (
            lambda _: [pa.table({"x": [1]}), pa.table({"x": ["a"]})],
            SourceError,
            "'x' is large_string here but was int64",
        ),
        (
            lambda _: [pa.table({"x": [1]}), pa.table({"y": [1]})],
            SourceError,
            "'x' is missing here but was int64 before",
        ),
        (lambda _: [{"x": object()}], SourceError, "column 'x': a column must be"),
        (lambda s: [{"x": 1 if s == "a" else "b"}], RowError, "column 'x': 'b' .* does not fit int64"),
    ],
)
def test_what_read_may_not_yield(make, kind, message):
    with pytest.raises(kind, match=message):
        read_rows(adapt(Made(make)))


def test_splits_that_raises():
    class Unlisted(Made):
        splits = fail

    with pytest.raises(SourceError, match="splits.. raised OSError: no disk"):
        adapt(Unlisted(None)).splits()


@pytest.mark.parametrize("method", ["url", "digest", "select"])
def test_a_method_that_raises_is_named(method):
    source = adapt(type("Broken", (Made,), {method: fail})(lambda split: [{"x": [1]}]))
    ask = {"url": lambda: source.url(0), "digest": source.digest, "select": lambda: source.select(["x"])}[method]
    with pytest.raises(SourceError, match=rf"from_source\(Broken\): {method}.. raised OSError: no disk"):
        ask()


def test_an_error_of_schema_names_the_users_line():
    class Untyped(Made):
        schema = fail

    with pytest.raises(SourceError, match=r"from_source\(Untyped\): schema\(\) raised OSError: no disk") as caught:
        from_source(Untyped(None)).batch(2).loader()
    assert caught.value.site.file == __file__
    assert "correct schema() of Untyped" in caught.value.fix


def test_a_split_whose_file_is_a_name_names_the_users_line():
    with pytest.raises(PipelineError, match=r"a field of a Split is not a number: .*a\.h5") as caught:
        list(from_source(Made(None, [Split(file="a.h5")])))
    assert caught.value.site.file == __file__
    assert "url(file)" in caught.value.fix
