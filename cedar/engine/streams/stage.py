"""StageStream: gather rows and run kernels on them in tasks. Tasks run ahead; results are delivered in order."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from cedar.core import columns
from cedar.core.block import Block
from cedar.core.buffers import BatchPlace, Room
from cedar.core.cursor import no_keys
from cedar.core.stream import (
    PENDING,
    At,
    Count,
    Fenced,
    Flow,
    Piece,
    Position,
    Pulled,
    Rows,
    Stream,
    concat_rows,
)
from cedar.engine.task_context import Tasks
from cedar.operators.base import Env
from cedar.plan.physical import TASK_SECONDS
from cedar.tasks.chain import Program, Result

_RAMP = 0.05  # task duration as a fraction of the run's time so far; small first tasks deliver the first batch early
_TARGET_BYTES = 4 << 20  # target bytes of a task's result, so that results fit into CPU caches and use little memory
_FIRST_ROWS = 16
_MOST_ROWS = 1 << 16
_EMPTY = Block({}, no_keys())
_FEW_ROWS = 2048  # pieces with fewer rows are joined into one task


class StageStream(Stream):
    """Applies kernels to the rows of another stream, ``source``.

    In a position, ``at`` is that of ``source``, and ``skip`` counts output units from there. Therefore positions do not
    depend on the order of row operators, or on how these are cut into stages and tasks. With ``per_row``, task sizes
    follow from measured times, and are small enough that every worker has tasks.
    """

    def __init__(
        self, source: Stream, program: Callable[[], Program], keeps_rows: bool, per_row: bool, tasks: Tasks
    ) -> None:
        self.source = source
        self._program = program
        self.per_row = per_row
        self.tasks = tasks
        self.keeps_rows = keeps_rows
        self.batch = 0  # size of the batches made directly above this stage; 0 if there are none

    @cached_property
    def program(self) -> Program:
        """The kernels that the stage's tasks run; bound on first use."""
        return self._program()

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self.source.count if self.keeps_rows else None

    @cached_property
    def fills_batches(self) -> bool:
        """Whether tasks write directly into the memory of a batch, which needs known row sizes and large batches."""
        return self.tasks.runner.local and self.batch * self.program.row_bytes >= _TARGET_BYTES

    @property
    def any_order(self) -> bool:
        """Whether tasks can be delivered as they finish: they are small, and each output row has one input row."""
        return self.keeps_rows and self.per_row

    @property
    def reopens_quickly(self) -> bool:
        return self.source.reopens_quickly

    def start(self) -> At:
        return self.source.start()

    def seek(self, unit: int, lap: int = 0) -> Position:
        return self.source.seek(unit, lap) if self.keeps_rows else [self.start(), unit]

    def rows_of(self, unit: int) -> range | None:
        return self.source.rows_of(unit) if self.keeps_rows else None

    def seek_window(self, unit: int, lap: int = 0) -> tuple[Position, int]:
        return self.source.seek_window(unit, lap)

    def rebase(self, piece: Piece) -> At | None:
        return self.source.rebase(piece) if self.keeps_rows else None

    def open(self, position: Position, lap: int = 0) -> Flow:
        if not self.keeps_rows:
            return super().open(position, lap)
        return StageFlow(self, self.source.open(position, lap), position)

    def fits(self, at: At) -> bool:
        return self.source.fits(at)

    def open_at(self, at: At, lap: int) -> Flow:
        return StageFlow(self, self.source.open([at, 0], lap), [at, 0])

    def place(self, base: Position | None, piece: Piece) -> Position:
        """Return the position of the first output unit of ``piece``; ``base`` is the one after the previous unit."""
        at = self.source.rebase(piece)
        if at is not None:
            return [at, 0]
        return [piece.at, 0] if base is None or (piece.skip == 0 and piece.at != base[0]) else base


class StageFlow(Flow):
    """Submits the tasks of a stage, and delivers their results.

    Args:
        stream: the stage.
        source: the flow of the stream below.
        opened: the position where ``source`` was opened.
    """

    def __init__(self, stream: StageStream, source: Flow, opened: Position) -> None:
        self._stream = stream
        self._next: Position | None = opened  # position of the next unit
        self._fenced = False
        self._source = source
        self._runner = stream.tasks.runner
        # Submitted tasks, and the pieces that they work on; a piece without units, which ends a window, has no task.
        self._tasks: deque[tuple[Future[Result] | Result | None, Piece]] = deque()
        self._held: deque[Piece] = deque()  # pieces that were pulled or cut, but not submitted yet
        self._ended = False
        self._short = False  # whether fewer tasks are in progress than possible, for lack of input rows
        self._opened = time.perf_counter()
        self._rows = _FIRST_ROWS if stream.per_row else _MOST_ROWS
        self._pace = 0.0  # seconds of work per unit in recent tasks; 0 before the first
        self._begun = False
        self._hurries = True  # whether the next task is the first, for which the caller waits
        self._units = 0  # number of units submitted so far; a flow begins at the start of a batch
        self._room: Room | None = None

    def limit(self, units: int) -> None:
        if self._stream.count is not None:  # each output unit comes from one input unit
            self._source.limit(units)

    def pull(self, wait: bool) -> Pulled:
        if not self._tasks:
            self._top_up(wait)
        if not self._tasks:
            if self._fenced:
                raise Fenced
            return None if self._ended else PENDING
        task, piece = self._tasks[0]
        if not wait and _running(task):
            self._top_up(False)
            return PENDING
        while self._short and (running := _running(task)):
            another = self._runner.reads.another()  # also wake up for newly read rows, to give other workers tasks
            self._top_up(False)
            if self._short:
                self._runner.wait([*running, another], self._stream.program.awaited)
        done = self._finish(task, piece)
        self._tasks.popleft()
        self._top_up(False)
        return done

    def pull_ready(self, wait: bool, wanted: int | None) -> Pulled:
        """Like ``pull``, but deliver any finished task; if a task begins with unit ``wanted``, wait for that one.

        The positions of the flow below must be unit numbers.
        """
        untaken = self._runner.untaken
        while True:
            another = [] if untaken is None else [untaken.another()]  # also wake up for results that the source needs
            self._top_up(wait)
            if not self._tasks:
                return self.pull(wait)
            chosen = [task for task in self._tasks if sum(task[1].position()) == wanted] or self._tasks
            task = next((task for task in chosen if not _running(task[0])), None)
            if task is not None:
                break
            if not wait:
                return PENDING
            futures = [future for task, _ in chosen for future in _running(task)]
            self._runner.wait([*futures, *another], self._stream.program.awaited)
        piece = self._finish(*task)
        self._tasks.remove(task)
        self._top_up(False)
        return piece

    def _finish(self, task: Future[Result] | Result | None, piece: Piece) -> Piece:
        """Return the result of a task on a piece."""
        stream = self._stream
        at, skip = (piece.at, piece.skip) if stream.keeps_rows else stream.place(self._next, piece)
        if task is None:
            return Piece(Rows.of(_EMPTY), at, skip, False, piece.ends_window)
        result = task if isinstance(task, Result) else self._runner.result(task, stream.program.awaited)
        metrics, ordinals = stream.tasks.metrics, stream.program.ordinals
        block = result.blocks[0]
        size = block.nbytes if stream.per_row and not piece.batch else 0
        metrics.add(result.timing, None, not self._runner.local, len(piece.rows.row), ordinals, size=size)
        result_bytes = 0  # columns in formats that do not report bytes count as 0
        for column in block.columns.values():
            known = columns.nbytes(column) if isinstance(column, pa.Array) else getattr(column, "nbytes", 0)
            result_bytes += int(known)
        metrics.results[stream.program.label] = result_bytes
        if stream.per_row and not piece.batch:
            worked = sum(wall for (kind, _), wall, _ in result.timing.parts if kind == "operator")
            self._adapt(piece.units, worked, size)
        slots = len(block.keys.row)
        # A filter on batches may have removed the whole batch.
        batch = piece.batch and (slots > 0 or not block.aligned)
        rows = Rows((block,), range(slots))
        self._next = [at, skip + (1 if batch else slots)]
        return Piece(rows, at, skip, batch, piece.ends_window, piece.key, piece.keeps, piece.joined, piece.end)

    def _adapt(self, units: int, seconds: float, size: int) -> None:
        pace = seconds / units
        self._pace = self._pace + (pace - self._pace) / 4 if self._pace else pace  # one slow task changes little
        target = min(TASK_SECONDS, _RAMP * (time.perf_counter() - self._opened))
        ideal = min(target / max(self._pace, 1e-9), units * _TARGET_BYTES / max(size, 1))
        self._rows = int(min(max(ideal, self._rows / 4, 1), self._rows * 4, _MOST_ROWS))

    def _top_up(self, wait: bool) -> None:
        stream = self._stream
        ahead = self._runner.ahead_of(stream.tasks.metrics.results.get(stream.program.label, 0))
        if not self._begun:  # this is the first use of the program, which binds its kernels
            self._begun = True
            self._rows = min(self._rows, max(1, _TARGET_BYTES // max(self._stream.program.row_bytes, 1)))
            if stream.per_row:
                measured = stream.tasks.metrics.rows_per_task(stream.program.ordinals, TASK_SECONDS, _TARGET_BYTES)
                if measured is not None:  # by an earlier plan or epoch
                    self._rows, self._opened = min(measured, _MOST_ROWS), -math.inf
        self._short = False
        while len(self._tasks) < ahead and not self._ended:
            try:
                piece = self._next_piece(wait and not self._tasks)
            except Fenced:  # raised again after tasks in progress are delivered
                self._ended = self._fenced = True
                return
            if piece is PENDING:
                self._short = True
                return
            if not isinstance(piece, Piece):
                self._ended = True
                return
            if stream.tasks.watcher.fence and stream.per_row and stream.reopens_quickly:
                self._ended = self._fenced = True  # the next plan reads again what was read ahead
                return
            if not piece.units:
                if piece.ends_window:
                    self._tasks.append((None, piece))
                continue
            env = stream.tasks.watcher.task_env(stream.tasks.env, stream.program)
            if stream.fills_batches:
                env = self._with_place(env, piece.units)
            self._tasks.append((self._runner.run(stream.program, piece.rows, env, self._hurries), piece))
            self._hurries = False

    def _with_place(self, env: Env, units: int) -> Env:
        """Add to ``env`` where in the batch's memory a task writes its rows, if the task is within one batch."""
        size, first = self._stream.batch, self._units % self._stream.batch
        self._units += units
        if first == 0:
            self._room = Room(size)
        if self._room is None or first + units > size:
            return env
        return replace(env, place=BatchPlace(self._room, first, units))

    def _next_piece(self, wait: bool) -> Pulled:
        """Return the units of the next task, cut from a large piece or joined from small ones."""
        while True:
            first = self._held.popleft() if self._held else self._source.pull(wait)
            if not isinstance(first, Piece) or first.batch:
                return first
            most = self._rows
            if self._stream.fills_batches:  # a task must not span two batches
                most = min(most, self._stream.batch - self._units % self._stream.batch)
            if first.units > most:
                self._held.appendleft(first.slice(most, first.units))
                return first.slice(0, most)
            separate = self._stream.per_row or first.ends_window or first.end is not None
            if separate or first.units >= _FEW_ROWS or first.units == 0:
                return first
            return self._joined(first)

    def _joined(self, first: Piece) -> Piece:
        runs, units, ends, joined = [first.rows], first.units, False, first.joined
        while units < _FEW_ROWS and not ends:
            more = self._held.popleft() if self._held else self._source.pull(False)
            if not isinstance(more, Piece):
                break
            if more.batch or units + more.units > self._rows:
                self._held.appendleft(more)
                break
            if more.units:
                runs.append(more.rows)
                joined = True
            units += more.units
            ends = more.ends_window
        # All joined pieces are from one window.
        return Piece(concat_rows(runs), first.at, first.skip, False, ends, keeps=first.keeps, joined=joined)

    def close(self) -> None:
        for task, _ in self._tasks:
            if (cancel := getattr(task, "cancel", None)) is not None:  # uses no global name, for interpreter exit
                cancel()
        self._tasks.clear()
        self._source.close()


def _running(task: Future[Result] | Result | None) -> list[Future[Result]]:
    """Return the future of a task that is not done yet; otherwise an empty list."""
    return [] if task is None or isinstance(task, Result) or task.done() else [task]
