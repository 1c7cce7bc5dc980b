from collections import UserDict

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN
from cedar.core.errors import PipelineError, RowError, Skip
from cedar.operators.base import Env
from cedar.operators.map import FilterFunction, Map
from tests.operators.toy_maps import XS
from tests.toy_blocks import SITE, bind, block, run, run_in_parts, same, values


def test_columns_in_and_out():
    assert values(run(Map(lambda x: x + 1, ("x",)), XS), "x") == [2, 3, 4]
    assert values(run(Map(lambda x, s: s * x, ("x", "s"), "y"), XS), "y") == ["a", "bb", "ccc"]
    several = run(Map(lambda x: (x, -x), ("x",), ("a", "b")), XS)
    assert list(several.columns) == ["x", "s", "a", "b"]
    assert values(several, "b") == [-1, -2, -3]
    assert values(run(Map(lambda row: row["s"] * row["x"], (), "y"), XS), "y") == ["a", "bb", "ccc"]


def test_a_tuple_for_all_columns_needs_into():
    with pytest.raises(PipelineError, match="a tuple for 2 columns") as caught:
        run(Map(lambda x, s: (x + 1, s), ("x", "s")), XS)
    assert "into=('x', 's') writes them all" in caught.value.fix
    assert caught.value.site == SITE
    assert values(run(Map(lambda x, s: (x, x), ("x", "s"), "x"), XS), "x") == [[1, 1], [2, 2], [3, 3]]
    assert values(run(Map(lambda x, s: (x, x), ("x", "s"), dtype=list[int]), XS), "x") == [[1, 1], [2, 2], [3, 3]]
    assert values(run(Map(lambda x, s: (x,), ("x", "s")), XS), "x") == [[1], [2], [3]]


def test_whole_rows():
    found = run(Map(lambda row: {"q": row["x"] / 2, "s": row["s"]}), XS)
    assert list(found.columns) == ["q", "s"]
    assert values(found, "q") == [0.5, 1.0, 1.5]
    assert run(Map(lambda row: {}), XS).columns == {}
    either = run(Map(lambda row: UserDict(q=row["x"]) if row["x"] > 1 else {"q": 0}), XS)
    assert values(either, "q") == [0, 2, 3], "rows may be of any mapping, such as BatchEncoding of transformers"
    rows = Block({}, XS.keys)
    assert values(run(Map(lambda row: {"n": len(row)}), rows), "n") == [0, 0, 0]


class Reuses:
    """Returns the same array each time, as functions that fill a buffer do."""

    def __init__(self):
        self.buffer = np.zeros((64, 64))

    def __call__(self, x):
        if x == 2:
            return self.buffer.astype("float32")
        self.buffer[:] = x
        return self.buffer


def test_large_arrays_are_copied_one_by_one():
    found = values(run(Map(Reuses, ("x",), "y"), XS), "y")
    assert [np.unique(y).tolist() for y in found] == [[1], [1], [3]]


def test_effects():
    assert Map(abs, ("x",)).effects().writes == frozenset("x")
    wall = Map(dict).effects()
    assert (wall.reads, wall.writes, wall.per_row, wall.rows) == (None, None, True, "1:1")
    assert Map(abs, ("x",), "y", on_error=Skip(refill=True)).effects().rows == "1:0..1"
    assert Map(abs, ("x",)).label() == "map(abs)"


def test_schema():
    known = {"x": pa.int64()}

    def annotated(x: float) -> float:
        return x / 2

    assert Map(annotated, ("x",)).schema(known) == {"x": pa.float64()}
    assert Map(abs, ("x",), "y").schema(known) == {"x": pa.int64(), "y": UNKNOWN}
    assert Map(abs, ("x",), "y", dtype="int8").schema(known) == {"x": pa.int64(), "y": pa.int8()}
    assert Map(dict).schema(known) is Map(abs, ("x",)).schema(None) is None
    with pytest.raises(PipelineError, match="there is no column 'y'; the columns are 'x'"):
        Map(abs, ("y",)).schema(known)


def noisy(x, rng):
    if x % 7 == 3:
        raise ValueError(x)
    return float(rng.random()) + x


@given(st.lists(st.integers(0, 50), min_size=1), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_the_size_of_a_block_never_shows(xs, cuts, refill):
    whole = block(x=xs)
    kernel = bind(Map(noisy, ("x",), random=True, dtype=float, on_error=Skip(refill=refill)), whole)
    found = kernel(whole, Env())
    assert same(found, run_in_parts(kernel, whole, cuts))
    good = [x for x in xs if x % 7 != 3]
    assert [int(v) for v in values(found, "x")] == good
    assert found.slots == len(xs)


def test_kernels_are_pickled_without_the_sample():
    kernel = bind(Map(lambda x: x + 1, ("x",)), block(x=list(range(64)), blob=[b"x" * 10_000] * 64))
    text = cloudpickle.dumps(kernel)
    assert len(text) < 20_000
    assert values(cloudpickle.loads(text)(XS, Env()), "x") == [2, 3, 4]


ROWS = block(x=[1, 2, 3], s=["a", "b", "c"])


def test_rows_that_stay():
    found = run(FilterFunction(lambda x: x != 2, ("x",)), ROWS)
    assert values(found, "s") == ["a", "c"]
    assert found.keys.row.tolist() == [0, 2]
    assert values(run(FilterFunction(lambda row: row["s"] > "a"), ROWS), "x") == [2, 3]
    assert run(FilterFunction(lambda x: True, ("x",)), ROWS) is ROWS
    assert run(FilterFunction(lambda x: False, ("x",)), ROWS).slots == 0


@pytest.mark.parametrize("kind", [np.bool_, torch.tensor, np.array, pa.scalar])
def test_bools_of_every_kind(kind):
    assert values(run(FilterFunction(lambda x: kind(x > 2), ("x",)), ROWS), "x") == [3]


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: x, "returned 1 (int), not True or False"),
        (lambda x: None, "returned None, not True or False"),
        (lambda x: "", "returned '' (str), not True or False"),
        (lambda x: np.array([True]), "returned an ndarray bool[1], not True or False"),
        (lambda x: 1 / (x - 1) > 0, "failed: ZeroDivisionError"),
    ],
)
def test_what_is_no_bool(fn, says):
    with pytest.raises(RowError) as caught:
        run(FilterFunction(fn, ("x",)), ROWS)
    assert says in caught.value.what
    assert (caught.value.row.row, caught.value.site) == (0, SITE)


def test_effects_and_schema():
    operator = FilterFunction(bool, ("x",))
    assert operator.effects().writes == frozenset()
    assert operator.effects().reads == frozenset("x")
    assert FilterFunction(bool).effects().reads is None
    assert operator.schema({"x": pa.int64()}) == {"x": pa.int64()}
    with pytest.raises(PipelineError, match="no column 'x'"):
        operator.schema({"y": pa.int64()})
    with pytest.raises(PipelineError, match="cannot be called") as caught:
        FilterFunction("x > 1")
    assert caught.value.site.file == __file__


def test_below_a_batch_one_bool_decides():
    keep = run(FilterFunction(lambda x: x.sum() == 6, ("x",)), ROWS, batched=True)
    assert values(keep, "x") == [1, 2, 3]
    dropped = run(FilterFunction(lambda row: row["x"].max() > 3), ROWS, batched=True)
    assert (dropped.slots, list(dropped.columns)) == (0, ["x", "s"])
    with pytest.raises(RowError, match="bool") as caught:
        run(FilterFunction(lambda x: x > 1, ("x",)), ROWS, batched=True)
    assert "batch starting at row 0" in str(caught.value)
    assert ".any()" in caught.value.fix
    failed = run(FilterFunction(lambda x: x.nothing, ("x",), Skip()), ROWS, batched=True)
    assert (len(failed), sorted(failed.dead)) == (0, [0, 1, 2])
    assert len(run(FilterFunction(lambda x: x.nothing, ("x",), Skip(refill=True)), ROWS, batched=True)) == 0


def fragile(x, rng):
    if x == 5:
        raise ValueError(x)
    return bool(rng.random() < 0.5)


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_the_size_of_a_block_never_shows_in_a_filter(xs, cuts, refill):
    whole = block(x=xs)
    kernel = bind(FilterFunction(fragile, ("x",), Skip(refill=refill), random=True), whole)
    found = kernel(whole, Env())
    assert same(found, run_in_parts(kernel, whole, cuts))
    assert len(found.dead) == xs.count(5)
    assert found.slots - len(found.dead) == len(found)
