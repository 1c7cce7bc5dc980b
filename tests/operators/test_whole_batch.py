"""What a last map, or a collate function, returns for a batch is delivered as it is."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cedar

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
def test_other_operators_say_that_only_the_last_may(collate: Any) -> None:
    p = P.batch(3, collate=collate) if collate else P.batch(3).map(lengths).map(lambda b: (b,))
    for more in (p.select("x"), p.map(len, "x"), p.with_columns(y=cedar.col("x"))):
        with pytest.raises(cedar.PipelineError, match="no column 'x'") as caught:
            batches(more)
        assert "only the last map(fn)" in (caught.value.fix or "")
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
    with pytest.raises(cedar.RowError, match="KeyError"):
        batches(P.batch(2, collate=lambda rows: rows[0]["z"]))


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
