"""The kernel of expression operators: a run of them is one polars query per block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from cedar.core import columns as _columns
from cedar.core.arrow import of_numbers
from cedar.core.block import Block
from cedar.core.boundary import columns_named, first_line, from_series, polars_errors, to_frame
from cedar.core.columns import UNKNOWN, Column, Index, blank
from cedar.core.errors import CedarError, PipelineError
from cedar.core.forks import Lock, elsewhere
from cedar.core.groups.column import plain, take_each
from cedar.operators.base import Env, Kernel
from cedar.operators.expression_steps import (
    ExpressionProgram,
    KeepColumns,
    RenameColumns,
    Step,
    StepColumn,
    Types,
    Without,
    apply_plain,
    compile_steps,
    output_types,
    whole_columns,
)
from cedar.operators.failures import ErrorContext, Failure

if TYPE_CHECKING:
    import polars as pl

Failed: TypeAlias = tuple[ErrorContext, Failure]


@dataclass(frozen=True, eq=False)
class ExpressionKernel:
    """The kernel of one or several adjacent expression operators."""

    steps: tuple[Step, ...]
    programs: dict[Types, ExpressionProgram] = field(
        default_factory=dict, repr=False
    )  # compiled, by the types of the block
    empties: dict[Types, dict[str, Column]] = field(default_factory=dict, repr=False)  # the result of no rows
    fused: list[Fused] = field(default_factory=list, repr=False)
    compiling: Lock = field(default_factory=Lock, repr=False)
    pooled: ClassVar[bool] = True  # the work is done in polars' threads
    row_wise: ClassVar[bool] = True  # a block may be cut

    @elsewhere
    def __call__(self, block: Block, env: Env) -> Block:
        types: Types = tuple(block.types.items())
        try:
            program = self._program(types)
        except PipelineError:
            if UNKNOWN not in (known := block.known_types).values():
                raise
            output = output_types(self.steps, known) or {}  # no rows are there, and there is nothing to compute
            return block.only_columns({name: blank(kind, 0) for name, kind in output.items()})
        if not block.slots and block.aligned:  # of splits whose rows were all left out
            if types not in self.empties:
                self.empties[types] = dict(run(program, block).columns)
            return block.only_columns(self.empties[types])
        try:
            return run(program, block)
        except ResultTypeError as error:
            blame = self.steps[-1].blame
            fix = "cast the operands of the expression to one type"
            raise PipelineError(f"{blame.label}: {error}", site=blame.site, fix=fix) from error
        except polars_errors() as error:
            failures = _failing_rows(self.steps, program, block, env, error)
            return run(program, _settle(block, env, failures))

    def _program(self, types: Types) -> ExpressionProgram:
        if types not in self.programs:
            with self.compiling:  # a run's threads begin together, with the GIL between them
                if types not in self.programs:
                    self.programs[types] = compile_steps(self.steps, types)
        return self.programs[types]

    def fuse(self, other: Kernel) -> ExpressionKernel | None:
        """This kernel and the next as one query, where both are of the kind."""
        steps = _steps_of(other)
        return _once(self.fused, other, (*self.steps, *steps)) if steps else None

    def __reduce__(self) -> tuple[Any, ...]:
        return ExpressionKernel, (self.steps,)


@dataclass(frozen=True, eq=False)
class ColumnsKernel:
    """Selects, drops or renames plain columns: moves references, copies nothing."""

    step: KeepColumns | Without | RenameColumns
    fused: list[Fused] = field(default_factory=list, repr=False)

    def __call__(self, block: Block, env: Env) -> Block:
        kept = apply_plain(self.step, {name: StepColumn(None, name) for name in block.columns})
        return block.only_columns({name: block.columns[h.origin] for name, h in kept.items() if h.origin is not None})

    def fuse(self, other: Kernel) -> ExpressionKernel | None:
        """As part of the next kernel's query, where that is one of expressions."""
        return _once(self.fused, other, (self.step, *other.steps)) if isinstance(other, ExpressionKernel) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnsKernel, (self.step,)


Fused: TypeAlias = tuple[Kernel, ExpressionKernel]  # the kernel that another was fused with last, and both as one


def _once(known: list[Fused], other: Kernel, steps: tuple[Step, ...]) -> ExpressionKernel:
    """Both kernels as one: the same one as the last time, as each epoch fuses again what it has compiled already."""
    for kernel, both in known:
        if kernel is other:
            return both
    both = ExpressionKernel(steps)
    known[:] = [(other, both)]
    return both


def _steps_of(kernel: Kernel) -> tuple[Step, ...]:
    if isinstance(kernel, ColumnsKernel):
        return (kernel.step,)
    return kernel.steps if isinstance(kernel, ExpressionKernel) else ()


def run(program: ExpressionProgram, block: Block) -> Block:
    """The result of a program on a block; polars errors come as they are."""
    computed: dict[str, Column] = {}
    rows: Index | None = None
    wanted = program.wanted
    if wanted:
        entering = {name: plain(block.columns[name]) for name in program.enters}
        if program.numbered:
            entering[program.row] = of_numbers(np.arange(len(block)), pa.uint32())
        data = to_frame(entering)
        done = _of_one_row(program, data) if data.height == 1 else _queried(program, data)
        if done.height == 2 and (len(block) == 1 or (program.filters and done[program.row].n_unique() == 1)):
            done = done[:1]  # the row that was doubled
        if program.filters:
            rows = done[program.row].to_numpy().astype(np.int64)
        computed = {name: from_series(done[name]) for name in wanted if name in program.output}
        _require_types(computed, program.output)
    passed = {name: block.columns[origin] for name, origin in program.passed.items() if name in program.output}
    if rows is not None and len(rows) < len(block):
        passed = take_each(passed, rows)
    columns = {name: passed[name] if name in passed else computed[name] for name in program.output}
    return block.only_columns(columns) if rows is None else block.with_slots(columns, rows)


def _of_one_row(program: ExpressionProgram, data: pl.DataFrame) -> pl.DataFrame:
    try:
        return _queried(program, whole_columns(data))
    except polars_errors() as error:
        doubled = error
    _queried(program, data)  # fails in words that count the row once
    raise doubled


def _queried(program: ExpressionProgram, data: pl.DataFrame) -> pl.DataFrame:
    frame = data.lazy()
    for query in program.queries:
        frame = query(frame)
    return frame.select(columns_named(program.wanted)).collect(engine="in-memory", optimizations=_as_written())


def _require_types(computed: Mapping[str, Column], expected: Mapping[str, Any]) -> None:
    """Polars is now and then wrong about what it will give; a column has one type in all blocks."""
    for name, column in computed.items():
        kind, given = expected[name], _columns.type_of(column)
        if kind is not UNKNOWN and kind != given:
            raise ResultTypeError(name, kind, given)


class ResultTypeError(Exception):
    """An expression gives another type than polars said that it would."""

    def __init__(self, name: str, expected: Any, given: Any) -> None:
        super().__init__(f"column {name!r} is of {given}, where polars said {expected}")


@cache
def _as_written() -> pl.QueryOptFlags:
    """A predicate stays where it was written: moved before an expression, it would hide rows on which that fails.

    So do expressions: polars 2.1 moves some above those that replace a column that they read.
    """
    import polars as pl

    return pl.QueryOptFlags(predicate_pushdown=False, cluster_with_columns=False)


def _failing_rows(
    steps: tuple[Step, ...], program: ExpressionProgram, block: Block, env: Env, error: BaseException
) -> dict[int, Failed]:
    """The live rows on which the program fails, found by halves; only the first where that ends the run.

    Raises:
        PipelineError: the program fails on no rows at all, so no row is at fault.
    """
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
        blame, caught = _culprit(steps, plain.slice(start, stop), compiled, caught)
        failed[start] = (blame, _failure(blame, caught))
        if blame.stops(env):
            return failed
    if not failed:
        blame = steps[-1].blame
        problem = f"{blame.label}: polars fails on the block, but on none of its rows: {first_line(error)}"
        raise CedarError(problem, site=blame.site, fix="report this with the expression") from error
    return failed


def _culprit(
    steps: tuple[Step, ...], row: Block, compiled: dict[tuple[int, Types], ExpressionProgram], error: BaseException
) -> tuple[ErrorContext, BaseException]:
    """The operator that fails on a block of one row, and its error; each is compiled once for all the rows."""
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
    fix = "cast(..., strict=False) gives null instead, and loader(on_error=cedar.Skip(...)) drops such rows"
    return Failure(f"{blame.label} failed: {short}", short, fix, error)


def _settle(block: Block, env: Env, failures: Mapping[int, Failed]) -> Block:
    """The block without the failed rows: their slots become dead."""
    for row, (blame, failure) in failures.items():
        if blame.stops(env) or not block.aligned:
            raise blame.error(failure, block.live_keys().ref(row) if block.aligned else None)
    if env.sampling:
        keep = np.ones(len(block), dtype=bool)
        keep[list(failures)] = False
        return block.filter(keep)
    return block.kill({row: blame.skipped(failure) for row, (blame, failure) in failures.items()})
