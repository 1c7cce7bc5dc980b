import numpy as np
import pyarrow as pa
import pytest
import torch

from cedar.core.block import Block
from cedar.core.columns import OBJECT, TensorType
from cedar.core.cursor import Keys
from cedar.core.errors import RowError
from cedar.core.jagged import JaggedTensor
from cedar.core.skip import Skip
from cedar.operators.base import Env
from cedar.operators.map import Map
from tests.toy_blocks import SITE, bind, block, run, values

XS = block(x=[1, 2, 3], s=["a", "b", "c"], l=[[1], [], [2, 3]], t=np.arange(6.0).reshape(3, 2))


def mapped(fn, *columns, given=XS, into=None, **how):
    options = {k: how.pop(k) for k in ("dtype", "on_error", "random", "timeout") if k in how}
    return run(Map(fn, columns, into, **options), given, batched=True, **how)


def failing(fn, *columns, **how):
    with pytest.raises(RowError) as caught:
        mapped(fn, *columns, **how)
    assert caught.value.site == SITE
    assert caught.value.fix
    return caught.value


def test_functions_see_arrays():
    seen = {}
    mapped(lambda batch: seen.update(batch) or {"n": batch["x"]})
    assert seen["x"].tolist() == [1, 2, 3]
    assert seen["s"].tolist() == ["a", "b", "c"]
    assert isinstance(seen["l"], JaggedTensor)
    assert seen["t"].shape == (3, 2)
    assert not seen["t"].flags.writeable
    assert values(mapped(lambda x, t: x + t[:, 0], "x", "t", into="y"), "y") == [1, 4, 7]
    assert values(mapped(lambda x, again: x + again, "x", "x"), "x") == [2, 4, 6]


@pytest.mark.parametrize(
    ("fn", "kind", "found"),
    [
        (lambda x: x * 2.5, pa.float64(), [2.5, 5.0, 7.5]),
        (lambda x: torch.tensor(x) > 1, pa.bool_(), [False, True, True]),
        (lambda x: [str(v) for v in x], pa.large_string(), ["1", "2", "3"]),
        (lambda x: np.array(["a", "bb", "c"]), pa.large_string(), ["a", "bb", "c"]),
        (lambda x: np.array([b"a", None, b"c"], dtype=object), pa.large_binary(), [b"a", None, b"c"]),
        (lambda x: pa.array([1, None, 3]), pa.int64(), [1, None, 3]),
        (lambda x: pa.chunked_array([["a"], ["b", "c"]]), pa.large_string(), ["a", "b", "c"]),
        (lambda x: JaggedTensor(x, np.array([0, 2, 2, 3])), pa.large_list(pa.int64()), [[1, 2], [], [3]]),
        (lambda x: np.stack([x, x], 1), TensorType((2,), "int64"), [[1, 1], [2, 2], [3, 3]]),
        (lambda x: x.astype(">i4"), pa.int32(), [1, 2, 3]),
        (lambda x: {"a": x, "b": x}, pa.struct([("a", pa.int64()), ("b", pa.int64())]), None),
        (lambda x: [object()] * 3, OBJECT, None),
    ],
)
def test_what_arrays_become(fn, kind, found):
    result = mapped(fn, "x")
    assert result.types["x"] == kind
    if found is not None:
        assert values(result, "x") == found
    assert result.keys is XS.keys


def test_several_columns():
    both = mapped(lambda x: (x, -x), "x", into=("a", "b"))
    assert values(both, "b") == [-1, -2, -3]
    assert "not a tuple of 2" in failing(lambda x: x, "x", into=("a", "b")).what


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: x[:2], "returned 2 rows for a batch of 3"),
        (lambda x: x.sum(), "not an array"),
        (lambda x: None, "returned None for column 'x', not an array"),
        (lambda x: 1 // 0, "failed: ZeroDivisionError"),
        (lambda x: np.ma.masked_array(x, x > 1), "masked array"),
        (lambda x: [1, "a", 2], "do not fit into one column"),
        (lambda x: torch.zeros(3, dtype=torch.bfloat16), "bfloat16"),
    ],
)
def test_results_that_are_refused(fn, says):
    error = failing(fn, "x")
    assert says in error.what
    assert "batch starting at row 0" in str(error)


def test_a_function_of_the_whole_batch_may_resize_it():
    found = mapped(lambda batch: {"x": batch["x"][:2], "y": batch["x"][:2]})
    assert (len(found), found.aligned, found.slots) == (2, False, 3)
    again = run(Map(lambda x: x + 1, ("x",)), found, batched=True)
    assert (len(again), again.aligned, values(again, "x")) == (2, False, [2, 3])
    assert mapped(lambda batch: {"y": batch["x"]}).aligned
    assert "returned None" in failing(lambda batch: None).what


def test_later_batches_must_look_like_the_sample():
    kernel = bind(Map(lambda x: x if x[0] == 1 else x / 2, ("x",)), XS, batched=True)
    with pytest.raises(RowError, match="returned float64 for column 'x', whose type was fixed as int64") as caught:
        kernel(XS.slice(1, 3), Env())
    assert caught.value.row.row == 1
    kernel = bind(Map(lambda x: np.zeros((len(x), len(x))), ("x",)), XS, batched=True)
    with pytest.raises(RowError, match=r"returned float64\[2\] for column 'x', whose type was fixed as float64\[3\]"):
        kernel(XS.slice(1, 3), Env())
    kernel = bind(Map(lambda batch: {"a": batch["x"]} if len(batch["x"]) > 2 else {"b": batch["x"]}), XS, batched=True)
    with pytest.raises(RowError, match="returned no column 'a'"):
        kernel(XS.slice(1, 3), Env())


def test_dtype_instead_of_a_call_on_the_sample():
    needs_four = lambda x: x.reshape(4, -1).sum(1)
    assert "dtype=" in failing(needs_four, "x").fix
    four = block(x=[1, 2, 3, 4])
    assert values(mapped(needs_four, "x", given=four, sample=XS, dtype=int), "x") == [1, 2, 3, 4]
    whole = lambda batch: {"x": needs_four(batch["x"])}
    assert values(mapped(whole, given=four, sample=XS, dtype={"x": int}), "x") == [1, 2, 3, 4]
    assert "whose type was fixed as int32" in failing(lambda x: x, "x", dtype="int32").what


def test_a_failed_batch_fails_as_a_whole():
    fails = lambda x: x / (1 if x[0] == 1 else 1 // 0)
    later = XS.slice(1, 3)
    dead = mapped(fails, "x", given=later, sample=XS, on_error=Skip())
    assert (len(dead), sorted(dead.dead), dead.types["x"]) == (0, [0, 1], pa.float64())
    assert dead.dead[0].error.startswith("ZeroDivisionError")
    refilled = mapped(fails, "x", given=later, sample=XS, on_error=Skip(refill=True))
    assert len(refilled) == 0
    assert all(why.refill for why in refilled.dead.values())
    assert mapped(lambda batch: {"y": fails(batch["x"])}, given=dead, sample=XS).types == {"y": pa.float64()}


def test_draws_are_keyed_by_the_first_row():
    draw = lambda x, rng: x + rng.random(len(x))
    kernel = bind(Map(draw, ("x",), random=True), XS, batched=True)
    first, again = kernel(XS, Env()), kernel(XS, Env())
    assert values(first, "x") == values(again, "x")
    assert values(kernel(XS.slice(1, 3), Env()), "x") != values(first, "x")[1:]


def test_nulls_that_an_array_cannot_hold():
    error = failing(lambda x: x, "x", given=block(x=[1, None]))
    assert "nulls" in error.what
    kept = block(x=[1.5, None])
    assert np.isnan(values(mapped(lambda x: x * 2, "x", given=kept), "x")[1])


def test_classes_async_functions_and_time_limits():
    class Model:
        def __call__(self, x):
            return x + 1

    async def later(x):
        return x + 1

    assert values(mapped(Model, "x"), "x") == values(mapped(later, "x", timeout=60), "x") == [2, 3, 4]


def test_batches_without_rows_are_not_shown():
    empty = Block({"x": pa.array([], pa.int64())}, Keys(np.arange(0)))
    assert len(mapped(lambda x: x / 0, "x", given=empty, sample=XS, dtype=float)) == 0
