"""Which rows come as they finish, and what people are told of it."""

from __future__ import annotations

import pytest

import cedar
from tests.engine.streams.slow_rows import SLOW, numbers, same


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        (SLOW, "ORDER  rows come as they finish by map(held_up)"),
        (numbers().map(same, "x"), "ORDER  rows come as they finish by map(same)"),
        (numbers().filter(same, "x").map(same, "x").batch(4), "ORDER  rows come as they finish by map(same)"),
        (
            numbers().map(same, "x").filter(same, "x").batch(4),
            "ORDER  rows come in order: how many rows filter(same) leaves is known only after it has run",
        ),
        (
            numbers().batch(4).map(same, "x"),
            "ORDER  rows come in order: no per-row function is directly below batch(); map(same) works on batches",
        ),
        (
            numbers().map(lambda x: [x], "x", into="l", dtype=object).bucket_by_length("l", [2], [4, 4]),
            "ORDER  rows come in order: bucket_by_length",
        ),
        (numbers().map(same, "x").take(50).batch(5), "ORDER  rows come in order: no per-row function is directly"),
    ],
)
def test_explain_says_which_rows_come_as_they_are_done(pipeline: cedar.Pipeline, told: str) -> None:
    with pipeline.loader(order="any", plan="off") as loader:
        assert told in loader.explain()
    with pipeline.loader(plan="off") as loader:
        assert "ORDER" not in loader.explain()
