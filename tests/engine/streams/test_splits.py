"""Order, windows and lanes of splits, compared with a plain-Python model that goes through them one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.cursor import hash_ints, mix64
from cedar.datasets.base import BaseSource, Split
from cedar.datasets.split_table import SplitTable
from cedar.engine.streams import splits as module
from cedar.engine.streams.lanes import Lane
from cedar.engine.streams.splits import SplitSegment, SplitStream, Window

MAYBE = st.none() | st.integers(0, 1 << 25)
SPLITS = st.lists(
    st.builds(Split, st.integers(0, 9), rows=MAYBE, bytes=MAYBE, streaming=st.sampled_from([False] * 5 + [True])),
    max_size=40,
)


@dataclass
class Source(BaseSource):
    row_bytes: float | None = None
    left_out: frozenset[int] = frozenset()

    def splits(self) -> Any:
        raise NotImplementedError

    def read(self, split: Split) -> Any:
        raise NotImplementedError

    def prune(self, split: Split, predicate: Any) -> bool:
        return split.file in self.left_out


SOURCES = st.builds(
    Source, st.none() | st.floats(0.1, 1e6), st.frozensets(st.integers(0, 9), max_size=3)
)  # floats round: windows depend on the order of additions
WINDOWS = st.builds(Window, st.integers(1, 1 << 28)) | st.builds(Window, st.none(), st.integers(1, 1 << 26))


@dataclass
class Model:
    """What the splits of some sources come to, by loops."""

    parts: list[tuple[Source, list[Split]]]
    window: Window
    permute: int | None
    lane: Lane | None

    @property
    def entries(self) -> list[tuple[int, Split]]:
        return [(i, split) for i, (_, splits) in enumerate(self.parts) for split in splits]

    def row_bytes(self, part: int) -> float:
        source, splits = self.parts[part]
        if source.row_bytes:
            return float(source.row_bytes)
        rows = sum(s.rows or 0 for s in splits)
        size = sum(s.bytes or 0 for s in splits if s.rows)
        return size / rows if rows and size else 1024.0

    def bytes(self) -> list[float]:
        return [float(s.bytes if s.bytes is not None else (s.rows or 0) * self.row_bytes(i)) for i, s in self.entries]

    def sizes(self) -> tuple[list[float], float]:
        if self.window.rows is not None:
            rows = [s.rows if s.rows is not None else (s.bytes or 0) / self.row_bytes(i) for i, s in self.entries]
            return [float(r) for r in rows], float(self.window.rows)
        counts = [s.rows for _, s in self.entries]
        known = None if None in counts else sum(cast("list[int]", counts))
        return self.bytes(), self.window.limit(float(np.array(self.bytes()).sum()), known)

    def order(self, lap: int) -> list[int]:
        order = list(range(len(self.entries)))
        if self.permute is not None:
            seed, entries = (self.permute, lap), self.entries

            def hashed(i: int) -> int:
                state = hash_ints(*seed, entries[i][0])
                for part in (entries[i][1].file, entries[i][1].start):
                    state = mix64(state ^ mix64(part))
                return state

            order.sort(key=hashed)
        if self.lane is None or len(order) < self.lane.of:  # such are shared by keys
            return order
        weights = [
            0.0 if s.file in self.parts[i][0].left_out else w
            for (i, s), w in zip(self.entries, self.bytes(), strict=True)
        ]
        loads = [0.0] * self.lane.of
        mine = []
        for place in sorted(range(len(order)), key=lambda place: -weights[order[place]]):
            lane = min(range(self.lane.of), key=lambda lane: (loads[lane], lane))
            loads[lane] += max(weights[order[place]], 1.0)
            if lane == (self.lane.number + lap) % self.lane.of:
                mine.append(place)
        return [order[place] for place in sorted(mine)]

    def windows(self, order: list[int]) -> list[list[int]]:
        sizes, limit = self.sizes()
        windows: list[list[int]] = [[]]
        held = 0.0
        for i in order:
            windows[-1].append(i)
            held += sizes[i]
            if held >= limit or self.entries[i][1].streaming:
                windows.append([])
                held = 0.0
        return [window for window in windows if window]


@given(
    st.lists(st.tuples(SOURCES, SPLITS), min_size=1, max_size=3),
    WINDOWS,
    st.none() | st.integers(0, 1 << 62),
    st.none() | st.integers(0, 2),
    st.integers(0, 1 << 20),
    st.sampled_from([1, 3, 1 << 16]),
)
def test_order_windows_and_lanes_are_those_of_the_model(
    parts: list[tuple[Source, list[Split]]], window: Window, permute: int | None, lane: int | None, lap: int, few: int
) -> None:
    mine = None if lane is None else Lane(lane, 3)
    model = Model(parts, window, permute, mine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SUM_CHUNK", few)
        segments = tuple(
            SplitSegment(cast("Any", None), source, i, SplitTable.of(splits), ("kept",) if source.left_out else ())
            for i, (source, splits) in enumerate(parts)
        )
        stream = SplitStream(segments, window, permute, True, cast("Any", None), mine)
        layout = stream.layout(lap)
    order = model.order(lap)
    windows = model.windows(order)
    assert layout.order.tolist() == order
    assert layout.ends.tolist() == [i == w[-1] for w in windows for i in w]
    assert layout.starts.tolist()[: len(windows)] == [sum(map(len, windows[:n])) for n in range(len(windows))]
    assert [stream.entry(i) for i in order] == [(segments[p], s) for p, s in (model.entries[i] for i in order)]
    rows = [split.rows for _, split in model.entries]
    assert stream.count == (None if mine or None in rows else sum(cast("list[int]", rows)))
    if stream.count:
        _units_are_found(stream, [cast("int", rows[i]) for i in order], windows, lap)


def _units_are_found(stream: SplitStream, rows: list[int], windows: list[list[int]], lap: int) -> None:
    assert isinstance(stream.count, int)
    for unit in {0, 1, stream.count // 2, stream.count - 1} & set(range(stream.count)):
        place = next(i for i in range(len(rows)) if sum(rows[: i + 1]) > unit)
        assert stream.seek(unit, lap) == [[place, 0], unit - sum(rows[:place])]
        number = max(n for n in (sum(map(len, windows[:i])) for i in range(len(windows))) if n <= place)
        assert stream.seek_window(unit, lap) == ([[number, 0], 0], sum(rows[:number]))
        (found, first), before = stream.seek_window(unit, lap)
        assert all(type(value) is int for value in [*found, first, before, *stream.seek(unit, lap)[0]])  # JSON
