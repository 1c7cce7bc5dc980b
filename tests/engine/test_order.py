"""The order of rows, compared with a model in plain Python that knows nothing of blocks, streams or executors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.datasets.base import Split
from cedar.operators.mix import ROUND, Draw
from cedar.operators.take import TURNS
from tests.toy_runs import run

MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def chained(state: int, *values: int) -> int:
    for value in values:
        state = mix64(state ^ mix64(value & MASK))
    return state


def hashed(*values: int) -> int:
    return chained(len(values), *values)


def lap_within(lap: int, number: int) -> int:
    """The lap of pass ``number`` of a repeat within a lap of the repeat around it: its lower bits count up."""
    if lap == 0:
        return number
    return (hashed(lap, number) >> 1) // TURNS * TURNS + (lap + number) % TURNS


@dataclass(frozen=True)
class Row:
    """A value and its key."""

    x: int
    file: int
    row: int
    sub: int = -1
    repeat: int = 0
    branch: int = 0

    def hash(self, seed: int) -> int:
        return chained(seed, self.branch, self.repeat, self.file, self.row, self.sub)

    def within(self, index: int) -> Row:
        return replace(self, branch=hashed(self.branch, index + 1) >> 1)


Rows = list[Row]
Work = Callable[[Rows], Rows]


Cut: TypeAlias = tuple[int, int, int, Rows]  # source, file, how many rows were read, rows


@dataclass(frozen=True)
class Model:
    """What a pipeline gives, lap by lap.

    ``splits`` gives each split's source, file and rows, and how many were read for them, where rows come straight from
    sources; elsewhere
    windows count the rows of ``base``, below the row-wise operators ``above``.
    """

    base: Callable[[int], Rows]
    above: tuple[Work, ...] = ()
    splits: Callable[[int], list[Cut]] | None = None

    def rows(self, lap: int) -> Rows:
        return applied(self.above, self.base(lap))


def applied(works: tuple[Work, ...], rows: Rows) -> Rows:
    for work in works:
        rows = work(rows)
    return rows


@dataclass(frozen=True)
class Pair:
    pipeline: cedar.Pipeline
    model: Model


class Source:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def splits(self) -> list[Split]:
        return [Split(file=i, rows=size, bytes=8 * size, part=i) for i, size in enumerate(self.sizes)]

    def read(self, split: Split) -> list[pa.Table]:
        return [pa.table({"x": pa.array(values(split.part, self.sizes[split.part]), pa.int64())})]


def values(file: int, size: int) -> list[int]:
    return [100 * file + i for i in range(size)]


class Builder:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.seed, self.epoch = self.draw.randint(0, 3), self.draw.randint(0, 2)
        self.expanded = False
        self.names: list[str] = []

    def key(self, operator_seed: int) -> int:
        return hashed(self.seed, self.epoch, operator_seed, 0x5EED)

    def tree(self, depth: int) -> Pair:
        pair = self.join(depth) if depth else self.source()
        for _ in range(self.draw.randint(1, 3)):
            kind = self.draw.choice(["filter", "map", "expand", "shuffle", "shuffle", "take", "skip", "repeat"])
            self.names.append(kind)
            pair = getattr(self, kind)(pair)
        return pair

    def source(self) -> Pair:
        sizes = [self.draw.randint(0, 6) for _ in range(self.draw.randint(1, 5))]
        sizes[0] += 1

        def splits(lap: int) -> list[Cut]:
            return [
                (0, f, n, [Row(x, f, i, repeat=lap) for i, x in enumerate(values(f, n))]) for f, n in enumerate(sizes)
            ]

        model = Model(lambda lap: [row for *_, rows in splits(lap) for row in rows], (), splits)
        return Pair(cedar.from_source(Source(sizes)), model)

    def join(self, depth: int) -> Pair:
        pairs = [self.tree(depth - 1), self.tree(0)]
        kind = self.draw.choice(["concat", "mix", "zip"])
        self.names.append(kind)
        models = [pair.model for pair in pairs]
        if kind == "concat":
            return Pair(cedar.concat(*(pair.pipeline for pair in pairs)), concat(models))
        if kind == "zip":
            left, right = (pair.pipeline for pair in pairs)
            joined = cedar.zip(left, right.rename({"x": "y"})).with_columns(x=col("x") * 3 + col("y")).drop("y")

            def side_by_side(lap: int) -> Rows:
                both = zip(models[0].rows(lap), models[1].rows(lap), strict=False)
                return [replace(a, x=a.x * 3 + b.x) for a, b in both]

            return Pair(joined, Model(side_by_side, (lambda rows: rows,)))
        seed, stop = self.draw.randint(0, 9), self.draw.choice(["first", "all"])
        weights = (0.6, 0.4)
        parts = [(pair.pipeline, weight) for pair, weight in zip(pairs, weights, strict=True)]
        key = self.key(seed)
        return Pair(cedar.mix(parts, seed=seed, stop=stop), Model(lambda lap: mixed(models, weights, key, stop, lap)))

    # ---- row by row --------------------------------------------------------------------------------------------------

    def filter(self, pair: Pair) -> Pair:
        n = self.draw.randint(2, 4)
        return row_wise(pair, pair.pipeline.filter(col("x") % n != 0), lambda rows: [r for r in rows if r.x % n])

    def map(self, pair: Pair) -> Pair:
        made = pair.pipeline.map(lambda x: x + 3, "x", dtype=int)
        return row_wise(pair, made, lambda rows: [replace(r, x=r.x + 3) for r in rows])

    def expand(self, pair: Pair) -> Pair:
        if self.expanded:  # the keys of a nested flat_map are hashes of hashes
            return pair
        self.expanded = True
        made = pair.pipeline.flat_map(lambda x: [x] * (x % 3), "x", dtype=int)
        return row_wise(pair, made, lambda rows: [replace(r, sub=i) for r in rows for i in range(r.x % 3)])

    # ---- order -------------------------------------------------------------------------------------------------------

    def shuffle(self, pair: Pair) -> Pair:
        seed, window = self.draw.randint(0, 9), self.draw.randint(1, 12)
        key = self.key(seed)
        model = pair.model

        def rows(lap: int) -> Rows:
            parts = windows_of_splits(model, window, key, lap) if model.splits else windows_of_rows(model, window, lap)
            return [row for part in parts for row in sorted(part, key=lambda r: r.hash(key))]

        return Pair(pair.pipeline.shuffle(seed=seed, window=window), Model(rows))

    def take(self, pair: Pair) -> Pair:
        n = self.draw.randint(0, 30)
        return Pair(pair.pipeline.take(n), Model(lambda lap: pair.model.rows(lap)[:n]))

    def skip(self, pair: Pair) -> Pair:
        n = self.draw.randint(0, 5)
        return Pair(pair.pipeline.skip(n), Model(lambda lap: pair.model.rows(lap)[n:]))

    def repeat(self, pair: Pair) -> Pair:
        def rows(lap: int) -> Rows:
            return [row for number in range(2) for row in pair.model.rows(lap_within(lap, number))]

        return Pair(pair.pipeline.repeat(2), Model(rows))


def row_wise(pair: Pair, pipeline: cedar.Pipeline, work: Work) -> Pair:
    model = pair.model
    below = model.splits
    splits = None if below is None else lambda lap: [(*cut, work(rows)) for *cut, rows in below(lap)]
    return Pair(pipeline, Model(model.base, (*model.above, work), splits))


def concat(models: list[Model]) -> Model:
    def rows(lap: int) -> Rows:
        return [row.within(i) for i, model in enumerate(models) for row in model.rows(lap)]

    cuts = [model.splits for model in models if model.splits is not None]

    def splits(lap: int) -> list[Cut]:
        found: list[Cut] = []
        for i, cut in enumerate(cuts):
            before = found[-1][0] + 1 if found else 0
            found += [(before + s, f, n, [row.within(i) for row in part]) for s, f, n, part in cut(lap)]
        return found

    return Model(rows, (), splits if len(cuts) == len(models) else None)


def mixed(models: list[Model], weights: tuple[float, ...], key: int, stop: str, lap: int) -> Rows:
    """Of each round of positions an input takes its share, in the order of the positions' hashes; where an input is
    short, rounds begin again without it.
    """
    left = [[row.within(i) for row in model.rows(lap)][::-1] for i, model in enumerate(models)]
    draw, gone = Draw(key, weights), [False] * len(models)
    out: Rows = []
    while not all(gone):
        start, number, short = len(out), 0, None
        while short is None:
            shares = zip(draw.taken(start, number, gone), draw.taken(start, number + 1, gone), strict=True)
            inputs = [i for i, (before, after) in enumerate(shares) for _ in range(after - before)]
            positions = range(start + number * ROUND, start + (number + 1) * ROUND)
            picks = dict(zip(sorted(positions, key=lambda at: chained(key, at)), inputs, strict=True))
            for at in positions:
                if not left[picks[at]]:
                    short = picks[at]
                    break
                out.append(left[picks[at]].pop())
            number += 1
        if stop == "first":
            break
        gone[short] = True
    return out


def windows_of_rows(model: Model, window: int, lap: int) -> list[Rows]:
    base = model.base(lap)
    return [applied(model.above, base[i : i + window]) for i in range(0, len(base), window)]


def windows_of_splits(model: Model, window: int, key: int, lap: int) -> list[Rows]:
    """Splits in the order of their hashes; a window is a run of them that holds enough rows."""
    assert model.splits is not None
    cut = model.splits(lap)
    seed = hashed(key, 1)
    windows: list[Rows] = [[]]
    held = 0
    for _, _, size, rows in sorted(cut, key=lambda c: chained(chained(hashed(seed, lap, c[0]), c[1]), 0)):
        windows[-1] += rows
        held += size
        if held >= window:
            windows.append([])
            held = 0
    return windows


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_rows_come_in_the_order_of_the_model(first: int) -> None:
    for seed in range(first, first + 20):
        builder = Builder(seed)
        pair = builder.tree(builder.draw.randint(0, 2))
        expected = [row.x for row in pair.model.rows(0)]
        for executor in ("inline", "threads"):
            loader = pair.pipeline.loader(executor=executor, seed=builder.seed, epoch=builder.epoch)
            assert [row["x"] for row in loader] == expected, (seed, builder.names)
        batches, _ = run(pair.pipeline.batch(3, last="keep").loader(seed=builder.seed, epoch=builder.epoch))
        assert [x for b in batches for x in b["x"]] == expected, (seed, builder.names)


def test_a_row_draws_from_its_key_alone() -> None:
    import numpy as np

    def draw(x: int, rng: np.random.Generator) -> int:
        return int(rng.integers(1 << 60))

    p = cedar.from_source(Source([3, 4])).map(draw, "x", into="a", random=True)
    p = p.map(draw, "x", into="b", random=True).map(draw, "x", into="c", random=True, name="mine")
    got: dict[int, Any] = {row["x"]: row for row in p.shuffle().loader(seed=5, epoch=2)}
    for file, size in enumerate([3, 4]):
        for i, x in enumerate(values(file, size)):
            for name, seed in (("a", 1), ("b", 2), ("c", hashed(int.from_bytes(b"mine", "little")))):
                word = hashed(5, 2, seed)
                keyed = np.random.Generator(
                    np.random.Philox(key=np.array([Row(x, file, i).hash(word), word], np.uint64))
                )
                assert got[x][name] == int(keyed.integers(1 << 60))
