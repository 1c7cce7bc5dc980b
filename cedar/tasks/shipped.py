"""The functions that worker processes run. Workers import this module and receive the user's code by value."""

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
    """Rows that are gathered when they are pickled, which the sending thread does instead of the loader's loop."""

    rows: Rows

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.rows.blocks

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.rows.gather(),)


def _itself(block: Block) -> Block:
    return block


def run_shipped(code: Code, env: Env, block: Any) -> Result:
    """Run a program on a block. Unpickling has turned a ``Gathering`` into a block, unless nothing was pickled."""
    began = time.perf_counter()
    block = block.rows.gather() if isinstance(block, Gathering) else block
    (program,) = code.load()
    return _with_shipping(run_block, began, program, block, code.env(env))


def read_shipped(code: Code, env: Env, split: Split, lap: int, first: int) -> Result:
    """Read a split, and run a program on its blocks."""
    began = time.perf_counter()
    program, reader = code.load()
    return _with_shipping(read_split, began, program, reader, split, lap, code.env(env), first)


def call_shipped(code: Code) -> Any:
    """Call a function that was shipped together with its arguments."""
    fn, args, kwargs = code.load()
    return fn(*args, **kwargs)


def load_shipped(code: Code) -> None:
    """Load code and its imports ahead of time, so that its first task starts without delay."""
    code.load()


def same(value: Any) -> Any:
    """Return the argument; used to measure the round trip to a worker."""
    return value


def _with_shipping(run: Callable[..., Result], began: float, *args: Any) -> Result:
    """Run a task, and add the time to receive it and to send the previous result to its timing."""
    began -= clocks.shipped()
    loading: list[tuple[Part, float, float]] = [(("ship", ()), time.perf_counter() - began, 0.0)]
    preparing.separate(loading, began)
    result = run(*args)
    result.timing.parts += loading
    return result
