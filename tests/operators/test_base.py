"""What an operator promises that declares nothing, and what a user's operator must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import cedar
from cedar.core.block import Block
from cedar.operators.base import Bound, Effects, Env, Kernel, RowOperator, Schema, StreamOperator


@dataclass(frozen=True)
class Negate(RowOperator):
    """An operator of a user, with what the manual asks for, and a kernel that is a plain function."""

    name = "negate"

    def effects(self) -> Effects:
        return Effects(frozenset({"x"}), frozenset({"x"}))

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    def bind(self, bound: Bound) -> Kernel:
        return negate


def negate(block: Block, env: Env) -> Block:
    return block.with_columns({"x": -block.columns["x"].to_numpy()})  # type: ignore[union-attr]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_users_operator_needs_no_more_than_the_manual_asks_for(executor: Any) -> None:
    p = cedar.from_items([{"x": 1}, {"x": 2}]).apply(Negate())
    assert [row["x"] for row in p.loader(executor=executor, workers=1)] == [-1, -2]


@dataclass(frozen=True)
class Positive(RowOperator):
    """A filter of a user, with a field whose name means something in cedar's own operators."""

    size: int = 3
    name = "positive"

    def effects(self) -> Effects:
        return Effects(frozenset({"x"}), frozenset(), rows="1:0..1")

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    def bind(self, bound: Bound) -> Kernel:
        return positive


def positive(block: Block, env: Env) -> Block:
    return block.filter(block.columns["x"].to_numpy() > 0)  # type: ignore[union-attr]


def test_effects_alone_make_an_operator_a_filter_and_names_of_its_fields_mean_nothing() -> None:
    p = cedar.from_items([{"x": x} for x in (1, -1, 2, 3, -2)]).apply(Positive())
    assert [row["x"] for row in p] == [1, 2, 3]
    assert p.node.filters
    assert p.node.exact_rows is None
    assert not cedar.from_items([{"x": 1}]).apply(Negate()).node.filters


def test_a_stream_operator_that_says_nothing_may_do_anything() -> None:
    class Mine(StreamOperator):
        name = "mine"

        def stream(self, inputs: Any, context: Any) -> Any:
            return inputs[0]

    assert Mine().effects() == Effects(rows="stream")
