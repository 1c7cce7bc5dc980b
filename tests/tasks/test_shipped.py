"""What a process runs that got a task's code by value."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from cedar.core.block import Block
from cedar.core.stream import Rows
from cedar.datasets.table import from_arrow
from cedar.operators.base import BlockKernel, Env
from cedar.tasks.chain import KernelStep, Program, Result
from cedar.tasks.code import Code
from cedar.tasks.reading import Reader
from cedar.tasks.shipped import Gathering, call_shipped, read_shipped, run_shipped
from tests.toy_blocks import block, values


class Plus(BlockKernel):
    """Adds one, and how often this object was called before."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, block: Block, env: Env) -> Block:
        self.calls += 1
        return block.with_columns({"x": block.columns["x"].to_numpy() + self.calls})  # type: ignore[union-attr]


def parts(result: Result) -> list[Any]:
    return [part for part, _, _ in result.timing.parts]


def test_a_program_runs_and_is_loaded_once() -> None:
    code = Code.of((Program((KernelStep(Plus(), (4,)),)),))
    first = run_shipped(code, Env(), block(x=[1, 2]))
    again = run_shipped(code.known(), Env(), block(x=[1, 2]))  # the process has it by now
    assert isinstance(first, Result)
    assert isinstance(again, Result)
    assert [values(result.blocks[0], "x") for result in (first, again)] == [[2, 3], [3, 4]]
    assert {("operator", (4,)), ("ship", ())} <= set(parts(first))


def test_a_split_is_read_by_the_reader_that_came_along() -> None:
    source = from_arrow(pa.table({"x": [1, 2, 3]}))
    (split,) = source.splits()
    code = Code.of((Program((KernelStep(Plus(), (4,)),)), Reader(source, 0)))
    result = read_shipped(code, Env(), split, 0, 1)
    assert isinstance(result, Result)
    assert [values(each, "x") for each in result.blocks] == [[3, 4]]
    assert {("read", (0,)), ("ship", ())} <= set(parts(result))


def test_rows_are_gathered_on_their_way() -> None:
    rows = Rows.of(block(x=list(range(100)))).slice(20, 23)
    there = pickle.loads(pickle.dumps(Gathering(rows)))
    assert isinstance(there, Block)
    assert values(there, "x") == [20, 21, 22]


def test_a_call_comes_with_its_arguments() -> None:
    assert call_shipped(Code.of((sorted, ([3, 1, 2],), {"reverse": True}))) == [3, 2, 1]
