"""Random pipelines, for property tests: what they give is compared with themselves, run in another way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

import cedar
from cedar import col
from cedar.datasets.base import Split

ROW_KINDS = (
    "map filter filter_fn flat_map with_columns random map_batches grouped failing refilled cache "
    "shuffle shuffle shuffle_by take skip repeat sample pack"
).split()
TABLE_KINDS = "split split unique join join".split()
BATCH_KINDS = "batch_map batch_filter batch_shuffle batch_take batch_skip batch_repeat".split()


def expand(n: int) -> list[int]:
    """What ``flat_map`` does to a number in the toy pipelines."""
    return list(range(n % 3))


@dataclass
class Toy:
    """A pipeline over columns ``id`` (unique per source row), ``x`` and ``l``, and what is known of it."""

    pipeline: cedar.Pipeline
    names: list[str]
    size: int
    last: str


class Source:
    """Splits of uneven size, some empty, so that no boundary falls where another does.

    ``cut`` decides how many rows ``read`` yields at a time; it must never show in a result.
    """

    def __init__(self, start: int, sizes: list[int], known: bool, cut: int = 0) -> None:
        self._start, self._sizes, self._known, self._cut = start, sizes, known, cut

    def splits(self) -> list[Any]:
        return [
            Split(file=number, rows=size if self._known else None, bytes=size * 64, part=number)
            for number, size in enumerate(self._sizes)
        ]

    def read(self, split: Any) -> list[pa.Table]:
        size = self._sizes[split.part]
        ids = [self._start + 1000 * split.part + i for i in range(size)]
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "x": pa.array([i % 7 for i in ids], pa.int64()),
                "l": pa.array([list(range(i % 4)) for i in ids], pa.large_list(pa.int64())),
                "views": pa.array([["a" * (i % 20)] * (i % 3) for i in ids], pa.list_view(pa.string_view())),
                "pairs": pa.array([[i % 5, i % 3] for i in ids], pa.list_(pa.int16(), 2)),
            }
        )
        if self._cut == 0:
            return [table.slice(0, size // 2), table.slice(size // 2)]
        draw = random.Random(self._cut + split.part)
        cuts = [0, *sorted(draw.randint(0, size) for _ in range(draw.randint(0, 4))), size]
        return [table.slice(a, b - a) for a, b in pairwise(cuts)]


def build(
    draw: random.Random, least: int = 10, cut: int = 0, balanced: bool = False, kinds: Sequence[str] = ROW_KINDS
) -> Toy:
    """A random DAG of at least ``least`` operators: mix, zip, concat, shuffle, flat_map, filter, pack and more;
    ``balanced``: its batches are balanced by ``x`` between ranks, and nothing else is done to them.

    The same draws give the same pipeline; ``cut`` only changes how its sources cut their rows into chunks.
    """
    state = _Builder(draw, cut, kinds)
    pipeline = state.tree(draw.randint(1, 3))
    state.joined = True
    batch_kinds = 0 if balanced else draw.choice([0, 0, 0, 1, 2])
    while len(state.names) < least - 1 - batch_kinds:
        pipeline = state.grow(pipeline)
    size, last = draw.randint(1, 9), draw.choice(["drop", "keep", "keep", "pad"])
    pipeline = pipeline.batch(size, last=last)  # type: ignore[arg-type]
    state.names.append("batch")
    if balanced:
        pipeline = pipeline.balance("x")
        state.names.append("balance")
    for _ in range(batch_kinds):
        pipeline = state.grow_batches(pipeline)
    return Toy(pipeline, state.names, size, last)


def fails(x: int) -> int:
    """Fails on some rows."""
    if x % 5 == 2:
        raise ValueError(x)
    return x


class _Builder:
    def __init__(self, draw: random.Random, cut: int, kinds: Sequence[str]) -> None:
        self.draw = draw
        self.cut = cut
        self.kinds = kinds
        self.names: list[str] = []
        self.sources = 0
        self.packed = False
        self.zips = 0
        self.joined = False  # nothing is joined on top any more, so the columns may change

    def source(self) -> cedar.Pipeline:
        sizes = [self.draw.choice([0, 1, 3, 8, 21]) for _ in range(self.draw.randint(1, 5))]
        sizes[0] = max(sizes[0], 3)
        known = self.draw.random() < 0.7
        self.sources += 1
        self.names.append("source")
        return cedar.from_source(Source(self.sources * 100_000, sizes, known, self.cut))

    def tree(self, joins: int) -> cedar.Pipeline:
        if joins == 0:
            return self.grow(self.source())
        left = self.tree(joins - 1)
        kind = self.draw.choice(["mix", "concat", "zip", "shared"])
        self.names.append(kind)
        if kind == "mix":
            stop = self.draw.choice(["first", "all", "all"])
            return cedar.mix([(left, 0.6), (self.tree(0), 0.4)], seed=self.draw.randint(0, 9), stop=stop)
        if kind == "concat":
            return cedar.concat(left, self.tree(0))
        self.zips += 1
        other = left if kind == "shared" else self.tree(0)
        right = other.select(**{f"z{self.zips}": col("id") * 2})
        return cedar.zip(left, right).with_columns(x=col("x") + col(f"z{self.zips}") % 3).drop(f"z{self.zips}")

    def grow(self, p: cedar.Pipeline) -> cedar.Pipeline:
        kind = self.draw.choice(self.kinds)
        if kind == "pack" and (self.packed or not self.joined or self.draw.random() < 0.5):
            kind = "map"
        if kind == "sample" and self.names[-1] != "source":  # no rows at all would be an error
            kind = "shuffle"
        self.names.append(kind)
        if kind in ("take", "skip", "repeat", "sample", "shuffle", "shuffle_by"):
            return self._ordered(p, kind)
        return self._row_wise(p, kind)

    def _ordered(self, p: cedar.Pipeline, kind: str) -> cedar.Pipeline:
        draw = self.draw
        if kind == "take":
            return p.take(draw.randint(5, 60))
        if kind == "skip":
            return p.skip(draw.randint(0, 5))
        if kind == "repeat":
            return p.repeat(draw.randint(1, 2))
        if kind == "sample":
            return p.sample(n=draw.randint(1, 60), replace=True, seed=draw.randint(0, 9))
        window = draw.choice(["256MiB", 3, 10, 17])
        by = {"by": "x", "interleave": draw.randint(1, 3)} if kind == "shuffle_by" else {}
        return p.shuffle(seed=draw.randint(0, 9), window=window, **by)

    def _row_wise(self, p: cedar.Pipeline, kind: str) -> cedar.Pipeline:
        draw = self.draw
        if kind == "filter":
            return p.filter(col("x") % 5 != draw.randint(0, 4))
        if kind == "filter_fn":
            value = draw.randint(0, 4)
            return p.filter(lambda x: x % 5 != value, "x")
        if kind == "flat_map":
            return p.flat_map(expand, "x", into="x", dtype=int)
        if kind == "with_columns":
            return p.with_columns(x=col("x") * 3 % 11)
        if kind == "random":
            return p.map(lambda x, rng: x + int(rng.integers(0, 3)), "x", random=True, dtype=int)
        if kind == "map_batches":
            return p.map_batches(lambda c: {"x": c["x"] + 1}, "x", format="numpy")
        if kind == "grouped":
            return p.map_batches(lambda c: {"x": c["x"] + len(c["x"])}, "x", format="numpy", size=draw.randint(2, 6))
        if kind in ("failing", "refilled"):
            return p.map(fails, "x", dtype=int, on_error=cedar.Skip(refill=kind == "refilled"))
        if kind in TABLE_KINDS:
            return self._as_table(p, kind)
        if kind == "cache":
            return p.cache("memory")
        if kind == "map":
            return p.map(lambda x: x + 1, "x", dtype=int)
        self.packed = True
        packed = p.pack(5, "l", fit=draw.choice(["concat", "best"]))
        return packed.map(lambda a, b: int(a.sum() * 7 + b.sum()), "l", "segment_ids", into="x", dtype=int)

    def _as_table(self, p: cedar.Pipeline, kind: str) -> cedar.Pipeline:
        draw = self.draw
        if kind == "split":
            return p.split({"a": 0.7, "b": 0.3}, by=draw.choice([None, "x"]), seed=draw.randint(0, 9))["a"]
        if kind == "unique":
            try:
                return p.unique(["id", "x"], keep=draw.choice(["first", "last"]))
            except cedar.PipelineError:  # rows that differ from epoch to epoch
                return p
        other = pa.table({"x": range(6), "j": [draw.randint(0, 3) for _ in range(6)]})
        how = draw.choice(["left", "inner", "semi", "anti"])
        joined = p.join(cedar.from_arrow(other) if draw.random() < 0.3 else other, on="x", how=how)
        if how in ("semi", "anti"):
            return joined
        return joined.with_columns(x=col("x") + col("j").fill_null(0)).drop("j")

    def grow_batches(self, p: cedar.Pipeline) -> cedar.Pipeline:
        """An operator whose unit is the batch."""
        kind = self.draw.choice(BATCH_KINDS)
        self.names.append(kind)
        if kind == "batch_map":
            return p.map(lambda x: x * 2 + len(x), "x", dtype=int)
        if kind == "batch_filter":
            return p.filter(lambda x: len(x) % 4 != 1, "x")
        if kind == "batch_shuffle":
            return p.shuffle(seed=self.draw.randint(0, 9), window=self.draw.choice(["256MiB", 3]))
        if kind == "batch_take":
            return p.take(self.draw.randint(2, 12))
        if kind == "batch_skip":
            return p.skip(self.draw.randint(0, 2))
        return p.repeat(2)
