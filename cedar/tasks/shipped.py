"""The functions that worker processes run. Workers import this module and receive the user's code by value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cedar.control.timeline import Part
from cedar.core.block import Block
from cedar.core.stream import Rows
from cedar.datasets.base import Split
from cedar.operators.base import Env
from cedar.operators.marks import READING, Trial, each_key
from cedar.tasks import clocks
from cedar.tasks.chain import KernelStep, Result, Timing, run_rows, run_steps
from cedar.tasks.code import Code
from cedar.tasks.reading import from_row, marked, read_split


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


@dataclass(frozen=True)
class Survived:
    """The result of a trial whose process survived."""


def run_shipped(code: Code, env: Env, block: Any) -> Result | Survived:
    """Run a program, or the trial of ``env.marks``, on a block.

    Unpickling has turned a ``Gathering`` into a block, unless nothing was pickled.
    """
    began = time.perf_counter()
    block = block.rows.gather() if isinstance(block, Gathering) else block
    (program,) = code.load()
    env = code.env(env)
    if env.marks is not None and env.marks.trial is not None:
        return run_trial(program.steps, [block], env, env.marks.trial)
    return _with_shipping(run_rows, began, program, block, env)


def read_shipped(code: Code, env: Env, split: Split, lap: int, first: int) -> Result | Survived:
    """Read a split, and run a program, or the trial of ``env.marks``, on its blocks. A trial uses no cache."""
    began = time.perf_counter()
    program, reader = code.load()
    env = code.env(env)
    if env.marks is None or env.marks.trial is None:
        return _with_shipping(read_split, began, program, reader, split, lap, env, first)
    plain, trial = reader.plain, env.marks.trial
    if trial.alone and plain.source.cuts_splits:
        row = trial.suspect.key[2]  # the source can read this row without reading other rows
        split = replace(split, start=row, stop=row + 1, rows=1)
    blocks = marked(plain.blocks(split, lap), plain, split, first, env.marks)
    return run_trial((*reader.steps, *program.steps), (from_row(block, first) for block in blocks), env, trial)


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
    clocks.separate_preparation(loading, began)
    result = run(*args)
    result.timing.parts += loading
    return result


def run_trial(steps: Sequence[KernelStep], blocks: Iterable[Block], env: Env, trial: Trial) -> Survived:
    """Run only a trial's suspect row, or its block, up to the operator where a worker died.

    ``SupervisedTask`` decides from the results of trials, each in a fresh process, which row or block is to blame.
    """
    operator, suspect, env = trial.suspect.operator, trial.suspect.key, replace(env, watch="")
    if operator == READING:  # the worker died while reading
        steps = ()
    else:
        last = next((i for i, step in enumerate(steps) if operator in step.operators), len(steps) - 1)
        steps = steps[: last + 1]
    with suppress(Exception):  # a trial detects only crashes, not errors
        for block in blocks:
            keys = each_key(block.keys)
            slots = [slot for slot, key in enumerate(keys) if key == suspect]
            slots = slots or [slot for slot, key in enumerate(keys) if key[:3] == suspect[:3]]  # an operator made it
            if slots:
                rows = block.take(np.array(slots, dtype=np.int64)) if trial.alone else block
                run_steps(steps, rows, env, Timing())
    return Survived()
