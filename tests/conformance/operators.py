"""The pipelines of the conformance suite, by operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import cedar
from cedar import col
from cedar.datasets.base import Split
from tests.conformance.sources import pipeline, table


class Blocks:
    """Splits with metadata: counts are known without running."""

    def splits(self) -> list[Split]:
        return [Split(i, rows=i + 3, bytes=8 * (i + 3), part=i) for i in range(6)]

    def read(self, split: Split) -> list[pa.Table]:
        return [table(100 * split.part, split.part + 3)]


def known() -> cedar.Pipeline:
    return cedar.from_source(Blocks())


# ---- row by row ------------------------------------------------------------------------------------------------------


@pipeline
def map_value(folder: Path) -> cedar.Pipeline:
    return known().map(lambda x, f: x + f, "x", "f", into="sum").batch(4, last="keep")


@pipeline
def map_two_results(folder: Path) -> cedar.Pipeline:
    return known().map(lambda x: (x, str(x)), "x", into=("a", "b")).batch(4, last="keep")


@pipeline
def map_row(folder: Path) -> cedar.Pipeline:
    return known().map(lambda row: {"id": row["id"], "double": row["x"] * 2}).batch(4, last="keep")


def noisy(x: float, rng: np.random.Generator) -> float:
    return x + rng.normal()


@pipeline
def map_random(folder: Path) -> cedar.Pipeline:
    p = known().map(noisy, "f", random=True).map(noisy, "f", into="g", random=True, name="again")
    return p.shuffle(seed=2).batch(4, last="keep")


class Model:
    """Made once per worker; the rows must not notice."""

    def __init__(self) -> None:
        self.weights = np.arange(3.0)

    def __call__(self, x: int) -> np.ndarray:
        return self.weights * x


@pipeline
def map_class(folder: Path) -> cedar.Pipeline:
    return known().map(Model, "x", into="v").batch(4, last="keep")


async def later(x: int) -> int:
    import asyncio

    await asyncio.sleep(0)
    return x + 1


@pipeline
def map_async(folder: Path) -> cedar.Pipeline:
    return known().map(later, "x").batch(4, last="keep")


class AsyncModel:
    async def __call__(self, x: int) -> int:
        return await later(x) * 2


@pipeline
def map_async_class(folder: Path) -> cedar.Pipeline:
    return known().map(AsyncModel, "x", dtype=int).batch(4, last="keep")


@pipeline
def map_with_timeout(folder: Path) -> cedar.Pipeline:
    return known().map(lambda x: x + 1, "x", timeout=30).batch(4, last="keep")


@pipeline
def map_object(folder: Path) -> cedar.Pipeline:
    return known().map(lambda x: {x, "a"}, "x", into="set", dtype=object).map(len, "set", into="n").drop("set")


@pipeline
def flat_map(folder: Path) -> cedar.Pipeline:
    return known().flat_map(lambda x: range(x % 4), "x", into="i").shuffle(seed=1).batch(4, last="keep")


@pipeline
def flat_map_twice_random(folder: Path) -> cedar.Pipeline:
    p = known().flat_map(lambda x: range(3), "x", into="i").flat_map(lambda i: [i, i], "i")
    return p.map(lambda i, rng: float(rng.random()), "i", into="r", random=True).batch(4, last="keep")


@pipeline
def filter_function(folder: Path) -> cedar.Pipeline:
    return known().filter(lambda x: x % 2 == 1, "x").shuffle().batch(4, last="keep")


@pipeline
def expressions(folder: Path) -> cedar.Pipeline:
    p = known().filter(col("n").is_not_null()).with_columns(y=col("f").log1p(), z=col("l").list.len())
    return p.select("id", "y", "z", w=col("x") * 2).rename({"w": "v"}).batch(4, last="keep")


@pipeline
def select_drop_rows(folder: Path) -> cedar.Pipeline:
    return known().select("id", "s", "l").drop("l").shuffle(seed=3)


def _arrow_add(batch: pa.Table) -> Any:
    return pa.table({"x": pa.array([v + 1 for v in batch.column("x").to_pylist()])})


@pipeline
def map_batches_arrow(folder: Path) -> cedar.Pipeline:
    return known().map_batches(_arrow_add, "x").batch(4, last="keep")


@pipeline
def map_batches_polars(folder: Path) -> cedar.Pipeline:
    return known().map_batches(lambda frame: frame.with_columns(y=col("x") + 1), format="polars").batch(4, last="keep")


@pipeline
def map_batches_numpy_sized(folder: Path) -> cedar.Pipeline:
    centered = known().map_batches(lambda c: {"f": c["f"] - c["f"].mean()}, "f", format="numpy", size=5)
    return centered.shuffle(seed=1).batch(4, last="keep")


@pipeline
def map_batches_torch(folder: Path) -> cedar.Pipeline:
    return known().map_batches(lambda c: {"f": c["f"] * 2}, "f", format="torch").batch(4, last="keep")


def picky(x: int) -> int:
    if x == 3:
        raise ValueError("no threes")
    return x


@pipeline
def skip_rows_that_fail(folder: Path) -> cedar.Pipeline:
    return known().map(picky, "x", dtype=int, on_error=cedar.Skip()).shuffle(seed=1).batch(4, last="keep")


@pipeline
def skip_and_refill(folder: Path) -> cedar.Pipeline:
    return known().map(picky, "x", dtype=int, on_error=cedar.Skip(refill=True)).batch(4, last="keep")


@pipeline
def pad_rows(folder: Path) -> cedar.Pipeline:
    return known().pad("l", to=4, value=-1).batch(4, last="keep")


# ---- order -----------------------------------------------------------------------------------------------------------


@pipeline
def shuffle_small_windows(folder: Path) -> cedar.Pipeline:
    return known().shuffle(seed=5, window=6).shuffle(seed=6, window=4).batch(4, last="keep")


@pipeline
def shuffle_by_group(folder: Path) -> cedar.Pipeline:
    return known().shuffle(seed=5, by="x", interleave=2).batch(4, last="keep")


@pipeline
def sample(folder: Path) -> cedar.Pipeline:
    return known().sample("f", n=30, seed=1).batch(4, last="keep")


@pipeline
def take_skip_repeat(folder: Path) -> cedar.Pipeline:
    p = known().filter(lambda x: x != 2, "x").skip(3).take(17).shuffle(window=5).repeat(3)
    return p.batch(4, last="keep")


@pipeline
def pack_concat(folder: Path) -> cedar.Pipeline:
    return known().pack(8, "l").batch(2, last="keep")


@pipeline
def pack_best(folder: Path) -> cedar.Pipeline:
    return known().pack(6, "l", fit="best").batch(2, last="keep")


@pipeline
def bucket_by_length(folder: Path) -> cedar.Pipeline:
    return known().shuffle().bucket_by_length("l", [2, 4], [6, 4, 2]).pad("l")


@pipeline
def mix(folder: Path) -> cedar.Pipeline:
    a, b = known(), known().with_columns(x=col("x") + 100)
    return cedar.mix([(a, 0.7), (b.filter(lambda x: x % 2 == 1, "x"), 0.3)], seed=3, stop="all").batch(4, last="keep")


@pipeline
def mix_until_the_first_ends(folder: Path) -> cedar.Pipeline:
    return cedar.mix([(known(), 0.5), (known().repeat(), 0.5)], seed=3).batch(4, last="keep")


@pipeline
def zip(folder: Path) -> cedar.Pipeline:
    left = known().select("id").filter(lambda x: x % 3 > 0, "id")
    return cedar.zip(left, known().shuffle().select(other="x")).batch(4, last="keep")


@pipeline
def concat(folder: Path) -> cedar.Pipeline:
    return cedar.concat(known(), known().filter(col("x") > 3), known().take(5)).shuffle(seed=9).batch(4, last="keep")


@pipeline
def diamond(folder: Path) -> cedar.Pipeline:
    shared = known().map(lambda x: x + 1, "x", dtype=int)
    joined = cedar.zip(shared.select("id", "x"), shared.select(y=col("x") * 2).shuffle(window=5))
    return cedar.mix([(joined, 1.0), (joined.with_columns(y=col("y") + 1), 2.0)], stop="all").batch(4, last="keep")


@pipeline
def nested(folder: Path) -> cedar.Pipeline:
    inner = cedar.mix([(known(), 1), (known(), 1)], stop="all").shuffle(window=7)
    both = cedar.concat(inner, cedar.zip(known(), known().select(k="id")).drop("k")).take(60).repeat(2)
    return both.shuffle(seed=8, window=11).batch(4, last="keep")


@pipeline
def batches_drop(folder: Path) -> cedar.Pipeline:
    return known().shuffle().batch(4)


@pipeline
def batches_pad(folder: Path) -> cedar.Pipeline:
    return known().select("id", "x", "l").shuffle().batch(4, last="pad")


# ---- batches ---------------------------------------------------------------------------------------------------------


@pipeline
def map_on_batches(folder: Path) -> cedar.Pipeline:
    return known().batch(4, last="keep").map(lambda x, f: x * f - f.mean(), "x", "f", into="y")


@pipeline
def map_on_whole_batches(folder: Path) -> cedar.Pipeline:
    return known().batch(4, last="keep").map(lambda b: {"total": np.array([b["f"].sum()])})


@pipeline
def random_on_batches(folder: Path) -> cedar.Pipeline:
    p = known().shuffle(seed=1).batch(4, last="keep")
    return p.map(lambda f, rng: f + rng.normal(size=len(f)), "f", random=True)


@pipeline
def skip_on_batches(folder: Path) -> cedar.Pipeline:
    def whole(x: np.ndarray) -> np.ndarray:
        if 3 in x:
            raise ValueError("a three")
        return x

    return known().batch(4, last="keep").map(whole, "x", dtype=int, on_error=cedar.Skip())


@pipeline
def order_of_batches(folder: Path) -> cedar.Pipeline:
    return known().batch(3, last="keep").shuffle(seed=2, window=4).skip(1).take(6).repeat(2)


@pipeline
def pad_and_expressions_on_batches(folder: Path) -> cedar.Pipeline:
    return known().batch(4, last="keep").pad("l").with_columns(y=col("x") + 1).filter(lambda x: x.sum() > 3, "x")


# ---- cache, and operators of your own -------------------------------------------------------------------------------


@pipeline
def cache_in_memory(folder: Path) -> cedar.Pipeline:
    kept = known().map(lambda x: x + 1, "x").cache("memory")
    return kept.map(noisy, "f", random=True).shuffle().repeat(2).batch(4, last="keep")


@pipeline
def cache_in_a_folder(folder: Path) -> cedar.Pipeline:
    return known().map(Model, "x", into="v").cache(str(folder / "kept")).shuffle().batch(4, last="keep")


@pipeline
def applied(folder: Path) -> cedar.Pipeline:
    from cedar.operators.take import Take

    return known().apply(Take(9)).batch(2, last="keep")
