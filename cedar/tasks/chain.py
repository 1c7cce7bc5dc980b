"""Run a chain of kernels on one block: the work of a task, wherever it runs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from cedar.control.timeline import AROUND, Part, TaskTime
from cedar.core.asking import Use
from cedar.core.block import Block, concat_blocks
from cedar.core.columns import Column, nbytes
from cedar.core.errors import CedarError, RowError, RowRef, Site, raised
from cedar.core.limits import MemoryReservation, Passing
from cedar.core.observation import Observation
from cedar.core.skip import Skip
from cedar.operators.base import Env, Kernel
from cedar.operators.failures import ErrorContext
from cedar.operators.marks import Marks
from cedar.tasks import clocks, preparing
from cedar.tasks.copying import plain_copy

CONVERT: Part = ("convert", ())
_LONG = 0.001  # seconds of a task that is worth asking whether others had the core
_LOOKED_AT = 4  # rows at least, and a 16th of a block, that are measured apart where operators work together


@dataclass(frozen=True)
class KernelStep:
    """A kernel, the ordinals of the operators that it does the work of, and how an error names them.

    ``parts`` are the steps that were fused into it, ``on_error`` is the policy for rows that crash the worker.
    """

    kernel: Kernel
    operators: tuple[int, ...] = ()
    label: str = ""
    site: Site | None = None
    parts: tuple[KernelStep, ...] = ()
    on_error: Skip | None = None

    @property
    def blame(self) -> ErrorContext:
        """Whom rows that crash the worker are reported against."""
        last = self.parts[-1] if self.parts else self
        return ErrorContext(last.operators[0], last.label, last.site, last.on_error)


@dataclass(frozen=True)
class Program:
    """What a task does to a block.

    Args:
        steps: in the plan's order.
        written: the same work in the order as written; None if that is ``steps``.
    """

    steps: tuple[KernelStep, ...] = ()
    written: tuple[KernelStep, ...] | None = None

    @cached_property
    def label(self) -> str:
        return " -> ".join(step.label for step in self.steps if step.label)

    @cached_property
    def awaited(self) -> str:
        """What who waits for its result waits for: its operators, or a batch that is brought into its format."""
        return " -> ".join(step.label for step in self.steps if step.label and step.operators) or "a batch"

    @cached_property
    def ordinals(self) -> frozenset[int]:
        """Of the operators that it does the work of."""
        return frozenset(i for step in self.steps for i in step.operators)

    @cached_property
    def operates(self) -> bool:
        """It does more than put batches together."""
        return bool(self.ordinals)

    @cached_property
    def encodes(self) -> bool:
        """It makes bytes of a batch, which takes time."""
        return any(getattr(step.kernel, "encodes", False) for step in self.steps)

    @cached_property
    def row_bytes(self) -> int:
        """Of a row's arrays that the last kernel of those makes that can write them into given memory."""
        return next(filter(None, map(_row_bytes, reversed(self.steps))), 0)

    @cached_property
    def fused(self) -> bool:
        """Some operators run as one."""
        return any(len(step.operators) > 1 for step in self.steps)


@dataclass
class Timing(TaskTime):
    """What a task took, and what it read, added up over its blocks; travels back with a result.

    Args:
        rows_read, rows_left: rows decoded, and what the filters of a scan left of them.
        rows_kept, rows_cached: rows of splits that a cache gave, and rows that one was given.
        read_columns: decoded bytes of the rows left.
        seen: figures per operator, of tasks that look closely.
        fell_back: blocks that were run again in the order as written.
        storage: requests to storage other than local files.
    """

    rows_read: int = 0
    rows_kept: int = 0
    rows_cached: int = 0
    rows_left: int = 0
    read_columns: dict[str, int] = field(default_factory=dict)
    seen: dict[int, Observation] = field(default_factory=dict)
    fell_back: int = 0
    storage: Use = field(default_factory=Use)

    def ended(self) -> None:
        """To be called by the thread that did the task; what no part has is what is around them."""
        self.took, self.process, self.thread = time.perf_counter() - self.began, os.getpid(), threading.get_ident()
        around = self.took
        for _, wall, _ in self.parts:
            around -= wall
        if around > 0:
            self.parts.append((AROUND, around, 0.0))
        if preparing.last[0] > self.began:
            preparing.separate(self.parts, self.began)
        if self.took > _LONG:
            self.crowded = clocks.crowded_lately()

    def take(self, other: Timing) -> None:
        """Of a part of the task that was timed by itself."""
        self.parts += other.parts
        for name in ("rows_read", "rows_left", "rows_kept", "rows_cached", "fell_back"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seen.update(other.seen)
        self.read_columns.update(other.read_columns)


@dataclass
class Result:
    """What a task returns."""

    blocks: list[Block]
    timing: Timing


def run_steps(steps: Sequence[KernelStep], block: Block, env: Env, timing: Timing) -> Block:
    """The block after every step; blocks without slots pass untouched."""
    sizes: Sizes = {}
    place, last = env.place, None
    if place is not None:  # for the last arrays: what was made of others may have kept a view of those
        env, last = replace(env, place=None), next(filter(_row_bytes, reversed(steps)), None)
    for step in steps:
        env = env if last is None else replace(env, place=place if step is last else None)
        if block.is_nothing:
            return block
        start, worked = time.perf_counter(), time.thread_time()
        try:
            apiece = env.marks is not None and env.marks.enter(_ordinal(step), block, _row_wise(step))
            bad = env.marks.known() if env.marks is not None and step.operators and len(block) else None
            if bad is not None and (bad.block or _row_wise(step)):
                block = step.kernel(step.blame.settle_crash(block, env, bad), env)
            elif env.marks is not None and apiece:
                block = _row_by_row(step, block, env, env.marks)
            elif not step.operators:
                block = step.kernel(block, env)
            else:
                with Passing():
                    looks = env.watch in ("detail", "whole")
                    block = _run_parts(step, block, env, timing, sizes) if looks else step.kernel(block, env)
        except CedarError as error:
            error.site = error.site or step.site
            error.row = error.row or _first_of(block)
            raise
        except raised() as error:
            raise _failed(step, block, error) from error
        part: Part = ("operator", step.operators) if step.operators else CONVERT
        timing.parts.append((part, time.perf_counter() - start, time.thread_time() - worked))
    return block


def _row_bytes(step: KernelStep) -> int:
    return int(getattr(step.kernel, "row_bytes", 0))


def _ordinal(step: KernelStep) -> int:
    return step.operators[0] if step.operators else -1


def _row_wise(step: KernelStep) -> bool:
    return bool(getattr(step.kernel, "row_wise", False))


def _row_by_row(step: KernelStep, block: Block, env: Env, marks: Marks) -> Block:
    """The same, a row at a time: one of them ended the process when they went together."""
    done = []
    for slot in range(block.slots):
        row = block.slice(slot, slot + 1)
        marks.enter(_ordinal(step), row, True)
        bad = marks.known() if len(row) else None
        done.append(step.kernel(row if bad is None else step.blame.settle_crash(row, env, bad), env))
    return concat_blocks(done)


def _run_parts(step: KernelStep, block: Block, env: Env, timing: Timing, sizes: Sizes) -> Block:
    """One operator at a time, measured.

    Operators that work together run so on a few rows alone. That gives each one's share; the time that they share is
    that of all together, on all rows.
    """
    together = len(step.parts) > 1 and hasattr(step.kernel, "inexact") and block.aligned
    rows = max(_LOOKED_AT, block.slots // 16) if together and env.watch == "detail" else block.slots
    looked = block if rows >= block.slots else block.slice(0, rows)
    apart, seconds = Timing(), 0.0
    for part in step.parts or (step,):
        before, start = looked, clocks.now()
        looked = part.kernel(before, env)
        took = clocks.now().since(start)
        seconds += took.wall
        if part.operators:
            pooled = getattr(part.kernel, "pooled", False)  # works in threads of a library, whose time is not ours
            observe(apart, part.operators[0], before, looked, took.wall, took.wall if pooled else took.cpu, sizes)
    few, faster, done = 0 < rows < block.slots, 1.0, looked
    if few or getattr(step.kernel, "inexact", False):
        start = clocks.now()
        done = step.kernel(block, env)  # as if nothing looks
        if few and seconds:
            faster = clocks.now().since(start).wall / block.slots * rows / seconds
    for i, seen in apart.seen.items():
        seen = replace(seen, wall=seen.wall * faster, cpu=seen.cpu * faster)
        timing.seen[i] = timing.seen[i] + seen if i in timing.seen else seen
    return done


def run_program(program: Program, block: Block, env: Env, timing: Timing) -> Block:
    """The block after a program. Where the plan's order raises, the order as written decides."""
    if program.written is None:
        return run_steps(program.steps, block, env, timing)
    try:
        return run_steps(program.steps, block, env, timing)
    except Exception:  # noqa: BLE001 - whatever it is, the order as written raises it again if it is an error there
        timing.fell_back += 1
        return run_steps(program.written, block, quiet(env), Timing())


def quiet(env: Env) -> Env:
    return replace(env, watch="")


def _failed(step: KernelStep, block: Block, error: BaseException) -> RowError:
    """For an operator that does not say itself what went wrong."""
    return RowError(
        f"{step.label or type(step.kernel).__name__} failed on a block: {type(error).__name__}: {error}",
        site=step.site,
        row=_first_of(block),
        fix="see the exception above for its cause",
    )


def _first_of(block: Block) -> RowRef | None:
    return replace(block.keys.ref(0), unit="rows starting at") if block.slots else None


def run_block(program: Program, block: Block, env: Env, timing: Timing | None = None) -> Result:
    """One task of a stage above another; ``timing`` began with it, where it did something before."""
    timing = Timing() if timing is None else timing
    if not program.operates and not program.encodes:  # no arithmetic, and nothing that asks for memory
        block = run_steps(program.steps, block, env, timing)
        timing.ended()
        return Result([block], timing)

    def work() -> Result:
        timing.seen.clear()
        with MemoryReservation("a task", env.limits):
            return Result([run_program(program, plain_copy(block) if first else block, env, timing)], timing)

    # The first time, functions may bring libraries, and are then called once more, on the block as it was.
    numeric = env.numeric
    first = numeric is not None and _first_runs.get(id(program)) is not program
    if first:
        _first_runs[id(program)] = program
        preparing.watch()
    result = work() if numeric is None else numeric.run(work, again=first)
    timing.ended()
    return result


_first_runs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()  # that this process has run


Sizes: TypeAlias = dict[int, tuple[Column, int]]  # by the id of the column, which is held, so that no other gets it


def observe(
    timing: Timing, operator: int, before: Block, after: Block, wall: float, cpu: float, sizes: Sizes | None = None
) -> None:
    """Add what an operator did to one block; ``sizes`` are those of the columns of ``before``, then of ``after``."""
    known = {} if sizes is None else sizes
    inside, outside = _sizes(before, known), _sizes(after, known)
    written = {
        name: outside[name]
        for name, column in after.columns.items()
        if name not in before.columns or (len(before) == len(after) and before.columns[name] is not column)
    }
    seen = Observation(len(before), len(after), _bytes(before, inside), _bytes(after, outside), wall, cpu, written)
    timing.seen[operator] = timing.seen[operator] + seen if operator in timing.seen else seen
    if sizes is not None:
        sizes.clear()
        sizes.update({id(column): (column, outside[name]) for name, column in after.columns.items()})


def _sizes(block: Block, known: Sizes) -> dict[str, int]:
    """The bytes of each column; those of columns that pass many operators are computed once."""
    return {name: known[id(c)][1] if id(c) in known else nbytes(c) for name, c in block.columns.items()}


def _bytes(block: Block, sizes: dict[str, int]) -> int:
    return sum(sizes.values()) + 8 * block.slots


def fuse_steps(steps: Sequence[KernelStep]) -> list[KernelStep]:
    """Runs of kernels of one fusing kind become one step; a kernel says so by its method ``fuse``."""
    fused: list[KernelStep] = []
    for step in steps:
        join = getattr(fused[-1].kernel, "fuse", None) if fused else None
        both = join(step.kernel) if join is not None else None
        if both is None:
            fused.append(step)
        else:
            last = fused[-1]
            label = f"{last.label} -> {step.label}"
            parts = (*(last.parts or (last,)), *(step.parts or (step,)))
            fused[-1] = KernelStep(both, (*last.operators, *step.operators), label, last.site, parts)
    return fused
