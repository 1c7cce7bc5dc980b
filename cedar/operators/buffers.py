"""Shared parts of stream operators: buffers of units (rows or batches), and task queues that keep results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypeVar

from cedar.core.errors import Site, require_columns
from cedar.core.stream import PENDING, Flow, GeneratorFlow, Pending, Piece, Pieces, Position, Rows, concat_rows

T = TypeVar("T")
Step: TypeAlias = "Callable[[bool], tuple[T, Any] | Pending | None]"

DEPTH = 4  # tasks in progress per operator; a few are enough, because each processes a whole block


class Buffer:
    """A buffer of units that were pulled from a flow.

    Args:
        flow: the flow that supplies units; ``position`` is the position at which it was opened.
        prepare: a function that is applied once to the rows of each piece.
    """

    def __init__(self, flow: Flow, position: Position, prepare: Callable[[Rows], Rows] | None = None) -> None:
        self._flow = flow
        self._prepare = prepare
        self._pieces: deque[Piece] = deque()
        self._after = position
        self.units = 0
        self.ended = False
        self.batch = False

    def limit(self, units: int) -> None:
        """Limit the flow's prefetching to ``units`` more units."""
        self._flow.limit(units)

    def fill(self, wait: bool) -> bool:
        """Pull one piece from the flow; return False if none was ready."""
        piece = self._flow.pull(wait)
        if piece is PENDING:
            return False
        if piece is None:
            self.ended = True
        elif isinstance(piece, Piece) and piece.units:
            if self._prepare is not None:
                piece = replace(piece, rows=self._prepare(piece.rows))
            self.batch = piece.batch
            self._pieces.append(piece)
            self.units += piece.units
        return True

    @property
    def position(self) -> Position:
        """The position of the next unit."""
        return self._pieces[0].position() if self._pieces else self._after

    def take(self, units: int) -> list[Rows]:
        """Remove the next ``units`` units; return their rows as a list of contiguous runs."""
        runs = []
        self.units -= units
        while units:
            piece = self._pieces.popleft()
            taken = min(units, piece.units)
            units -= taken
            runs.append(piece.slice(0, taken).rows)
            self._after = piece.position(taken)
            if taken < piece.units:
                self._pieces.appendleft(piece.slice(taken, piece.units))
        return runs

    def close(self) -> None:
        self._pieces.clear()
        self._flow.close()


def chunked(flow: Flow, position: Position, units: int) -> Flow:
    """Regroup a flow, opened at ``position``, into pieces of ``units`` units; the last piece may be shorter."""
    buffer = Buffer(flow, position)

    def pieces() -> Pieces:
        wait = yield PENDING
        while True:
            while buffer.units < units and not buffer.ended:
                if not buffer.fill(wait):
                    wait = yield PENDING
            if not buffer.units:
                return
            at, skip = buffer.position
            wait = yield Piece(concat_rows(buffer.take(min(units, buffer.units))), at, skip)

    return GeneratorFlow(pieces(), buffer)


class OrderedTasks(Generic[T]):
    """A queue of tasks in progress that returns their results in order.

    Args:
        step: a function of ``wait`` that starts the next task and returns (tag, future), or (tag, None) without a task.
            It returns None at the end, and PENDING if it would have to wait but ``wait`` is False. It may also be the
            ``send`` of a generator that has yielded once.
        depth: the maximum number of tasks in progress.
    """

    def __init__(self, step: Step[T], depth: int = DEPTH) -> None:
        self._step = step
        self._depth = depth
        self._queue: deque[tuple[T, Any]] = deque()
        self._ended = False
        self._error: Exception | None = None

    def pull(self, wait: bool) -> tuple[T, Any] | Pending | None:
        """Return the next tag and result; PENDING if they are not ready, None at the end."""
        self._fill(wait)
        if not self._queue:
            if self._error is not None:
                raise self._error
            return None if self._ended else PENDING
        tag, future = self._queue[0]
        if future is not None and not wait and not future.done():
            return PENDING
        self._queue.popleft()
        return tag, None if future is None else future.result()

    def _fill(self, wait: bool) -> None:
        while len(self._queue) < self._depth and not self._ended:
            try:
                started = self._step(wait and not self._queue)
            except StopIteration:
                started = None
            except Exception as error:
                self._ended = True
                if not self._queue:
                    self._error = error
                    raise
                self._error = error  # raised later, because results of earlier tasks are delivered first
                return
            if started is None:
                self._ended = True
            elif isinstance(started, Pending):
                return
            else:
                self._queue.append(started)

    def close(self) -> None:
        """Cancel the tasks that have not started."""
        self._ended = True
        while self._queue:
            _, future = self._queue.popleft()
            if future is not None:
                future.cancel()


def task_per_piece(flow: Flow, task: Callable[[Piece], Any]) -> Step[Piece]:
    """Return a step for ``OrderedTasks`` that starts ``task`` on each nonempty piece of a flow."""

    def step(wait: bool) -> tuple[Piece, Any] | Pending | None:
        piece = flow.pull(wait)
        if not isinstance(piece, Piece):
            return piece
        return piece, task(piece) if piece.units else None

    return step


def keep_columns(rows: Rows, names: Iterable[str], label: str, site: Site | None) -> Rows:
    """Return the rows with only some columns, so that a task gathers and sends no more than it needs.

    Raises:
        PipelineError: a column does not exist; the message names the operator ``label``.
    """
    names = list(names)
    for block in rows.blocks:
        require_columns(names, block.columns, label, site)
    return replace(rows, blocks=tuple(b.only_columns({n: b.columns[n] for n in names}) for b in rows.blocks))
