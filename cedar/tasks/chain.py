"""Run a chain of kernels on one block: the work of a task, wherever it runs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cedar.control.timeline import AROUND, Part, TaskTime
from cedar.core.block import Block, Skipped, concat_blocks
from cedar.core.boundary import as_column
from cedar.core.columns import Column, nbytes
from cedar.core.cursor import Keys
from cedar.core.errors import CedarError, RowError, RowRef, Site, SourceError, raised
from cedar.core.limits import Account, Passing, take
from cedar.core.numeric import arrived
from cedar.core.observation import Observation
from cedar.core.skip import Skip
from cedar.datasets.asking import Use, counting
from cedar.datasets.base import Chunk, Split, offsets_of
from cedar.operators.base import Env, Kernel
from cedar.operators.marks import Marks, reading
from cedar.tasks import clocks
from cedar.tasks.copying import own_copy, plain_copy

CONVERT: Part = ("convert", ())
_LONG = 0.001  # seconds of a task that is worth asking whether others had the core
_LOOKED_AT = 4  # rows at least, and a 16th of a block, that are measured apart where operators work together


@dataclass(frozen=True)
class Step:
    """A kernel, the ordinals of the operators that it does the work of, and how an error names them.

    ``parts`` are the steps that were fused into it.
    """

    kernel: Kernel
    operators: tuple[int, ...] = ()
    label: str = ""
    site: Site | None = None
    parts: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Program:
    """What a task does to a block.

    Args:
        steps: in the plan's order.
        written: the same work in the order as written; None where that is ``steps``.
    """

    steps: tuple[Step, ...] = ()
    written: tuple[Step, ...] | None = None

    @cached_property
    def label(self) -> str:
        return " -> ".join(step.label for step in self.steps if step.label)

    @cached_property
    def operates(self) -> bool:
        """It does more than put batches together."""
        return any(step.operators for step in self.steps)

    @cached_property
    def encodes(self) -> bool:
        """It makes bytes of a batch, which takes time."""
        return any(getattr(step.kernel, "encodes", False) for step in self.steps)

    @cached_property
    def row_bytes(self) -> int:
        """Of a row's arrays that the last kernel of those makes that can write them where they are told to."""
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


def run_steps(steps: Sequence[Step], block: Block, env: Env, timing: Timing) -> Block:
    """The block after every step; blocks without slots pass untouched."""
    sizes: Sizes = {}
    place, last = env.place, None
    if place is not None:  # for the last arrays: what was made of others may have kept a view of those
        env, last = replace(env, place=None), next(filter(_row_bytes, reversed(steps)), None)
    for step in steps:
        env = env if last is None else replace(env, place=place if step is last else None)
        if not block.columns and block.aligned and not block.slots:
            return block
        start, worked = time.perf_counter(), time.thread_time() if step.operators else 0.0
        try:
            if env.marks is not None and env.marks.enter(_ordinal(step), block, _row_wise(step)):
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
        wall = time.perf_counter() - start
        if step.operators:
            timing.parts.append((("operator", step.operators), wall, time.thread_time() - worked))
        else:
            timing.parts.append((CONVERT, wall, wall))
    return block


def _row_bytes(step: Step) -> int:
    return int(getattr(step.kernel, "row_bytes", 0))


def _ordinal(step: Step) -> int:
    return step.operators[0] if step.operators else -1


def _row_wise(step: Step) -> bool:
    return bool(getattr(step.kernel, "row_wise", False))


def _row_by_row(step: Step, block: Block, env: Env, marks: Marks) -> Block:
    """The same, a row at a time: one of them ended the process when they went together."""
    done = []
    for slot in range(block.slots):
        row = block.slice(slot, slot + 1)
        marks.enter(_ordinal(step), row, True)
        bad = marks.known() if len(row) and hasattr(step.kernel, "settle") else None
        done.append(step.kernel(row, env) if bad is None else step.kernel.settle(row, env, bad.error()))  # type: ignore[attr-defined]
    return concat_blocks(done)


def _run_parts(step: Step, block: Block, env: Env, timing: Timing, sizes: Sizes) -> Block:
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
        done = step.kernel(block, env)  # as where nobody looks
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
        return run_steps(program.written, block, _quiet(env), Timing())


def _quiet(env: Env) -> Env:
    return replace(env, watch="")


def _failed(step: Step, block: Block, error: BaseException) -> RowError:
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
        with Account("a task", env.limits):
            return Result([run_program(program, plain_copy(block) if first else block, env, timing)], timing)

    # The first time, functions may bring libraries, and are then called once more, on the block as it was.
    numeric = env.numeric
    first = numeric is not None and _first_runs.get(id(program)) is not program
    if first:
        _first_runs[id(program)] = program
    result = work() if numeric is None else numeric.run(work, again=first)
    timing.ended()
    return result


_first_runs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()  # that this process has run


def chunk_block(chunk: Chunk, split: Any, first: int, ordinal: int, lap: int) -> Block:
    """A source's chunk with the keys of its rows; ``first`` counts the rows of the split before it."""
    start = int(getattr(split, "start", 0)) + first
    keys = Keys(offsets_of(chunk, start), int(getattr(split, "file", 0)), repeat=lap, source=ordinal)
    return Block({name: as_column(column) for name, column in chunk.columns.items()}, keys)


@dataclass(frozen=True)
class Reader:
    """A source as a run reads it: its number among the sources, and what becomes of rows that it cannot make."""

    source: Any
    ordinal: int
    operator: int = 0
    label: str = ""
    on_error: Skip | None = None
    site: Site | None = None

    def blocks(self, split: Any, lap: int) -> Iterator[Block]:
        """The split's rows with their keys; a bad row is an error, or a dead slot under a policy."""
        try:
            yield from self._blocks(split, lap)
        except CedarError as error:
            error.site = error.site or self.site
            raise

    def _blocks(self, split: Any, lap: int) -> Iterator[Block]:
        sound = getattr(self.source, "read_sound", None)
        if self.on_error is not None and sound is not None:
            for chunk, failed in guarded(self.source, split, sound):
                yield self._with_dead(chunk, failed, split, lap)
            return
        first = 0
        for chunk in guarded(self.source, split):
            block = chunk_block(chunk, split, first, self.ordinal, lap)
            first += chunk.rows
            yield block

    def _with_dead(self, chunk: Chunk, failed: dict[int, CedarError], split: Any, lap: int) -> Block:
        """The chunk's rows, and a dead slot for each row that failed, in the order of their numbers."""
        block = chunk_block(chunk, split, 0, self.ordinal, lap)
        rows = np.sort(np.concatenate([block.keys.row, np.array(list(failed), dtype=np.int64)]))
        assert self.on_error is not None
        dead = {
            int(np.searchsorted(rows, row)): Skipped(self.operator, self.label, error.what, self.on_error.refill)
            for row, error in failed.items()
        }
        return Block(block.columns, replace(block.keys, row=rows), dead)


def read_split(
    program: Program, reader: Any, split: Split, lap: int, env: Env, first: int = 0, hand: Hand | None = None
) -> Result:
    """One task of a stage that reads: a whole split through the chain, from row number ``first`` on.

    Args:
        hand: takes a block's number and the block once there is another one behind it, where it can change no more.
            The last one comes with the result alone: nobody has all rows of a split that is not over.
    """
    before = arrived()

    def made(blocks: Sequence[Block]) -> None:
        fixed = program.written is None and (env.numeric is None or arrived() == before)
        if hand is not None and fixed and len(blocks) > 1:
            hand(len(blocks) - 2, blocks[-2])

    def work() -> Result:
        timing = Timing()
        with counting(timing.storage), Account("a task", env.limits):
            return _read_split(program, reader, split, lap, env, first, timing, made)

    began = time.perf_counter()
    again = not getattr(getattr(_plain(reader), "source", None), "one_pass", False)
    result = work() if env.numeric is None else env.numeric.run(work, again=again)
    result.timing.began = began
    result.timing.ended()
    return result


def _read_split(
    program: Program, reader: Any, split: Split, lap: int, env: Env, first: int, timing: Timing, made: Made
) -> Result:
    if program.written is None:
        return Result(_read(program.steps, reader, split, lap, env, first, timing, made), timing)
    try:
        blocks = _read(program.steps, reader, split, lap, env, first, timing)
    except Exception:  # noqa: BLE001 - see run_program
        timing.fell_back += 1
        return Result(_read_written(program, reader, split, lap, env, first), timing)
    return Result(blocks, timing)


def _read_written(program: Program, reader: Any, split: Split, lap: int, env: Env, first: int) -> list[Block]:
    plain = getattr(reader, "plain", reader)
    return _read(program.written or (), plain, split, lap, _quiet(env), first, Timing())


def _read(
    steps: Sequence[Step], reader: Any, split: Split, lap: int, env: Env, first: int, timing: Timing,
    made: Made = lambda _: None,
) -> list[Block]:  # fmt: skip
    start = clocks.now()
    scanning = Timing()
    scans, reads = not isinstance(reader, Reader), not hasattr(reader, "reader")  # one that keeps asks another
    blocks = []
    inside = clocks.Reading(0.0, 0.0)  # of the steps
    for block in marked(_blocks_of(reader, split, lap, env, scanning), reader, split, first, env):
        timing.rows_left += block.slots if reads else 0
        if env.watch in ("detail", "whole") and reads:
            for name, column in block.columns.items():
                timing.read_columns[name] = timing.read_columns.get(name, 0) + nbytes(column)
        if env.watch == "audit":  # the objects of a list are the same when it is read again
            block = own_copy(block)
        entered = clocks.now()
        blocks.append(run_steps(steps, from_row(block, first), env, timing))
        arrays = [column for column in blocks[-1].columns.values() if isinstance(column, np.ndarray)]
        take(sum(map(nbytes, arrays)), "its rows")
        inside = inside.plus(clocks.now().since(entered))
        made(blocks)
    scanning.rows_read = scanning.rows_read if scans else timing.rows_left
    for _, wall, cpu in scanning.parts:
        inside = inside.plus(clocks.Reading(wall, cpu))
    timing.take(scanning)
    took = clocks.now().since(start)
    read: Part = ("read", (_plain(reader).operator,))
    timing.parts.append((read, max(took.wall - inside.wall, 0.0), max(took.cpu - inside.cpu, 0.0)))
    return blocks


def marked(blocks: Iterator[Block], reader: Any, split: Split, first: int, env: Env) -> Iterator[Block]:
    """The blocks, read while the marks say so."""
    plain = _plain(reader)
    if env.marks is None:
        yield from blocks
        return
    at = max(first, int(getattr(split, "start", 0)))
    while True:
        with reading(env.marks, plain.ordinal, int(getattr(split, "file", 0)), at):
            block = next(blocks, None)
        if block is None:
            return
        yield block


def _plain(reader: Any) -> Any:
    return getattr(reader, "plain", getattr(reader, "_plain", reader))


def _blocks_of(reader: Any, split: Split, lap: int, env: Env, scanning: Timing) -> Iterator[Block]:
    if isinstance(reader, Reader):
        return reader.blocks(split, lap)
    return reader.read_blocks(split, lap, env, scanning)  # type: ignore[no-any-return]


def from_row(block: Block, first: int) -> Block:
    """Without the rows before row number ``first`` of their file."""
    if not first or not block.slots:
        return block
    rows = block.keys.row
    return block.slice(int(np.searchsorted(rows, first)), block.slots)


def guarded(source: Any, split: Any, read: Any = None) -> Any:
    """The chunks of a split; whatever a reader raises becomes a SourceError that names the file."""
    try:
        yield from (read or source.read)(split)
    except CedarError:
        raise
    except raised() as error:
        url = source.url(getattr(split, "file", 0))
        raise SourceError(
            f"{url} cannot be read: {type(error).__name__}: {error}",
            done="reading stopped; no row of this split was delivered",
            fix="check that the file is there, complete and of the right format",
        ) from error


Hand: TypeAlias = Callable[[int, Block], None]
Made: TypeAlias = Callable[[Sequence[Block]], None]  # called after each block, with all that there are
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
    """The bytes of each column; those of columns that pass many operators are worked out once."""
    return {name: known[id(c)][1] if id(c) in known else nbytes(c) for name, c in block.columns.items()}


def _bytes(block: Block, sizes: dict[str, int]) -> int:
    return sum(sizes.values()) + 8 * block.slots


def fuse_steps(steps: Sequence[Step]) -> list[Step]:
    """Runs of kernels of one fusing kind become one step; a kernel says so by its method ``fuse``."""
    fused: list[Step] = []
    for step in steps:
        join = getattr(fused[-1].kernel, "fuse", None) if fused else None
        both = join(step.kernel) if join is not None else None
        if both is None:
            fused.append(step)
        else:
            last = fused[-1]
            label = f"{last.label} -> {step.label}"
            parts = (*(last.parts or (last,)), *(step.parts or (step,)))
            fused[-1] = Step(both, (*last.operators, *step.operators), label, last.site, parts)
    return fused
