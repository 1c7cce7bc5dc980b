"""What a run asks of nodes: the rows of a unit, how an epoch ends, and what an operator costs several ranks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import cedar
from cedar import col
from cedar.engine.nodes import deal_mode, last_mode, over_ranks, rows_per_unit
from cedar.engine.notes import cost_note
from cedar.plan.graph import walk
from tests.toy_stream import ListStream

ROWS = cedar.from_items([{"x": i, "l": [i]} for i in range(8)])


@pytest.mark.parametrize(
    ("pipeline", "rows", "last", "deal"),
    [
        (ROWS.map(str, "x"), 1, "keep", "keep"),
        (ROWS.batch(3), 3, None, None),
        (ROWS.batch(3).map(sum, "x").balance("x"), 3, None, None),
        (ROWS.batch(3, last="pad").map(str, "x").take(2), 3, "pad", "pad"),
        (ROWS.batch(3).take(2), 3, None, "drop"),
        (ROWS.bucket_by_length("l", [2], [4, 6]), 6, None, None),
    ],
)
def test_the_nearest_batch_below_says_how_units_are_cut(
    pipeline: cedar.Pipeline, rows: int, last: str | None, deal: str | None
) -> None:
    node = pipeline.node
    assert (rows_per_unit(node), last_mode(node), deal_mode(node)) == (rows, last, deal)


def test_what_moves_rows_between_ranks_is_found() -> None:
    balanced = ROWS.batch(2).balance("x")
    assert over_ranks(walk(balanced.node)) is balanced.node
    assert over_ranks(walk(ROWS.batch(2).node)) is None


def test_what_an_operator_costs_several_ranks_is_told() -> None:
    def note(pipeline: cedar.Pipeline, known: bool) -> str:
        operator: Any = pipeline.node.operator
        return cost_note(operator, [ListStream({"x": [1, 2]}, known=known)])

    assert note(ROWS.take(3), True) == ""
    assert note(ROWS.take(3), False).startswith("global: it counts rows whose number is unknown")
    assert note(ROWS.take(3, local=True), False) == "local to each rank"
    assert note(ROWS.batch(2).balance("x"), True).startswith("each rank computes everything before it for all ranks")


CUTS = [
    lambda p: p.shuffle(seed=1).take(3),
    lambda p: p.shuffle(seed=1).filter(col("x") > 1).map(str, "x").skip(3),
    lambda p: p.shuffle(seed=1).batch(2).take(2),
    lambda p: p.sample(n=5).take(2),
]


@pytest.mark.parametrize("cut", CUTS)
def test_rows_that_take_and_skip_leave_above_a_shuffle_are_told_in_the_second_epoch(cut: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(cut(ROWS))  # a look at a few rows is not a split
        loader = cut(ROWS).loader(executor="inline")
        list(loader)
    with pytest.warns(UserWarning, match=r"changes in every epoch.*p\.split\(") as caught:
        list(loader)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="changes in every epoch"):
        list(cut(ROWS).loader(executor="inline", epoch=3))
    with pytest.warns(UserWarning, match="changes in every epoch"):
        next(iter(cut(ROWS).repeat(2).loader(executor="inline")))


@pytest.mark.parametrize(
    "keep", [lambda p: p.take(3).shuffle(seed=1), lambda p: p.skip(2), lambda p: p.repeat(2).take(3).batch(2)]
)
def test_cuts_that_leave_the_same_rows_are_not_blamed(keep: Any) -> None:
    loader = keep(ROWS).loader(executor="inline")
    for _ in range(2):
        list(loader)
