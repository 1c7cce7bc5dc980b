"""Run a chain of kernels on one block. This is what a task does in every executor."""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cedar.control.timeline import AROUND, Part, TaskTime
from cedar.core.block import Block, Observation, concat_blocks
from cedar.core.columns import Column, nbytes, objects
from cedar.core.errors import CedarError, RowError, Site, Skip, raised
from cedar.core.limits import MemoryReservation, Passing
from cedar.core.requests import Use
from cedar.core.stream import Rows
from cedar.operators.base import BlockKernel, Env
from cedar.operators.failures import ErrorContext
from cedar.operators.marks import Marks
from cedar.tasks import clocks

GATHER: Part = ("gather", ())
_LONG_SECONDS = 0.001  # seconds; the time spent waiting for a core is measured only for longer tasks
_MIN_MEASURED_ROWS = 4  # a fused step's operators are measured on this many rows or a 16th of the block


@dataclass(frozen=True)
class KernelStep:
    """A kernel, the ordinals of the operators that it implements, and the label and site that errors show.

    ``parts`` are the steps that were fused into it. ``on_error`` is the policy for rows that crash the worker.
    """

    kernel: BlockKernel
    operators: tuple[int, ...] = ()
    label: str = ""
    site: Site | None = None
    parts: tuple[KernelStep, ...] = ()
    on_error: Skip | None = None

    @property
    def blame(self) -> ErrorContext:
        """The operator that errors name if rows crash the worker in this step."""
        last = self.parts[-1] if self.parts else self
        return ErrorContext(last.operators[0], last.label, last.site, last.on_error)


@dataclass(eq=False)
class Program:
    """What a task does to a block.

    Args:
        steps: the steps in the plan's order.
        written: the steps in the order as written; None if ``steps`` is in that order.

    Attributes:
        label: the labels of the steps.
        awaited: for messages: the labels of the operators that a caller waits for, or "a batch" if there are none.
        ordinals: the ordinals of the operators that the program runs; empty if it only assembles batches.
        encodes: whether the program encodes batches to bytes, an expensive step.
        fused: whether any step runs several operators as one.
    """

    steps: tuple[KernelStep, ...] = ()
    written: tuple[KernelStep, ...] | None = None

    def __post_init__(self) -> None:
        labels, awaited, ordinals = list[str](), list[str](), list[int]()
        encodes = fused = False
        for step in self.steps:
            if step.label:
                labels.append(step.label)
                awaited += [step.label] if step.operators else []
            ordinals += step.operators
            encodes, fused = encodes or step.kernel.encodes, fused or len(step.operators) > 1
        self.label, self.awaited = " -> ".join(labels), " -> ".join(awaited) or "a batch"
        self.ordinals, self.encodes, self.fused = frozenset(ordinals), encodes, fused

    @cached_property
    def row_bytes(self) -> int:
        """Bytes per row that the last kernel that can write into given memory produces; 0 without such a kernel."""
        return next((step.kernel.row_bytes for step in reversed(self.steps) if step.kernel.row_bytes), 0)


@dataclass
class Timing(TaskTime):
    """How long a task took and what it read, summed over its blocks. The task returns it with its result.

    Args:
        rows_read, rows_passed: rows decoded, and rows that passed the scan's filters.
        rows_kept, rows_cached: rows read from a cache, and rows written to a cache.
        read_columns: decoded bytes of the rows that passed, by column.
        seen: measurements by operator; only for tasks that measure operators.
        fell_back: number of blocks that were rerun in the order as written.
        storage: requests to storage other than local files; only of tasks that read.
    """

    rows_read: int = 0
    rows_kept: int = 0
    rows_cached: int = 0
    rows_passed: int = 0
    read_columns: dict[str, int] = field(default_factory=dict)
    seen: dict[int, Observation] = field(default_factory=dict)
    fell_back: int = 0
    storage: Use | None = None

    def ended(self) -> None:
        """Finish the measurement; call it in the task's thread. Time outside all parts is recorded as ``AROUND``."""
        self.took, self.process, self.thread = time.perf_counter() - self.began, os.getpid(), threading.get_ident()
        around = self.took
        for _, wall, _ in self.parts:
            around -= wall
        if around > 0:
            self.parts.append((AROUND, around, 0.0))
        if clocks.last_preparation[0] > self.began:
            clocks.separate_preparation(self.parts, self.began)
        if self.took > _LONG_SECONDS:
            self.crowded = clocks.seconds_waited_for_core()

    def take(self, other: Timing) -> None:
        """Add the measurements of a part of the task that was timed separately."""
        self.parts += other.parts
        for name in ("rows_read", "rows_passed", "rows_kept", "rows_cached", "fell_back"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seen.update(other.seen)
        self.read_columns.update(other.read_columns)


@dataclass
class Result:
    """The result of a task."""

    blocks: list[Block]
    timing: Timing


def run_steps(steps: Sequence[KernelStep], block: Block, env: Env, timing: Timing) -> Block:
    """Run the steps on a block and return the result. A block without slots or columns is returned unchanged."""
    sizes: Sizes = {}
    place, last = env.place, None
    if place is not None:  # only for the last such step, as an earlier step's result may be a view of this memory
        env, last = replace(env, place=None), next((s for s in reversed(steps) if s.kernel.row_bytes), None)
    for step in steps:
        env = env if last is None else replace(env, place=place if step is last else None)
        if not block.columns and block.is_nothing:
            return block
        start, worked = time.perf_counter(), time.thread_time()
        try:
            ordinal = step.operators[0] if step.operators else -1
            apiece = env.marks is not None and env.marks.enter(ordinal, block, step.kernel.row_wise)
            bad = env.marks.known() if env.marks is not None and step.operators and len(block) else None
            if bad is not None and (bad.block or step.kernel.row_wise):
                block = step.kernel(step.blame.settle_crash(block, env, bad), env)
            elif env.marks is not None and apiece:
                block = _run_row_by_row(step, ordinal, block, env, env.marks)
            elif not step.operators:
                block = step.kernel(block, env)
            else:
                with Passing():
                    looks = env.watch in ("detail", "whole")
                    block = _run_parts(step, block, env, timing, sizes) if looks else step.kernel(block, env)
        except raised() as error:
            first = replace(block.keys.ref(0), unit="rows starting at") if block.slots else None
            if isinstance(error, CedarError):
                error.site = error.site or step.site
                error.row = error.row or first
                raise
            raise RowError(
                f"{step.label or type(step.kernel).__name__} failed on a block: {type(error).__name__}: {error}",
                site=step.site,
                row=first,
                fix="see the exception above for its cause",
            ) from error
        part: Part = ("operator", step.operators) if step.operators else ("convert", ())
        timing.parts.append((part, time.perf_counter() - start, time.thread_time() - worked))
    return block


def _run_row_by_row(step: KernelStep, ordinal: int, block: Block, env: Env, marks: Marks) -> Block:
    """Run a step one row at a time, since the rows crashed a worker when they were passed together."""
    result = []
    for slot in range(block.slots):
        row = block.slice(slot, slot + 1)
        marks.enter(ordinal, row, True)
        bad = marks.known() if len(row) else None
        result.append(step.kernel(row if bad is None else step.blame.settle_crash(row, env, bad), env))
    return concat_blocks(result)


def _run_parts(step: KernelStep, block: Block, env: Env, timing: Timing, sizes: Sizes) -> Block:
    """Run a step and measure each of its operators.

    Operators that are fused into one kernel run separately on a few rows, to measure the share of each. These shares
    divide the time of the fused kernel on all rows.
    """
    together = len(step.parts) > 1 and step.kernel.samples_parts and block.aligned
    rows = max(_MIN_MEASURED_ROWS, block.slots // 16) if together and env.watch == "detail" else block.slots
    sample = block if rows >= block.slots else block.slice(0, rows)
    measured, seconds = Timing(), 0.0
    for part in step.parts or (step,):
        before, start = sample, clocks.now()
        sample = part.kernel(before, env)
        took = clocks.now().since(start)
        seconds += took.wall
        if part.operators:
            cpu = took.wall if part.kernel.pooled else took.cpu
            observe(measured, part.operators[0], before, sample, took.wall, cpu, sizes)
    sampled, faster, result = 0 < rows < block.slots, 1.0, sample
    if sampled or step.kernel.inexact:
        start = clocks.now()
        result = step.kernel(block, env)  # the same call as without measuring
        if sampled and seconds:
            faster = clocks.now().since(start).wall / block.slots * rows / seconds
    for i, seen in measured.seen.items():
        seen = replace(seen, wall=seen.wall * faster, cpu=seen.cpu * faster)
        timing.seen[i] = timing.seen[i] + seen if i in timing.seen else seen
    return result


def run_program(program: Program, block: Block, env: Env, timing: Timing) -> Block:
    """Run a program on a block. If the plan's order raises, rerun the block in the order as written."""
    try:
        return run_steps(program.steps, block, env, timing)
    except Exception:
        if program.written is None:
            raise
        timing.fell_back += 1
        return run_steps(program.written, block, replace(env, watch=""), Timing())


def run_rows(program: Program, rows: Rows | Block, env: Env) -> Result:
    """Run a program as a task on a block, or on rows that are first gathered into one."""
    timing = Timing()
    if isinstance(rows, Rows):
        worked, block = time.thread_time(), rows.gather()
        timing.parts.append((GATHER, time.perf_counter() - timing.began, time.thread_time() - worked))
    else:
        block = rows
    if not program.ordinals and not program.encodes:  # neither arithmetic nor large allocations
        block = run_steps(program.steps, block, env, timing)
        timing.ended()
        return Result([block], timing)

    def work() -> Result:
        timing.seen.clear()
        with MemoryReservation("a task", env.limits):
            return Result([run_program(program, plain_copy(block) if first else block, env, timing)], timing)

    # On the first run, functions may import libraries that start threads. The task is repeated with the same block.
    numeric = env.numeric
    first = numeric is not None and _first_runs.get(id(program)) is not program
    if first:
        _first_runs[id(program)] = program
        clocks.watch_compilation()
    result = work() if numeric is None else numeric.run(work, again=first)
    timing.ended()
    return result


_first_runs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()  # already run in this process


Sizes: TypeAlias = dict[int, tuple[Column, int]]  # by the column's id; the reference to the column keeps the id unique


def observe(
    timing: Timing, operator: int, before: Block, after: Block, wall: float, cpu: float, sizes: Sizes | None = None
) -> None:
    """Add an operator's measurement on one block. ``sizes`` caches column sizes: of ``before``, then of ``after``."""
    known = {} if sizes is None else sizes
    inside, outside = _sizes(before, known), _sizes(after, known)
    written = {
        name: outside[name]
        for name, column in after.columns.items()
        if name not in before.columns or (len(before) == len(after) and before.columns[name] is not column)
    }
    read, made = sum(inside.values()) + 8 * before.slots, sum(outside.values()) + 8 * after.slots
    seen = Observation(len(before), len(after), read, made, wall, cpu, written)
    timing.seen[operator] = timing.seen[operator] + seen if operator in timing.seen else seen
    if sizes is not None:
        sizes.clear()
        sizes.update({id(column): (column, outside[name]) for name, column in after.columns.items()})


def _sizes(block: Block, known: Sizes) -> dict[str, int]:
    """Return the bytes of each column, from ``known`` where possible."""
    return {name: known[id(c)][1] if id(c) in known else nbytes(c) for name, c in block.columns.items()}


def fuse_steps(steps: Sequence[KernelStep]) -> list[KernelStep]:
    """Fuse adjacent steps whose kernels can be joined: the first kernel's ``fuse`` returns the joint kernel or None."""
    fused: list[KernelStep] = []
    for step in steps:
        both = fused[-1].kernel.fuse(step.kernel) if fused else None
        if both is None:
            fused.append(step)
        else:
            last = fused[-1]
            label = f"{last.label} -> {step.label}"
            parts = (*(last.parts or (last,)), *(step.parts or (step,)))
            fused[-1] = KernelStep(both, (*last.operators, *step.operators), label, last.site, parts)
    return fused


def own_copy(block: Block) -> Block:
    """Return the block with deep copies of its Python objects. Functions cannot change other columns, which are shared.

    Objects that cannot be copied, such as file handles, are shared too.
    """
    return block.only_columns({name: own_column(column) for name, column in block.columns.items()})


def plain_copy(block: Block) -> Block:
    """Return the block with copies of the arrays, lists, dicts, tuples and sets in its object columns.

    Instances of other classes are shared, because copying one may copy everything that it refers to.
    """
    columns = dict(block.columns)
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.dtype == object:
            columns[name] = objects([_plain(value) for value in column])
    return block.only_columns(columns)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        return value.copy() if value.dtype != object else own_column(value)
    if kind is dict:
        return {key: _plain(one) for key, one in value.items()}
    return kind(map(_plain, value)) if kind in (list, tuple, set) else value


def own_column(column: Column) -> Column:
    """Return the column with deep copies of its Python objects, where they can be copied."""
    if not isinstance(column, np.ndarray) or column.dtype != object:
        return column
    copies = column.copy()
    for place, value in np.ndenumerate(column):
        with suppress(Exception):  # copying a user's object may raise anything
            copies[place] = copy.deepcopy(value)
    return copies
