"""The columns that results become: what fixes their types, and what does not fit them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

import cedar
from cedar import col
from cedar.core.columns import OBJECT, TensorType
from cedar.core.errors import PipelineError, RowError, Skip
from cedar.operators import image, recsys, text
from cedar.operators.explode import Explode
from cedar.operators.flat_map import FlatMap
from cedar.operators.map import Map
from tests.operators.toy_maps import XS, failing
from tests.toy_blocks import SITE, bind, block, run, values


def test_where_types_come_from():
    def annotated(x: float) -> float:
        return x

    def never(block):
        raise AssertionError

    assert run(Map(annotated, ("x",)), XS).types["x"] == pa.float64()
    assert run(Map(annotated, ("x",), dtype="int32"), XS).types["x"] == pa.int32()
    both = run(Map(lambda x: (x, x), ("x",), ("a", "b"), dtype={"b": float}), XS).types
    assert (both["a"], both["b"]) == (pa.int64(), pa.float64())
    assert run(Map(lambda x: (x, x), ("x",), ("a", "b"), dtype=(int, object)), XS).types["b"] == OBJECT
    assert run(Map(lambda x: torch.full((2,), x), ("x",)), XS).types["x"] == TensorType((2,), "int64")
    assert run(Map(lambda row: {"y": row["x"]}, dtype={"y": "float32"}), XS).types == {"y": pa.float32()}
    pair: tuple[str, ...] = ("a", "b")

    def two(x) -> tuple[int, float]:
        return x, x

    assert list(run(Map(two, ("x",), pair), XS).types.values())[2:] == [pa.int64(), pa.float64()]


def test_the_sample_fixes_the_type():
    many = block(x=list(range(100)))
    error = failing(Map(lambda x: x if x < 80 else x / 2, ("x",)), many)
    assert "40.0 (float) does not fit int64, the type fixed by the first rows" in error.what
    assert error.row.row == 80
    assert "dtype=" in error.fix
    assert "dtype=" in failing(Map(lambda x: "a", ("x",), dtype=int)).what
    assert (
        "ndarray int64[80]"
        in failing(Map(lambda x: np.zeros((2, 2), int) if x < 80 else np.zeros(x, int), ("x",)), many).what
    )
    skipped = run(Map(lambda x: x if x < 98 else x / 2, ("x",), on_error=Skip()), many)
    assert sorted(skipped.dead) == [98, 99]
    nulls = run(Map(lambda x: x if x < 80 else None, ("x",)), many)
    assert values(nulls, "x")[78:82] == [78, 79, None, None]


def test_rows_whose_keys_change():
    many = block(x=list(range(100)))
    error = failing(Map(lambda row: {"a": 1} if row["x"] < 70 else {"b": 1}), many)
    assert error.what == "map(<lambda>) returned a row without 'a' and the new column 'b'"
    assert error.row.row == 70
    assert "not a row" in failing(Map(lambda row: row if row["x"] < 70 else 5), many).what
    assert "not a tuple of 2" in failing(Map(lambda x: (x, x) if x < 70 else (x,), ("x",), ("a", "b")), many).what
    kept = run(Map(lambda row: row if row["x"] < 99 else {}, on_error=Skip(refill=True)), many)
    assert (len(kept), kept.slots) == (99, 100)


async def later(x):
    return x


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda x: None, "returned None for each of the first 3 rows"),
        (lambda x: later(x), "returned a coroutine to be awaited"),
        (lambda x: (i for i in range(x)), "returned a generator"),
        (lambda x: x.nothing, "has no attribute 'nothing'"),
        (lambda x: "a" if x == 2 else x, "1 (int) and 'a' (str) do not fit into one column"),
    ],
)
def test_samples_that_fix_nothing(fn, says):
    with pytest.raises((PipelineError, RowError)) as caught:
        bind(Map(fn, ("x",)), XS)
    assert says in caught.value.what
    assert caught.value.site == SITE


def test_a_sample_without_rows():
    nothing = XS.slice(0, 0)
    assert len(run(Map(abs, ("x",)), nothing)) == 0
    assert "a sample that had no rows" in failing(Map(abs, ("x",)), sample=nothing).what
    assert values(run(Map(abs, ("x",), dtype=int), XS, sample=nothing), "x") == [1, 2, 3]


def test_a_sample_of_which_every_row_fails():
    """With a policy too: such rows are dropped, but no result is there to tell the type of those that come later."""
    many = block(x=list(range(200)))

    def late(x):
        return 1.0 / max(0, x - 100)

    def item(row):
        return {"y": late(row["x"])}

    for operator in (Map(late, ("x",)), Map(item), FlatMap(lambda row: [item(row)])):
        assert "give on_error=" in failing(operator, many).fix
        error = failing(replace(operator, on_error=Skip()), many)
        assert "all of the first 64 rows failed, so the type of what it returns is not known" in error.what
        assert error.what.endswith("the first failure: ZeroDivisionError: float division by zero")
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert (error.row.row, "dtype=" in error.fix, "on_error=" in error.fix) == (0, True, False)
    some = FlatMap(lambda row: [item(row)] if row["x"] < 3 else [], on_error=Skip())
    assert "of the first 64 rows 3 failed, and the others gave no item" in failing(some, many).what

    good = [1.0 / x for x in range(1, 100)]
    assert values(run(Map(late, ("x",), dtype=float, on_error=Skip()), many), "x") == good
    assert values(run(Map(item, dtype={"y": float}, on_error=Skip()), many), "y") == good
    assert values(run(FlatMap(lambda row: [item(row)], dtype={"y": float}, on_error=Skip()), many), "y") == good


LISTS = cedar.from_items([{"id": 1, "a": [1], "s": "q"}])
NONE = LISTS.filter(lambda i: i > 5, "id")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "above",
    [
        lambda p: p.pad("a", to=3),
        lambda p: p.batch(2).pad(),
        lambda p: p.pack(4, "a"),
        lambda p: p.apply(Explode("a")),
        lambda p: p.apply(Explode("a", fields=True)),
        lambda p: p.map(recsys.FirstX(2), "a"),
        lambda p: p.map(text.normalize(), "s").map(text.tokenize(), "s"),
        lambda p: p.map(image.decode(), "s"),
        lambda p: p.batch(2).dedup([["a"]]),
        lambda p: p.with_columns(n=col("a").list.len()).filter(col("n") > 1),
        lambda p: p.filter(col("s").str.len_chars() > 2),
    ],
)
@pytest.mark.parametrize("untyped", [lambda p: p.map(list, "a").map(str.upper, "s"), lambda p: p.map(dict)])
def test_no_rows_give_an_empty_epoch_whatever_would_be_done_to_them(untyped, above):
    p = above(untyped(NONE))
    assert list(p) == []
    assert list(p.map(lambda a: a, "a")) == []  # whose sample has no rows, either


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_an_input_without_rows_agrees_with_any_other(order):
    inputs = [NONE.map(list, "a"), LISTS][order]
    assert [row["a"].tolist() for row in cedar.concat(*inputs).pad("a", to=2)] == [[1, 0]]
    assert len(list(cedar.mix([(p, 1) for p in inputs], stop="all"))) == 1


def test_an_option_that_is_given_or_does_not_exist_is_not_advised():
    rows = cedar.from_items([{"x": i} for i in range(4)])
    for p, fix in [
        (rows.map(str, "x", dtype=int), "return one type for every row, or give another dtype="),
        (rows.map(lambda x: x if x < 0 else "a", "x", dtype="int8"), "give another dtype="),
        (
            rows.map_batches(lambda c: {"x": c["x"] * (0.5 if 2 in c["x"] else 1)}, "x", format="numpy", size=2),
            "length)",
        ),
        (rows.map_batches(lambda c: {"x": [1, "a", 2, 3]}, "x", format="numpy"), "(map also takes dtype=object)"),
    ]:
        with pytest.raises(RowError) as caught:
            p.to_arrow()
        assert caught.value.fix.endswith(fix)
