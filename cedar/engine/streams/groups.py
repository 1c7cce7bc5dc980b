"""GroupStage: run a kernel on groups of exactly ``size`` rows, and output single rows."""

from __future__ import annotations

from collections.abc import Callable

from cedar.core.stream import At, Count, Flow, Piece, Position, Pulled, Stream
from cedar.engine.streams.stage import StageStream
from cedar.engine.task_context import Tasks
from cedar.tasks.chain import Program


class GroupStage(Stream):
    """Implements ``map_batches(size=n)``. Groups count from the epoch's beginning, so they are equal on all ranks."""

    def __init__(self, groups: Stream, rows: Stream, size: int, program: Callable[[], Program], tasks: Tasks) -> None:
        self._rows = rows
        self._size = size
        self._stage = StageStream(groups, program, True, False, tasks)

    @property
    def count(self) -> Count:  # type: ignore[override]
        return self._rows.count

    def start(self) -> At:
        return self._stage.start()

    def seek(self, unit: int, lap: int = 0) -> Position:
        if self._rows.count is None:  # a group may have more than ``size`` slots, since failed rows keep theirs
            return [self.start(), unit]
        at, _ = self._stage.seek(unit // self._size, lap)
        return [at, unit % self._size]

    def fits(self, at: At) -> bool:
        return self._stage.fits(at)

    def open_at(self, at: At, lap: int) -> Flow:
        return _GroupFlow(self._stage.open([at, 0], lap))


class _GroupFlow(Flow):
    def __init__(self, inner: Flow) -> None:
        self._inner = inner

    def pull(self, wait: bool) -> Pulled:
        piece = self._inner.pull(wait)
        if not isinstance(piece, Piece):
            return piece
        return Piece(piece.rows, piece.at, 0, False, piece.ends_window)

    def close(self) -> None:
        self._inner.close()
