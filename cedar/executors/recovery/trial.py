"""Trial: in a fresh process, run only the row at which a worker died, or only that row's block.

``SupervisedTask`` decides from the results of trials which row or block is to blame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from cedar.core.block import Block
from cedar.datasets.base import Split
from cedar.operators.base import Env
from cedar.operators.marks import READING, Mark, Marks, each_key
from cedar.tasks.chain import KernelStep, Timing, run_steps
from cedar.tasks.code import Code
from cedar.tasks.reading import from_row, marked


@dataclass(frozen=True)
class Survived:
    """The result of a trial whose process survived."""


def tried(marks: Marks | None) -> bool:
    """Return whether a task with these marks is a trial."""
    return marks is not None and marks.trial is not None


def run_trial_task(code: Code, env: Env, block: Block) -> Survived:
    """Run a trial instead of ``run_shipped``."""
    (program,) = code.load()
    return run_trial(program.steps, [block], code.env(env))


def read_trial_task(code: Code, env: Env, split: Split, lap: int, first: int) -> Survived:
    """Run a trial instead of ``read_shipped``, without reading or writing a cache."""
    program, reader = code.load()
    plain, steps = reader.plain, reader.steps
    env = code.env(env)
    assert env.marks is not None
    trial = env.marks.trial
    if trial is not None and trial.alone and plain.source.cuts_splits:
        row = trial.suspect.key[2]  # the source can read this row without reading other rows
        split = replace(split, start=row, stop=row + 1, rows=1)
    blocks = marked(plain.blocks(split, lap), plain, split, first, env)
    return run_trial((*steps, *program.steps), (from_row(block, first) for block in blocks), env)


def run_trial(steps: Sequence[KernelStep], blocks: Iterable[Block], env: Env) -> Survived:
    """Run a trial's suspect row, or its block, up to the operator where the worker died."""
    assert env.marks is not None
    assert env.marks.trial is not None
    trial, env = env.marks.trial, replace(env, watch="")
    with suppress(Exception):  # a trial detects only crashes, not errors
        for block in blocks:
            slots = _slots(block, trial.suspect)
            if slots:
                rows = block.take(np.array(slots, dtype=np.int64)) if trial.alone else block
                run_steps(_steps_until(steps, trial.suspect.operator), rows, env, Timing())
    return Survived()


def _slots(block: Block, suspect: Mark) -> list[int]:
    """Return the slots of the suspect row in a task's input, or of the input rows from which an operator made it."""
    keys = each_key(block.keys)
    same = [slot for slot, key in enumerate(keys) if key == suspect.key]
    return same or [slot for slot, key in enumerate(keys) if key[:3] == suspect.key[:3]]


def _steps_until(steps: Sequence[KernelStep], operator: int) -> tuple[KernelStep, ...]:
    """Return the steps up to and including that of an operator; none if the worker died while reading."""
    if operator == READING:
        return ()
    last = next((i for i, step in enumerate(steps) if operator in step.operators), len(steps) - 1)
    return tuple(steps[: last + 1])
