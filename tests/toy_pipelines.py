"""Random pipelines with a plain-Python model of their rows, for property tests."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import cedar
from cedar import col


def expand(n: int) -> list[int]:
    """What ``flat_map`` does to a number in the toy pipelines."""
    return list(range(n % 3))


@dataclass
class Toy:
    """A pipeline over columns ``id`` (unique per source row), ``x`` and ``l``, and what is known of it."""

    pipeline: cedar.Pipeline
    operators: int
    names: list[str]
    packed: bool = False


class Source:
    """Splits of uneven size, some empty, so that no boundary falls where another does."""

    def __init__(self, start: int, sizes: list[int], known: bool) -> None:
        self._start, self._sizes, self._known = start, sizes, known

    def splits(self) -> list[Any]:
        from cedar.datasets.base import Split

        return [
            Split(file=number, rows=size if self._known else None, bytes=size * 64, part=number)
            for number, size in enumerate(self._sizes)
        ]

    def read(self, split: Any) -> list[pa.Table]:
        size = self._sizes[split.part]
        ids = [self._start + 1000 * split.part + i for i in range(size)]
        table = pa.table({
            "id": pa.array(ids, pa.int64()),
            "x": pa.array([i % 7 for i in ids], pa.int64()),
            "l": pa.array([list(range(i % 4)) for i in ids], pa.large_list(pa.int64())),
        })
        cut = size // 2
        return [table.slice(0, cut), table.slice(cut)]


def build(draw: random.Random, least: int = 10) -> Toy:
    """A random DAG of at least ``least`` operators: mix, zip, concat, shuffle, flat_map, filter, pack and more."""
    state = _Builder(draw)
    pipeline = state.tree(draw.randint(1, 3))
    state.joined = True
    while state.operators < least - 1:
        pipeline = state.grow(pipeline)
    packed = state.packed
    pipeline = pipeline.batch(draw.randint(1, 9), last=draw.choice(["drop", "keep", "keep", "pad"]))
    return Toy(pipeline, state.operators + 1, state.names, packed)


class _Builder:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.operators = 0
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
        self.operators += 1
        self.names.append("source")
        return cedar.from_source(Source(self.sources * 100_000, sizes, known))

    def tree(self, joins: int) -> cedar.Pipeline:
        if joins == 0:
            return self.grow(self.source())
        left = self.tree(joins - 1)
        kind = self.draw.choice(["mix", "concat", "zip", "shared"])
        self.operators += 1
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
        self.operators += 1
        kind = self.draw.choice(["map", "filter", "filter_fn", "flat_map", "shuffle", "shuffle", "with_columns", "take",
                                 "skip", "repeat", "random", "map_batches", "grouped", "pack"])  # fmt: skip
        if kind == "pack" and (self.packed or not self.joined or self.draw.random() < 0.7):
            kind = "map"
        self.names.append(kind)
        if kind == "map":
            return p.map(lambda x: x + 1, "x", dtype=int)
        if kind == "filter":
            return p.filter(col("x") % 5 != self.draw.randint(0, 4))
        if kind == "filter_fn":
            value = self.draw.randint(0, 4)
            return p.filter(lambda x: x % 5 != value, "x")
        if kind == "flat_map":
            return p.flat_map(expand, "x", into="x", dtype=int)
        if kind == "shuffle":
            window = self.draw.choice(["256MiB", 3, 10, 17])
            return p.shuffle(seed=self.draw.randint(0, 9), window=window)
        if kind == "with_columns":
            return p.with_columns(x=col("x") * 3 % 11)
        if kind == "take":
            return p.take(self.draw.randint(5, 60))
        if kind == "skip":
            return p.skip(self.draw.randint(0, 5))
        if kind == "repeat":
            return p.repeat(self.draw.randint(1, 2))
        if kind == "random":
            return p.map(lambda x, rng: x + int(rng.integers(0, 3)), "x", random=True, dtype=int)
        if kind == "map_batches":
            return p.map_batches(lambda c: {"x": c["x"] + 1}, "x", format="numpy")
        if kind == "grouped":
            return p.map_batches(lambda c: {"x": c["x"] + len(c["x"])}, "x", format="numpy", size=self.draw.randint(2, 6))
        self.packed = True
        packed = p.pack(5, "l", fit=self.draw.choice(["concat", "best"]))
        return packed.map(lambda a, b: int(a.sum() * 7 + b.sum()), "l", "segment_ids", into="x", dtype=int)
