"""SplitFlow: read splits ahead, each as a whole or chunk by chunk."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import nbytes
from cedar.core.cursor import no_keys
from cedar.core.errors import PipelineError
from cedar.core.stream import PENDING, Altered, At, Fenced, Flow, Piece, Pulled, Rows
from cedar.datasets.base import UNCOUNTED, Split
from cedar.operators.base import Env
from cedar.tasks.chain import Result, Timing

if TYPE_CHECKING:
    from cedar.engine.streams.splits import SplitSegment, SplitStream


class SplitFlow(Flow):
    """Reads the splits of a stream in order, from index ``place`` of the layout and row ``row`` of that split on."""

    def __init__(self, stream: SplitStream, place: int, row: int, lap: int) -> None:
        self._stream = stream
        self._layout = stream.layout(lap)
        self._lap = lap
        self._place = place
        self._row = row
        self._stop = len(self._layout.order)  # index of the first split that must not be read ahead
        self._begun = False
        self._readers: deque[_SplitTask | _Chunks] = deque()
        self._ready: deque[Piece] = deque()

    def limit(self, units: int) -> None:
        before = self._layout.before
        if before is not None:
            first = self._place + (self._row > 0)  # assume that a split entered in the middle has no rows left
            reached = before[min(first, len(before) - 1)] + units
            self._stop = int(np.searchsorted(before, reached))

    def pull(self, wait: bool) -> Pulled:
        while not self._ready:
            if not self._readers:
                if not wait and self._stop <= self._place < len(self._layout.order):
                    return PENDING  # beyond the limit, splits are only read when the caller waits
                self._stop = max(self._stop, self._place + 1)
            self._top_up()
            if not self._readers:
                if self._fenced():
                    raise Fenced
                if text := self._altered():
                    if not wait:  # units before this split can be computed without it
                        return PENDING
                    raise Altered(text)
                return None
            head = self._readers[0]
            if not wait and not head.done():
                return PENDING
            self._ready.extend(head.take())
            if head.exhausted:
                self._readers.popleft()
        self._top_up()
        return self._ready.popleft()

    def _top_up(self) -> None:
        limit = self._stream.ahead
        stop = min(self._stop, len(self._layout.order))
        while len(self._readers) < limit and self._place < stop and not self._fenced() and not self._altered():
            if self._readers and isinstance(self._readers[-1], _Chunks) and len(self._readers) * 2 >= limit:
                break
            self._readers.append(self._next_reader())
        for reader in self._readers:
            if isinstance(reader, _Chunks):
                reader.advance()

    def _fenced(self) -> bool:
        """Whether reading must stop here, so that the next plan reads the next window (or split, without windows)."""
        place = self._place
        if not self._stream.tasks.watcher.fence or not 0 < place < len(self._layout.order):
            return False
        return not self._stream.windowed or bool(self._layout.ends[place - 1])

    def _altered(self) -> str | None:
        """While a position is checked, return how the next split differs from when the state was saved, if it does."""
        if not self._stream.alters or self._place >= len(self._layout.order):
            return None
        return self._stream.altered(self._layout, self._place)

    def _next_reader(self) -> _SplitTask | _Chunks:
        place, row = self._place, self._row
        self._place, self._row = place + 1, 0
        segment, split = self._stream.entry(int(self._layout.order[place]))
        if split.part <= UNCOUNTED:
            row = 0  # the split of a missing file only reports that the file is missing
        if split.streaming:
            return _Chunks(self._stream, segment, split, place, row, self._lap)
        ends, before = bool(self._layout.ends[place]), self._layout.before
        counted = segment.counted is not None and before is not None and not row
        left = int(before[place + 1] - before[place]) if counted else None  # type: ignore[index]
        runner = self._stream.tasks.runner
        early, self._begun = not self._begun and left is None and runner.local and not runner.inline, True
        return _SplitTask(self._stream, segment, split, [place, row], self._lap, ends, left, early)

    def close(self) -> None:
        for reader in self._readers:
            reader.cancel()
        self._readers.clear()


class _SplitTask:
    """Reads a split in one task.

    Args:
        left: the expected number of output rows, if the rows that filters keep were counted.
        early: whether blocks are delivered before the task ends, so that the first batch need not wait for it.
    """

    def __init__(
        self, stream: SplitStream, segment: SplitSegment, split: Split, at: At, lap: int, ends: bool,
        left: int | None, early: bool,
    ) -> None:  # fmt: skip
        tasks = stream.tasks
        self._runner = tasks.runner
        self._tasks = tasks
        self._segment = segment
        self._at = at
        self._ends = ends
        self._split, self._expected_rows = split, left
        self._keeps = stream.splits_begun(stream.layout(lap), at[0])
        self._bytes = split.bytes or 0
        self._rows_early = self._left_early = 0  # input and output rows of blocks delivered before the task ended
        self._taken = self._skip = 0  # numbers of blocks and of rows delivered so far
        self._early = _EarlyBlocks() if early else None
        self.exhausted = False
        hand = None if self._early is None else self._early.hand
        reader, program = segment.made
        env = tasks.watcher.task_env(tasks.env, program, segment.operator)
        self._program = program
        self._future: Future[Result] = tasks.runner.read(program, reader, split, lap, env, at[1], hand)
        if self._early is not None:
            self._future.add_done_callback(self._early.end)

    def done(self) -> bool:
        return self._future.done() if self._early is None else self._early.blocks[self._taken].done()

    def take(self) -> Iterator[Piece]:
        if self._early is not None:
            block = self._runner.result(self._early.blocks[self._taken], "reading a split")
            self._early.blocks[self._taken] = Future()  # releases the block
            if block is not None:
                self._taken += 1
                self._rows_early += block.slots
                operator, ordinals, left = self._segment.operator, self._program.ordinals, block.slots
                self._left_early += left
                size = 0 if ordinals else sum(map(nbytes, block.columns.values()))
                self._tasks.metrics.read_so_far(operator, left, ordinals, left, size)
                yield from self._pieces([block], last=False)
                return
        self.exhausted = True
        result = self._runner.result(self._future, "reading a split")
        rows, segment = self._split.rows or result.timing.rows_read + result.timing.rows_kept, self._segment
        rows = max(rows - self._rows_early, 0)
        given, count = [], 0
        for block in result.blocks:
            if slots := block.slots:
                given.append(block)
                count += slots
        self._tasks.done(result.timing, segment.operator, rows, self._program, given, self._left_early)
        self._tasks.metrics.bytes_read += self._bytes if result.timing.rows_read else 0
        if self._expected_rows is not None and self._expected_rows != count:
            raise _miscounted(self._segment, self._split, self._expected_rows, count)
        blocks = result.blocks[self._taken :]
        yield from self._pieces([b for b in blocks if b.slots] or blocks[:1] or [Block({}, no_keys())], last=True)

    def _pieces(self, blocks: list[Block], last: bool) -> Iterator[Piece]:
        for i, block in enumerate(blocks):
            ends = last and self._ends and i == len(blocks) - 1
            yield Piece(Rows.of(block), self._at, self._skip, ends_window=ends, keeps=self._keeps)
            self._skip += block.slots

    def cancel(self) -> None:
        self._future.cancel()


class _EarlyBlocks:
    """Blocks that a task in this process delivers while it is still running."""

    def __init__(self) -> None:
        self.blocks: list[Future[Block | None]] = [Future()]  # the last is the next block, or None at the task's end

    def hand(self, number: int, block: Block) -> None:
        """Add block ``number``; ignore a block added before, which a retried task computes again."""
        if number == len(self.blocks) - 1:
            self.blocks.append(Future())
            self.blocks[-2].set_result(block)

    def end(self, _: Future[Result]) -> None:
        """Record the end of the task, whether it succeeded or failed."""
        self.blocks[-1].set_result(None)


def _miscounted(segment: SplitSegment, split: Split, left: int, count: int) -> PipelineError:
    assert segment.counted is not None
    filters = segment.counted.filters
    names = " and ".join(node.operator.label() for node in filters)
    return PipelineError(
        f"{names} leaves {count} rows of {segment.source.url(split.file)}, rows {split.start} to {split.stop}; it "
        f"left {left} when they were counted",
        site=filters[-1].site,
        fix='with counts="exact" a filter must decide the same for a row each time, and files must not change',
    )


class _Chunks:
    """Reads a split chunk by chunk from an iterator in this process, in one task at a time."""

    def __init__(
        self,
        stream: SplitStream,
        segment: SplitSegment,
        split: Split,
        place: int,
        row: int,
        lap: int,
    ) -> None:
        self._tasks = stream.tasks
        self._segment = segment
        self._place = place
        self._window_rows = stream.window_rows(segment)
        self._keeps = stream.splits_begun(stream.layout(lap), place)
        self._bytes = split.bytes or 0
        self._reader = _ChunkReader(segment, split, row, lap)
        self._row = row
        self._size = 0  # bytes of the last chunk
        self._futures: deque[Future[Result | None]] = deque()
        self.exhausted = False

    def done(self) -> bool:
        return self._futures[0].done()

    def advance(self) -> None:
        """Keep one chunk being read, and at most two finished chunks."""
        runner = self._tasks.runner
        most = 3 if runner.bound is None else min(3, runner.ahead_of(self._size))
        if self.exhausted or len(self._futures) >= most or (self._futures and not self._futures[-1].done()):
            return
        if self._futures and not self._futures[-1].cancelled() and self._futures[-1].exception() is None:
            if self._futures[-1].result() is None:
                return
        elif self._futures:
            return
        tasks, segment = self._tasks, self._segment
        measures = bool(tasks.watcher.task_env(tasks.env, segment.made[1], segment.operator).watch)
        self._futures.append(runner.submit(self._reader.next, measures))

    def take(self) -> Iterator[Piece]:
        result = self._tasks.runner.result(self._futures.popleft(), "reading a split")
        if result is None:
            self.exhausted = True
            self._tasks.metrics.bytes_read += self._bytes
            yield Piece(Rows.of(Block({}, no_keys())), [self._place, self._row], 0, ends_window=True)
            return
        (block,) = result.blocks
        segment = self._segment
        self._tasks.done(result.timing, segment.operator, block.slots, segment.made[1], result.blocks)
        self._size = block.nbytes
        rows = Rows.of(block)
        start = 0
        while start < block.slots:
            at = [self._place, self._row]
            stop = min(block.slots, start + self._window_rows - self._row % self._window_rows)
            self._row += stop - start
            yield Piece(
                rows.slice(start, stop), at, 0, ends_window=self._row % self._window_rows == 0, keeps=self._keeps
            )
            start = stop
        self.advance()

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


class _ChunkReader:
    """Reads a streaming split from its iterator, and drops the first ``row`` rows, which were delivered before."""

    def __init__(self, segment: SplitSegment, split: Split, row: int, lap: int) -> None:
        self._blocks: Iterator[Block] = segment.made[0].read_blocks(split, lap, Env(), Timing())
        self._drop = row
        self._operator = segment.operator

    def next(self, measures: bool) -> Result | None:
        """Return the next block, or None at the end; ``measures``: also measure the bytes of its columns."""
        timing, worked = Timing(), time.thread_time()
        for block in self._blocks:
            dropped = min(self._drop, block.slots)
            self._drop -= dropped
            if dropped < block.slots:
                block = block.slice(dropped, block.slots)
                timing.rows_read = timing.rows_passed = block.slots
                if measures:
                    timing.read_columns = {name: nbytes(column) for name, column in block.columns.items()}
                wall = time.perf_counter() - timing.began
                timing.parts.append((("read", (self._operator,)), wall, time.thread_time() - worked))
                timing.ended()
                return Result([block], timing)
        return None
