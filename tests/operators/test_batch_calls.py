from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import cedar
from cedar.core.block import Block
from cedar.core.columns import OBJECT, TensorType
from cedar.core.cursor import Keys
from cedar.core.errors import RowError, Skip
from cedar.core.jagged import JaggedTensor
from cedar.operators.base import Env
from cedar.operators.map import Map
from tests.toy_blocks import SITE, bind, block, run, values

P = cedar.from_items([{"ids": [1] * n, "x": n, "s": str(n)} for n in (3, 4, 2, 5, 6, 4)]).select("x", "s", "ids")


class Pair:
    def __init__(self, a: Any) -> None:
        self.a = a


def lengths(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "cu": np.r_[0, np.cumsum(batch["ids"].lengths())].astype(np.int32)}


def batches(p: cedar.Pipeline, **options: Any) -> list[Any]:
    with p.loader(**{"executor": "inline", **options}) as loader:
        return list(loader)


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.heavy)])
def test_a_value_that_belongs_to_the_batch_comes_with_it(executor: str) -> None:
    first, last = batches(P.batch(3).map(lengths), executor=executor)
    assert (first["x"].tolist(), first["cu"].tolist()) == ([3, 4, 2], [0, 3, 7, 9])
    assert last["cu"].tolist() == [0, 5, 11, 15]
    assert first["ids"].to_list() == [[1] * 3, [1] * 4, [1] * 2]
    first["x"] += 1  # it is the caller's


RESULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], Callable[[Any], Any], Any]] = {
    "a tuple": (lambda b: (b["x"], b["s"].tolist()), lambda v: (v[0].tolist(), v[1]), ([3, 4, 2], ["3", "4", "2"])),
    "a list": (lambda b: [b["x"].sum()], list, [9]),
    "a number": (lambda b: int(b["x"].sum()), int, 9),
    "text": (lambda b: "".join(b["s"]), str, "342"),
    "an object": (lambda b: Pair(b["x"].max()), lambda v: v.a, 4),
    "a mapping": (lambda b: UserDict(x=b["x"]), lambda v: v["x"].tolist(), [3, 4, 2]),
    "keys that are not text": (lambda b: {0: b["x"]}, lambda v: v[0].tolist(), [3, 4, 2]),
    "a number next to columns": (lambda b: {"x": b["x"], "n": 7}, lambda v: v["n"], 7),
}


@pytest.mark.parametrize("result", RESULTS)
def test_a_last_map_may_return_anything(result: str) -> None:
    fn, look, wanted = RESULTS[result]
    assert look(batches(P.batch(3).map(fn))[0]) == wanted
    assert P.batch(3).map(fn).count() == 2
    assert look(batches(P.batch(3).map(fn).take(1))[0]) == wanted
    assert [look(b) for b in batches(P.batch(3).map(fn), rank=0, world=2)] == [wanted]


def test_lengths_that_are_equal_by_chance_are_columns_and_others_come_as_they_are() -> None:
    p = P.batch(4).map(lambda b: {"x": b["x"], "six": np.arange(6)})  # the sample has six rows
    assert [(len(b["x"]), len(b["six"])) for b in batches(p)] == [(4, 6), (2, 6)]


def test_what_is_delivered_goes_on_from_a_state_and_is_read_again() -> None:
    p = P.batch(2).map(lambda b: (b["x"].tolist(), len(b["x"])))
    loader = p.loader(executor="inline")
    first = next(iter(loader))
    other = p.loader(executor="inline")
    other.load_state_dict(loader.state_dict())
    assert [first, *other] == batches(p)
    assert other.read(0) == first
    assert batches(p, split_batches=True, rank=1, world=2)[0] == ([4], 1)


def test_maps_may_follow_one_another() -> None:
    p = P.batch(3).map(lambda b: (b["x"], 1)).map(lambda pair: pair[0].sum() + pair[1])
    assert batches(p) == [10, 16]


@pytest.mark.parametrize("collate", [None, lambda rows: rows])
def test_other_operators_say_what_may_follow(collate: Any) -> None:
    p = P.batch(3, collate=collate) if collate else P.batch(3).map(lengths).map(lambda b: (b,))
    for more in (p.select("x"), p.map(len, "x"), p.with_columns(y=cedar.col("x"))):
        with pytest.raises(cedar.PipelineError, match="no column 'x'") as caught:
            batches(more)
        assert "only map(fn) without columns may follow" in (caught.value.fix or "")
    with pytest.raises(cedar.PipelineError, match="Python objects"):
        p.to_arrow()


def test_none_is_refused_and_what_fails_names_the_batch() -> None:
    with pytest.raises(cedar.RowError, match="returned None"):
        batches(P.batch(3).map(lambda b: None))
    some = P.batch(3).map(lambda b: (1,) if b["x"][0] == 3 else None)
    with pytest.raises(cedar.RowError, match="returned None for a batch") as caught:
        batches(some)
    assert "batch starting at row 3" in str(caught.value.row)
    assert batches(some, on_error=cedar.Skip(max_rate=1)) == [(1,), {}]


def test_collate_takes_rows_as_they_are_iterated() -> None:
    seen = batches(P.batch(4, collate=lambda rows: rows))
    assert [row for rows in seen for row in rows] == list(P)
    assert all(type(row["x"]) is int and type(row["ids"]) is list for row in seen[0])
    padded = batches(P.batch(4, last="pad", collate=lambda rows: [row["valid"] for row in rows]))
    assert padded[-1] == [True, True, False, False]
    assert batches(P.batch(4, last="drop", collate=len)) == [4]

    class Counts:
        def __call__(self, rows: list[Any]) -> int:
            return len(rows)

    async def later(rows: list[Any]) -> int:
        return len(rows)

    assert batches(P.batch(4, collate=Counts)) == batches(P.batch(4, collate=later)) == [4, 2]


def test_a_random_collate_draws_the_same_for_a_batch_in_every_run() -> None:
    def masked(rows: list[Any], rng: np.random.Generator) -> list[float]:
        return [float(x) for x in rng.random(len(rows))]

    p = P.batch(4, collate=masked, random=True)
    seen = batches(p)
    assert [len(batch) for batch in seen] == [4, 2]
    assert len({x for batch in seen for x in batch}) == 6
    assert seen == batches(p, executor="processes", workers=2)
    assert seen != batches(p, epoch=1)


def test_a_random_collate_needs_a_function_that_takes_rng() -> None:
    with pytest.raises(cedar.PipelineError, match="no parameter rng"):
        P.batch(4, collate=len, random=True)
    with pytest.raises(cedar.PipelineError, match="without collate") as caught:
        P.batch(4, random=True)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_a_collate_that_cannot_be_called_is_refused_at_the_users_line() -> None:
    for collate in (3, lambda: 0, lambda a, b: 0):
        with pytest.raises(cedar.PipelineError, match="collate") as caught:
            P.batch(2, collate=collate)  # type: ignore[arg-type]
        assert caught.value.site is not None
        assert caught.value.site.file == __file__
    import torch

    arrays = cedar.from_items([{"x": np.ones(2)}] * 4)
    stacked = arrays.batch(2, collate=lambda rows: torch.stack([row["x"] for row in rows]))
    for wrong, kind in ((P.batch(2, collate=lambda rows: rows[0][0]), "KeyError"), (stacked, "TypeError")):
        with pytest.raises(cedar.RowError, match=kind) as failed:
            batches(wrong)
        assert "each row as a dict of Python values and ndarrays" in (failed.value.fix or "")


def test_torchs_collate_gives_its_tensors() -> None:
    import torch

    collate = torch.utils.data.default_collate
    first, *_ = batches(P.select("x", "s").batch(3, collate=collate))
    assert torch.equal(first["x"], torch.tensor([3, 4, 2]))
    assert first["s"] == ["3", "4", "2"]


def test_arrays_become_tensors_where_asked_for() -> None:
    import torch

    first, *_ = batches(P.batch(3).map(lengths), format="torch")
    assert torch.equal(first["cu"], torch.tensor([0, 3, 7, 9], dtype=torch.int32))
    assert isinstance(first["ids"].values, torch.Tensor)
    x, ids = batches(P.batch(3).map(lambda b: (b["x"], [b["ids"]])), device="cpu")[0]
    assert isinstance(x, torch.Tensor)
    assert isinstance(ids[0].values, torch.Tensor)


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
        (lambda x: x.astype("M8[M]"), "datetime64"),
        (lambda x: np.array(["\ud800"] * 3), "surrogates not allowed"),
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


def test_arrays_in_any_place_of_a_result_become_tensors() -> None:
    p = cedar.from_items([{"n": n} for n in range(4)]).batch(2)
    for fn in (lambda b: (b["n"].mean(), b["n"]), lambda b: ("name", b["n"]), lambda b: [5, b["n"], None]):
        first = batches(p.map(fn), format="torch")[0]
        assert isinstance(first[1], torch.Tensor)
        assert first[1].tolist() == [0, 1]
    backwards, wide = batches(p.map(lambda b: (b["n"][::-1], b["n"].astype(np.longdouble))), format="torch")[0]
    assert backwards.tolist() == [1, 0]
    assert isinstance(wide, np.ndarray)
