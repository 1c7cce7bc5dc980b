import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError, RowError
from cedar.core.skip import Skip
from cedar.operators.base import Env
from cedar.operators.filter_function import FilterFunction
from tests.toy_blocks import SITE, bind, block, run, run_in_parts, same, values

XS = block(x=[1, 2, 3], s=["a", "b", "c"])


def test_rows_that_stay():
    found = run(FilterFunction(lambda x: x != 2, ("x",)), XS)
    assert values(found, "s") == ["a", "c"]
    assert found.keys.row.tolist() == [0, 2]
    assert values(run(FilterFunction(lambda row: row["s"] > "a"), XS), "x") == [2, 3]
    assert run(FilterFunction(lambda x: True, ("x",)), XS) is XS
    assert run(FilterFunction(lambda x: False, ("x",)), XS).slots == 0


@pytest.mark.parametrize("kind", [np.bool_, torch.tensor, np.array, pa.scalar])
def test_bools_of_every_kind(kind):
    assert values(run(FilterFunction(lambda x: kind(x > 2), ("x",)), XS), "x") == [3]


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
        run(FilterFunction(fn, ("x",)), XS)
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
    keep = run(FilterFunction(lambda x: x.sum() == 6, ("x",)), XS, batched=True)
    assert values(keep, "x") == [1, 2, 3]
    dropped = run(FilterFunction(lambda row: row["x"].max() > 3), XS, batched=True)
    assert (dropped.slots, list(dropped.columns)) == (0, ["x", "s"])
    with pytest.raises(RowError, match="bool") as caught:
        run(FilterFunction(lambda x: x > 1, ("x",)), XS, batched=True)
    assert "batch starting at row 0" in str(caught.value)
    assert ".any()" in caught.value.fix
    failed = run(FilterFunction(lambda x: x.nothing, ("x",), Skip()), XS, batched=True)
    assert (len(failed), sorted(failed.dead)) == (0, [0, 1, 2])
    assert len(run(FilterFunction(lambda x: x.nothing, ("x",), Skip(refill=True)), XS, batched=True)) == 0


def fragile(x, rng):
    if x == 5:
        raise ValueError(x)
    return bool(rng.random() < 0.5)


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_the_size_of_a_block_never_shows(xs, cuts, refill):
    whole = block(x=xs)
    kernel = bind(FilterFunction(fragile, ("x",), Skip(refill=refill), random=True), whole)
    found = kernel(whole, Env())
    assert same(found, run_in_parts(kernel, whole, cuts))
    assert len(found.dead) == xs.count(5)
    assert found.slots - len(found.dead) == len(found)
