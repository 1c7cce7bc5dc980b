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


def test_a_stream_operator_that_says_nothing_may_do_anything() -> None:
    class Mine(StreamOperator):
        name = "mine"

        def stream(self, inputs: Any, context: Any) -> Any:
            return inputs[0]

    assert Mine().effects() == Effects(rows="stream")
