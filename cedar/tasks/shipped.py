"""Shipped: what a process runs that got a task's code by value: all that a worker imports of ours begins here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cedar.control.timeline import Part
from cedar.core.block import Block
from cedar.core.stream import Rows
from cedar.datasets.base import Split
from cedar.operators.base import Env
from cedar.tasks import clocks, preparing
from cedar.tasks.chain import Result, run_block
from cedar.tasks.code import Code
from cedar.tasks.reading import read_split


@dataclass(frozen=True)
class Gathering:
    """Rows that are gathered when they are pickled: in the thread that sends them, not in the loader's loop."""

    rows: Rows

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.rows.blocks

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.rows.gather(),)


def _itself(block: Block) -> Block:
    return block


def run_shipped(code: Code, env: Env, block: Any) -> Result:
    """A program on a block; ``Gathering`` becomes one on its way."""
    began = time.perf_counter()
    (program,) = code.load()
    return _with_shipping(run_block, began, program, block, code.env(env))


def read_shipped(code: Code, env: Env, split: Split, lap: int, first: int) -> Result:
    """A program on what a reader makes of a split."""
    began = time.perf_counter()
    program, reader = code.load()
    return _with_shipping(read_split, began, program, reader, split, lap, code.env(env), first)


def call_shipped(code: Code) -> Any:
    """What a function and its arguments, shipped as one, return."""
    fn, args, kwargs = code.load()
    return fn(*args, **kwargs)


def load_shipped(code: Code) -> None:
    """What code needs is imported here, so that a task of it begins at once."""
    code.load()


def same(value: Any) -> Any:
    """Its argument, for any code that measures the way there and back."""
    return value


def _with_shipping(run: Callable[..., Result], began: float, *args: Any) -> Result:
    """A task's result, with what it took to get the task and to send the one before."""
    began -= clocks.shipped()
    loading: list[tuple[Part, float, float]] = [(("ship", ()), time.perf_counter() - began, 0.0)]
    preparing.separate(loading, began)
    result = run(*args)
    result.timing.parts += loading
    return result
