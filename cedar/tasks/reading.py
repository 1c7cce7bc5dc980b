"""Read a split and run a chain of kernels on its blocks. This is what a reading task does in every executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from cedar.control.timeline import Part
from cedar.core.block import TAKEN_OUT, Block, Skipped
from cedar.core.boundary import as_columns
from cedar.core.columns import Column, Index, blank, nbytes
from cedar.core.cursor import Keys
from cedar.core.errors import CedarError, RowError, Site, Skip, SourceError, raised
from cedar.core.limits import MemoryReservation, take
from cedar.core.numeric import arrived
from cedar.core.requests import OwnedRequests, Use, request_owner
from cedar.datasets.base import GONE, LOST, UNCOUNTED, BaseSource, Chunk, Split, file_ids, offsets_of, skippable
from cedar.operators.base import Env
from cedar.operators.marks import BlockKilled, Marks, reading
from cedar.tasks import clocks
from cedar.tasks.chain import KernelStep, Program, Result, Timing, own_copy, run_steps

Hand: TypeAlias = Callable[[int, Block], None]
OnBlock: TypeAlias = Callable[[Sequence[Block]], None]  # called after each block, with all blocks so far


class SplitReader(Protocol):
    """Everything that a task asks of a reader: a ``Reader``, or one that wraps it, for a scan or a cache."""

    @property
    def plain(self) -> Reader:
        """The reader of the source, without the plan's changes."""

    @property
    def as_written(self) -> SplitReader:
        """The reader of the same rows for running a program in the order as written."""

    @property
    def steps(self) -> tuple[KernelStep, ...]:
        """The steps that the reader runs on the rows of the source, in order."""

    @property
    def caches(self) -> bool:
        """Whether blocks may come from a cache, so that they do not count as read."""

    def read_blocks(self, split: Split, lap: int, env: Env, timing: Timing) -> Iterator[Block]:
        """Yield the blocks of a split, after the reader's own steps. ``timing`` receives its measurements."""


@dataclass(frozen=True)
class Reader:
    """Reads a source in a run. It has the source's ordinal and the policy for rows that cannot be read."""

    source: BaseSource
    ordinal: int
    operator: int = 0
    label: str = ""
    on_error: Skip | None = None
    site: Site | None = None
    steps: ClassVar[tuple[KernelStep, ...]] = ()
    caches: ClassVar[bool] = False

    @property
    def plain(self) -> Reader:
        return self

    @property
    def as_written(self) -> Reader:
        return self

    def read_blocks(self, split: Split, lap: int, env: Env, timing: Timing) -> Iterator[Block]:
        for block in self.blocks(split, lap):
            timing.rows_read += block.slots
            yield block

    def reads_rows(self, split: Split) -> bool:
        """Return whether ``columns_of_rows`` takes less time than ``blocks``."""
        return not self.source.tolerant and self.source.reads_rows(split)

    def columns_of_rows(self, split: Split, wanted: Index) -> Iterator[dict[str, Column]]:
        """Yield the columns of the rows at the ascending positions ``wanted`` of a split."""
        try:
            for chunk in guarded(self.source, split, partial(self.source.read_rows, wanted=wanted)):
                yield as_columns(chunk.columns)
        except CedarError as error:
            error.site = error.site or self.site
            raise

    def blocks(self, split: Split, lap: int) -> Iterator[Block]:
        """Yield the split's rows with their keys. A bad row raises, or becomes a dead slot if ``on_error`` skips it."""
        try:
            yield from self._blocks(split, lap)
        except CedarError as error:
            if self.source.reads_files:
                skippable(error)
            error.site = error.site or self.site
            raise

    def _blocks(self, split: Split, lap: int) -> Iterator[Block]:
        gone = split.part <= GONE
        if self.on_error is not None and self.source.reports_bad_rows and not gone:
            for chunk, failed in guarded(self.source, split, self.source.read_valid_rows):
                yield self._with_failed_rows(chunk, failed, split, lap)
            return
        first, row = 0, split.start
        tolerant = gone or self.source.tolerant
        try:
            for chunk in guarded(self.source, split, self.source.read_whole if tolerant else None):
                block = self._block(chunk, split, first, lap)
                first += chunk.rows
                row = int(block.keys.row[-1]) + 1 if block.slots else row
                yield block
        except (SourceError, RowError) as error:
            if not tolerant:
                raise
            yield from self._rest_after_error(error, split, lap, first, row)

    def file(self, split: Split) -> int:
        """Return the file id in the row keys of a split."""
        return int(file_ids(self.source, np.asarray(split.file)))

    def _block(self, chunk: Chunk, split: Split, first: int, lap: int) -> Block:
        """Return a chunk as a block with row keys. ``first`` is the chunk's first row, counted within the split."""
        start = split.start + first
        file = self.file(split) if chunk.files is None else file_ids(self.source, chunk.files)
        return Block(as_columns(chunk.columns), Keys(offsets_of(chunk, start), file, repeat=lap, source=self.ordinal))

    def _rest_after_error(self, error: CedarError, split: Split, lap: int, first: int, row: int) -> Iterator[Block]:
        """Yield the rest of a split after an error: one dead slot per row, or a single one if the count is unknown."""
        pieces = self.source.pieces(split, first) if split.part > GONE else ()
        if len(pieces) > 1:
            for piece in pieces:
                yield from self._blocks(piece, lap)
            return
        known = split.rows is not None and split.part > UNCOUNTED and split.part != LOST
        count = (split.rows or 0) - first if known else 1
        keys = Keys(np.arange(row, row + count), self.file(split), repeat=lap, source=self.ordinal)
        refill = self.on_error is not None and self.on_error.refill
        lost = count if known else TAKEN_OUT if split.part == UNCOUNTED else -1
        why = Skipped(self.operator, self.label, error.what, refill, (row, lost))
        types = (self.source.schema() or {}).items()
        yield Block({name: blank(kind, 0) for name, kind in types}, keys, dict.fromkeys(range(count), why))

    def _with_failed_rows(self, chunk: Chunk, failed: dict[int, CedarError], split: Split, lap: int) -> Block:
        """Return the chunk's rows in order of row number, with a dead slot for each failed row."""
        block = self._block(chunk, split, 0, lap)
        rows = np.sort(np.concatenate([block.keys.row, np.array(list(failed), dtype=np.int64)]))
        assert self.on_error is not None
        for error in failed.values():
            if isinstance(error.__cause__, BlockKilled) and not self.on_error.blocks:
                raise error
        dead = {
            int(np.searchsorted(rows, row)): Skipped(self.operator, self.label, error.what, self.on_error.refill)
            for row, error in failed.items()
        }
        return Block(block.columns, replace(block.keys, row=rows), dead)


def read_split(
    program: Program, reader: SplitReader, split: Split, lap: int, env: Env, first: int = 0, hand: Hand | None = None
) -> Result:
    """Run a reading task: read a whole split, and run the chain on its rows, starting with row number ``first``.

    Args:
        hand: receives each block and its number once the next block exists, unless a rerun could change the block. The
            last block is only in the result, so that no caller gets all rows of an unfinished split.
    """
    before = None if env.numeric is None else arrived()

    def on_block(blocks: Sequence[Block]) -> None:
        fixed = program.written is None and (env.numeric is None or arrived() == before)
        if hand is not None and fixed and len(blocks) > 1:
            hand(len(blocks) - 2, blocks[-2])

    def work() -> Result:
        timing = Timing(storage=Use())
        with OwnedRequests(timing.storage), MemoryReservation("a task", env.limits):
            try:
                return Result(_read(program.steps, reader, split, lap, env, first, timing, on_block), timing)
            except Exception:
                if program.written is None:
                    raise
                timing.fell_back += 1
                plain, unwatched = reader.as_written, replace(env, watch="")
                return Result(_read(program.written, plain, split, lap, unwatched, first, Timing(), on_block), timing)

    clocks.watch_compilation()
    began = time.perf_counter()
    again = not reader.plain.source.one_pass
    result = work() if env.numeric is None else env.numeric.run(work, again=again)
    result.timing.began = began
    result.timing.ended()
    return result


def _read(
    steps: Sequence[KernelStep], reader: SplitReader, split: Split, lap: int, env: Env, first: int, timing: Timing,
    on_block: OnBlock,
) -> list[Block]:  # fmt: skip
    start = clocks.now()
    scanning = Timing()
    blocks = []
    inside = clocks.Reading(0.0, 0.0)  # time spent in the steps
    read_blocks = reader.read_blocks(split, lap, env, scanning)
    for block in read_blocks if env.marks is None else marked(read_blocks, reader.plain, split, first, env.marks):
        timing.rows_passed += 0 if reader.caches else block.slots
        if env.watch in ("detail", "whole") and not reader.caches:
            for name, column in block.columns.items():
                timing.read_columns[name] = timing.read_columns.get(name, 0) + nbytes(column)
        if env.watch == "audit":  # copied, as an in-memory source returns the same objects again
            block = own_copy(block)
        entered = clocks.now()
        result = run_steps(steps, from_row(block, first) if first else block, env, timing)
        size = 0
        for column in result.columns.values():
            size += nbytes(column) if isinstance(column, np.ndarray) else 0
        take(size, "its rows")
        blocks.append(result)
        inside = inside.plus(clocks.now().since(entered))
        on_block(blocks)
    for _, wall, cpu in scanning.parts:
        inside = inside.plus(clocks.Reading(wall, cpu))
    timing.take(scanning)
    took = clocks.now().since(start)
    read: Part = ("read", (reader.plain.operator,))
    timing.parts.append((read, max(took.wall - inside.wall, 0.0), max(took.cpu - inside.cpu, 0.0)))
    return blocks


def marked(blocks: Iterator[Block], plain: Reader, split: Split, first: int, marks: Marks) -> Iterator[Block]:
    """Yield the blocks. While a block is being read, record that in the task's marks."""
    at = max(first, split.start)
    while True:
        with reading(marks, plain.ordinal, plain.file(split), at, split.stop or 0):
            block = next(blocks, None)
        if block is None:
            return
        yield block


def from_row(block: Block, first: int) -> Block:
    """Return the block without rows whose row number in the file is below ``first``."""
    return block.slice(int(np.searchsorted(block.keys.row, first)), block.slots) if block.slots else block


def guarded(source: BaseSource, split: Split, read: Any = None) -> Any:
    """Yield the chunks of a split. Errors of the reader are raised as a SourceError that names the file."""
    run = request_owner()
    try:
        for chunk in (read or source.read)(split):
            run.check()
            yield chunk
    except (CedarError, GeneratorExit):
        raise
    except raised() as error:
        if run.over:
            raise
        url = source.url(split.file)
        raise SourceError(
            f"{url} cannot be read: {type(error).__name__}: {error}",
            done="reading stopped; no row of this split was delivered",
            fix="check that the file exists, is complete and has the right format",
        ) from error
