"""SplitStream: read splits in order and ahead of use; the reading tasks also run the kernels fused with the source.

This stream is the bottom of every plan. The order of splits and the windows depend only on metadata. A window is a run
of whole splits whose decoded size reaches the limit. A streaming split may be large, and is cut into runs of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.cursor import Hashes, hash_array, hash_ints
from cedar.core.stream import Altered, At, Flow, Piece, Position, Stream
from cedar.datasets.base import BaseSource, Split, file_ids, row_bytes_of
from cedar.datasets.split_table import SplitTable
from cedar.engine.streams.lanes import Lane, RowsByKey, assigned_by_key
from cedar.engine.streams.split_flow import SplitFlow
from cedar.engine.task_context import Tasks
from cedar.plan.splits import SplitCounts
from cedar.tasks.chain import Program
from cedar.tasks.reading import SplitReader

_DEFAULT_ROW_BYTES = 1024
_MIN_WINDOW_BYTES = 8 << 20
_MIN_WINDOW_ROWS = 1 << 16
_WINDOWS_PER_EPOCH = 64
_LARGE_SPLIT_BYTES = 16 << 20
_SUM_CHUNK = 1 << 16  # number of splits whose sizes are converted to Python floats at a time

_START = [0, 0]  # compared by identity, to tell it from an equal position in a state

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """A window's size as the user set it, in bytes or in rows.

    If it is in bytes, a window is also limited to 1/64 of the epoch, but not below 8 MiB or 65,536 rows, whichever is
    less. Therefore several ranks can share an epoch without reading many of each other's rows.
    """

    bytes: int | None = 256 << 20
    rows: int | None = None

    def limit(self, size: float, rows: int | None) -> float:
        """Return the bytes of a window, for an epoch of ``size`` bytes and ``rows`` rows (None if unknown)."""
        least = min(_MIN_WINDOW_BYTES, size * _MIN_WINDOW_ROWS / rows) if rows else _MIN_WINDOW_BYTES
        return min(float(self.bytes or 0), max(size / _WINDOWS_PER_EPOCH, least))


@dataclass(frozen=True)
class SplitSegment:
    """A source, its operator number, and the program that the reading tasks run on its blocks.

    Args:
        make: creates the reader (Reader, ScanReader or KeptReader) and the program, on first use.
        conditions: filter conditions of the pipeline as written; splits without matching rows get weight 0.
        counted: number of rows of each split that pass the filters, if these were counted.
    """

    make: Callable[[], tuple[SplitReader, Program]]
    source: BaseSource
    operator: int
    splits: SplitTable
    conditions: tuple[Any, ...] = ()
    counted: SplitCounts | None = None

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Number of rows that each split outputs, -1 if unknown."""
        return self.splits.rows if self.counted is None else self.counted.rows

    @property
    def known_rows(self) -> int:
        return self.splits.known_rows if self.counted is None else int(self.counted.rows.sum())

    def hashes(self, seed: int) -> Hashes:
        """Return a hash of each split's file id and start, which identify the split."""
        file = self.splits.column("file").astype(np.int64, copy=False)
        start = self.splits.column("start").astype(np.int64, copy=False)
        return np.asarray(hash_array(hash_array(seed, file_ids(self.source, file)), start), dtype=np.uint64)

    @cached_property
    def made(self) -> tuple[SplitReader, Program]:
        """The reader and the program."""
        return self.make()


@dataclass(frozen=True)
class Layout:
    """The order of splits in one pass, and their windows."""

    order: npt.NDArray[np.int64]  # split numbers over all segments
    ends: npt.NDArray[np.bool_]  # whether a window ends at each split
    before: npt.NDArray[np.int64] | None  # cumulative rows, one entry longer than order; None if unknown
    starts: npt.NDArray[np.int64]  # index in order of each window's first split


class SplitStream(Stream):
    """Reads the splits of one source, or of several sources below a concat, in order or permuted.

    Args:
        segments: the sources, in order.
        window: size of windows.
        permute: seed of the permutation of splits; None keeps their order.
        keeps_rows: whether the kernels neither add nor remove rows.
        lane: read only the splits of this lane; None reads all.
        windowed: whether an operator above works window by window.
    """

    def __init__(
        self,
        segments: tuple[SplitSegment, ...],
        window: Window,
        permute: int | None,
        keeps_rows: bool,
        tasks: Tasks,
        lane: Lane | None = None,
        windowed: bool = True,
    ) -> None:
        self.windowed = windowed
        self.reports_begun = False  # whether pieces report how many splits the lane has started
        self.alters = any(segment.source.altered for segment in segments)
        self.may_lag = False  # whether other ranks may have delivered rows of later splits
        self.segments = segments
        self.tasks = tasks
        self.lane = lane
        self._window = window
        self.permuted = permute is not None
        self._permute = permute
        self._all_rows = keeps_rows
        self.streaming, self._counted = False, True
        firsts, rows = [0], 0  # number of the first split of each segment, and rows of all
        for segment in segments:
            firsts.append(firsts[-1] + len(segment.splits))
            self.streaming = self.streaming or segment.splits.streams
            self._counted = self._counted and segment.splits.counted
            rows += segment.known_rows
        self._firsts, self.splits = np.array(firsts), firsts[-1]
        self.count = rows if keeps_rows and lane is None and self._counted else None
        self.layout = lru_cache(maxsize=4)(self._layout)

    @cached_property
    def _by_key(self) -> tuple[bool, ...]:
        """The result of ``assigned_by_key`` for the lane; the order of the first pass determines it for all passes."""
        if self.lane is None:
            return ()
        return assigned_by_key(self._weights[self._order(0)], self.lane.of, self.lane.past)

    @property
    def by_key(self) -> RowsByKey | None:
        """The kernel that selects the lane's rows, if other lanes read the same splits; else None."""
        return None if self.lane is None else self.lane.rows(self._by_key)

    @property
    def _keeps_rows(self) -> bool:
        return self._all_rows and self.by_key is None

    @property
    def ahead(self) -> int:
        """Number of splits to read ahead, derived from the number of workers and the size of splits."""
        runner = self.tasks.runner
        most = runner.ahead
        if self._mean_bytes > _LARGE_SPLIT_BYTES:
            most = min(most, most // 2 + 1)
        return most if runner.bound is None else min(most, runner.ahead_of(self._mean_bytes))

    @cached_property
    def _mean_bytes(self) -> int:
        """Mean decoded bytes of a split."""
        return int(self._bytes.sum()) // self.splits if self.splits else 0

    def entry(self, number: int) -> tuple[SplitSegment, Split]:
        """Return a split and the segment that it belongs to."""
        which = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return self.segments[which], self.segments[which].splits[number - int(self._firsts[which])]

    def altered(self, layout: Layout, place: int) -> str | None:
        """Return how the split at an index of a layout differs from when the state was saved, if it does."""
        segment, split = self.entry(int(layout.order[place]))
        return segment.source.altered.get(split.file)

    def row_bytes(self, segment: SplitSegment) -> float:
        """Return the estimated decoded size of a source's row in bytes."""
        given = row_bytes_of(segment.source)
        if given:
            return float(given)
        rows, size = segment.splits.known_rows, segment.splits.known_bytes_with_rows
        return size / rows if rows and size else _DEFAULT_ROW_BYTES

    @cached_property
    def _bytes(self) -> Floats:
        """Decoded bytes of each split, estimated where they are unknown."""
        values = []
        for segment in self.segments:
            size, rows = segment.splits.bytes, segment.splits.rows
            values.append(np.where(size >= 0, size.astype(np.float64), np.maximum(rows, 0) * self.row_bytes(segment)))
        return _joined(values)

    @cached_property
    def _rows(self) -> Floats:
        """Rows of each split, estimated where they are unknown."""
        values = []
        for segment in self.segments:
            size, rows = segment.splits.bytes, segment.splits.rows
            values.append(np.where(rows >= 0, rows.astype(np.float64), np.maximum(size, 0) / self.row_bytes(segment)))
        return _joined(values)

    @cached_property
    def _weights(self) -> Floats:
        """Bytes of each split; 0 if metadata show that no row passes the filters, so the split is not read."""
        weights = self._bytes.copy()
        for first, segment in zip(self._firsts.tolist(), self.segments, strict=False):
            for number, split in enumerate(segment.splits if segment.conditions else (), first):
                if any(segment.source.prune(split, condition) for condition in segment.conditions):
                    weights[number] = 0.0
        return weights

    def _order(self, lap: int) -> npt.NDArray[np.int64]:
        """Return the splits of all lanes in the order of a pass."""
        if self._permute is None or not self.splits:
            return np.arange(self.splits, dtype=np.int64)
        hashes = [segment.hashes(hash_ints(self._permute, lap, i)) for i, segment in enumerate(self.segments)]
        return np.argsort(_joined(hashes), kind="stable").astype(np.int64, copy=False)

    def _layout(self, lap: int) -> Layout:
        order = self._order(lap)
        if self.lane is not None:
            order = order[self.lane.splits(self._weights[order], lap, self._by_key)]
        if self._window.rows is not None:
            sizes, limit = self._rows, float(self._window.rows)
        else:
            rows = sum([segment.splits.known_rows for segment in self.segments]) if self._counted else None
            sizes, limit = self._bytes, self._window.limit(float(self._bytes.sum()), rows)
        streaming = _joined([segment.splits.streaming for segment in self.segments])[order] if self.streaming else None
        ends = _window_ends(sizes[order], streaming, limit)
        before = None
        if self.count is not None:
            before = np.zeros(len(order) + 1, dtype=np.int64)
            np.cumsum(_joined([segment.rows for segment in self.segments])[order], out=before[1:])
        starts = np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])
        return Layout(order, ends, before, starts)

    def splits_begun(self, layout: Layout, place: int) -> int | None:
        """Return how many splits a lane has started after this one, counting whole windows; None if not reported."""
        if not self.reports_begun:
            return None
        window = int(np.searchsorted(layout.starts, place, side="right"))
        return int(layout.starts[window]) if window < len(layout.starts) else len(layout.order)

    def window_rows(self, segment: SplitSegment) -> int:
        """Return the rows of a window inside a streaming split."""
        if self._window.rows is not None:
            return self._window.rows
        return max(1, int((self._window.bytes or 0) / self.row_bytes(segment)))

    @property
    def reopens_quickly(self) -> bool:
        return not self.streaming

    def start(self) -> At:
        return _START

    def rebase(self, piece: Piece) -> At | None:
        if not self._keeps_rows or self.streaming or not piece.units or piece.joined:
            return None
        row = int(piece.rows.slice(0, 1).keys().row[0])
        return None if piece.skip and not row else [piece.at[0], row]  # rows that are whole files always have number 0

    def seek(self, unit: int, lap: int = 0) -> Position:
        before = self.layout(lap).before
        if before is None:
            return [self.start(), unit]
        place = min(int(np.searchsorted(before, unit, side="right")) - 1, len(before) - 2) if len(before) > 1 else 0
        return [[max(place, 0), 0], unit - int(before[max(place, 0)])]

    def seek_window(self, unit: int, lap: int = 0) -> tuple[Position, int]:
        layout = self.layout(lap)
        assert layout.before is not None
        (place, _), _ = self.seek(unit, lap)
        start = int(layout.starts[int(np.searchsorted(layout.starts, place, side="right")) - 1])
        return [[start, 0], 0], int(layout.before[start])

    def open_at(self, at: At, lap: int) -> Flow:
        if self.alters and self.may_lag and at is not _START:
            layout = self.layout(lap)
            for text in (self.altered(layout, place) for place in range(int(at[0]), len(layout.order))):
                if text is not None:
                    raise Altered(text, delivered=True)
        return SplitFlow(self, int(at[0]), int(at[1]), lap)


def _joined(values: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return an array with the values of all segments."""
    return values[0] if len(values) == 1 else np.concatenate(values)


def _window_ends(sizes: Floats, streaming: npt.NDArray[np.bool_] | None, limit: float) -> npt.NDArray[np.bool_]:
    """Return where windows end: at a split that reaches the limit, at each streaming split, and at the last split.

    Sizes are added one by one, because another order could round differently, and windows must never change.
    """
    ends = np.zeros(len(sizes), dtype=bool) if streaming is None else streaming.copy()
    filled = 0.0
    for low in range(0, len(sizes), _SUM_CHUNK):
        closing = []
        alone = ends[low : low + _SUM_CHUNK].tolist()
        for place, size in enumerate(sizes[low : low + _SUM_CHUNK].tolist(), low):
            filled += size
            if filled >= limit or alone[place - low]:
                closing.append(place)
                filled = 0.0
        ends[closing] = True
    if len(ends):
        ends[-1] = True
    return ends
