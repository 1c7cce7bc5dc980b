"""The kernel of expression operators, which runs adjacent operators as one polars query per block."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from cedar.core import columns as _columns
from cedar.core.block import Block
from cedar.core.boundary import columns_named, first_line, from_frame, polars_errors, to_frame
from cedar.core.columns import UNKNOWN, Column, Index, blank, from_numbers
from cedar.core.errors import CedarError, PipelineError
from cedar.core.groups import plain, take_each
from cedar.core.process import Lock, in_fresh_process_after_fork
from cedar.operators.base import BlockKernel, Env, Kernel
from cedar.operators.expression_steps import (
    ExpressionProgram,
    Step,
    StepColumn,
    StepWalk,
    Types,
    compile_steps,
    output_types,
    whole_columns,
)
from cedar.operators.failures import ErrorContext, Failure, settle_each

if TYPE_CHECKING:
    import polars as pl

Failed: TypeAlias = tuple[ErrorContext, Failure]


@dataclass(frozen=True, eq=False)
class _StepsKernel(BlockKernel):
    """Base class of kernels of expression steps, which are fused into one query unless all of them move only columns.

    ``fused`` has the next kernel at the last fusion and the fused kernel, which the next epoch need not compile again.
    """

    steps: tuple[Step, ...]
    fused: list[tuple[Kernel, ExpressionKernel]] = field(default_factory=list, repr=False)

    def fuse(self, above: Kernel) -> ExpressionKernel | None:
        """Return a kernel that fuses this one and the next into one query; None if they cannot be fused."""
        computes = isinstance(self, ExpressionKernel) or isinstance(above, ExpressionKernel)
        if not isinstance(above, _StepsKernel) or not computes:
            return None
        if not self.fused or self.fused[0][0] is not above:
            self.fused[:] = [(above, ExpressionKernel((*self.steps, *above.steps)))]
        return self.fused[0][1]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.steps,)


@dataclass(frozen=True, eq=False)
class ColumnsKernel(_StepsKernel):
    """Selects, drops or renames plain columns by reference, without copying data."""

    def __call__(self, block: Block, env: Env) -> Block:
        columns = {name: StepColumn(UNKNOWN, name, inside=False) for name in block.columns}
        for step in self.steps:
            columns, _ = step.apply(columns, StepWalk())
        return block.only_columns(
            {name: block.columns[h.origin] for name, h in columns.items() if h.origin is not None}
        )


@dataclass(frozen=True, eq=False)
class ExpressionKernel(_StepsKernel):
    """The kernel of one or several adjacent expression operators."""

    programs: dict[Types, ExpressionProgram] = field(
        default_factory=dict, repr=False
    )  # compiled programs by the block's types
    empties: dict[Types, dict[str, Column]] = field(default_factory=dict, repr=False)  # the result for zero rows
    compiling: Lock = field(default_factory=Lock, repr=False)
    pooled: ClassVar[bool] = True
    row_wise: ClassVar[bool] = True

    @in_fresh_process_after_fork
    def __call__(self, block: Block, env: Env) -> Block:
        types: Types = tuple(block.types.items())
        try:
            program = self._program(types)
        except PipelineError:
            if UNKNOWN not in (known := block.known_types).values():
                raise
            output = output_types(self.steps, known) or {}  # without rows there is nothing to compute
            return block.only_columns({name: blank(kind, 0) for name, kind in output.items()})
        if not block.slots and block.aligned:  # all rows of the split were filtered out
            if types not in self.empties:
                self.empties[types] = dict(run(program, block).columns)
            return block.only_columns(self.empties[types])
        try:
            return run(program, block)
        except ResultTypeError as error:
            blame = self.steps[-1].blame
            fix = "cast the operands of the expression to one type"
            raise blame.refusal(f"{error}", fix=fix) from error
        except polars_errors() as error:
            failures = _failing_rows(self.steps, program, block, env, error)
            return run(program, settle_each(block, env, failures))

    def _program(self, types: Types) -> ExpressionProgram:
        if types not in self.programs:
            with self.compiling:  # threads of a run start together, but only one should compile
                if types not in self.programs:
                    self.programs[types] = compile_steps(self.steps, types)
        return self.programs[types]


def run(program: ExpressionProgram, block: Block) -> Block:
    """Run a program on a block and return the result; errors of polars are raised unchanged."""
    computed: dict[str, Column] = {}
    rows: Index | None = None
    wanted = program.wanted
    if wanted:
        entering = {name: plain(block.columns[name]) for name in program.enters}
        if program.numbered:
            entering[program.row] = from_numbers(np.arange(len(block)), pa.uint32())
        data = to_frame(entering)
        done = _run_one_row(program, data) if data.height == 1 else _run_queries(program, data)
        if done.height == 2 and (len(block) == 1 or (program.filters and done[program.row].n_unique() == 1)):
            done = done[:1]  # drop the copy of a doubled single row
        if program.filters:
            rows = done[program.row].to_numpy().astype(np.int64)
        made = from_frame(done)
        computed = {name: made[name] for name in wanted if name in program.output}
        for name, column in computed.items():  # all blocks must have the same types
            kind, given = program.output[name], _columns.type_of(column)
            if kind is not UNKNOWN and kind != given:
                raise ResultTypeError(f"column {name!r} is of {given}, where polars said {kind}")
    passed = {name: block.columns[origin] for name, origin in program.passed.items() if name in program.output}
    if rows is not None and len(rows) < len(block):
        passed = take_each(passed, rows)
    columns = {name: passed[name] if name in passed else computed[name] for name in program.output}
    return block.only_columns(columns) if rows is None else block.with_slots(columns, rows)


def _run_one_row(program: ExpressionProgram, data: pl.DataFrame) -> pl.DataFrame:
    try:
        return _run_queries(program, whole_columns(data))
    except polars_errors() as error:
        doubled = error
    _run_queries(program, data)  # raises the error again, with a message about one row instead of two
    raise doubled


def _run_queries(program: ExpressionProgram, data: pl.DataFrame) -> pl.DataFrame:
    frame = data.lazy()
    for query in program.queries:
        frame = query(frame)
    return frame.select_seq(columns_named(program.wanted)).collect(engine="in-memory", optimizations=_optimizer_flags())


class ResultTypeError(Exception):
    """An expression returned a different type than polars predicted."""


@cache
def _optimizer_flags() -> pl.QueryOptFlags:
    """Return polars flags that keep the order of steps: a filter that moved earlier would drop rows that must fail.

    Expressions must not move either, because polars 2.1 moves some across a step that replaces a column that they read.
    """
    import polars as pl

    return pl.QueryOptFlags(predicate_pushdown=False, cluster_with_columns=False)


def _failing_rows(
    steps: tuple[Step, ...], program: ExpressionProgram, block: Block, env: Env, error: BaseException
) -> dict[int, Failed]:
    """Find the live rows on which the program fails, by bisection; stop at the first one if it ends the run."""
    plain = Block(block.columns, block.live_keys())

    def failure(start: int, stop: int) -> BaseException | None:
        try:
            run(program, plain.slice(start, stop))
        except polars_errors() as caught:
            return caught
        return None

    if failure(0, 0) is not None:
        label = steps[-1].blame.label
        raise PipelineError(f"{label}: {first_line(error)}", site=steps[-1].blame.site) from error
    failed: dict[int, Failed] = {}
    compiled: dict[tuple[int, Types], ExpressionProgram] = {}
    spans = [(0, len(block))]
    while spans:
        start, stop = spans.pop()
        caught = failure(start, stop)
        if caught is None:
            continue
        if stop - start > 1:
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]
            continue
        blame, caught = _failing_step(steps, plain.slice(start, stop), compiled, caught)
        failed[start] = (blame, _failure(blame, caught))
        if blame.stops(env):
            return failed
    if not failed:
        blame = steps[-1].blame
        problem = f"{blame.label}: polars fails on the block, but on none of its rows: {first_line(error)}"
        raise CedarError(problem, site=blame.site, fix="report this with the expression") from error
    return failed


def _failing_step(
    steps: tuple[Step, ...], row: Block, compiled: dict[tuple[int, Types], ExpressionProgram], error: BaseException
) -> tuple[ErrorContext, BaseException]:
    """Return the operator that fails on a block of one row, and the error; ``compiled`` caches programs by step."""
    if len(steps) == 1:
        return steps[0].blame, error
    for number, step in enumerate(steps):
        try:
            key = (number, tuple(row.types.items()))
            if key not in compiled:
                compiled[key] = compile_steps((step,), key[1])
            row = run(compiled[key], row)
        except polars_errors() as caught:
            return step.blame, caught
    return steps[-1].blame, error


def _failure(blame: ErrorContext, error: BaseException) -> Failure:
    short = f"{type(error).__name__}: {first_line(error)}"
    null = "an option of the function, such as strict=False or null_on_oob=True, may give null instead"
    if short.startswith("InvalidOperationError: conversion from"):
        null = "cast(..., strict=False) gives null instead"
    fix = f"{null}, and loader(on_error=cedar.Skip(...)) drops such rows"
    return Failure(f"{blame.label} failed: {short}", short, fix, error)
