"""join, unique and fit on two ranks, next to polars with all rows in memory: ``python -m benchmarks.tables [--tiny]``.

Each contender is a fresh process, and CPU seconds decide, those of both ranks together: other programs do not change
them much. Ranks read Parquet with a budget of 1 GiB, share one cache folder, which is empty at first, and go through
their batches; polars reads the files and does the same with whole columns. Results are compared.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import Contender, Figure, Form, Sample, add_form, at_most, finish, reported

if TYPE_CHECKING:
    import cedar

JOBS = ("read", "join", "unique", "fit")
TIMES = 3.0  # as long as polars
GIGABYTES = 1.0
FILES = 10


def make(folder: Path, rows: int) -> None:
    """A log of ``rows`` clicks in ten files, and the items that they are on."""
    rng = np.random.default_rng(0)
    items = max(rows // 20, 1)
    for number in range(FILES):
        n = rows // FILES
        item = rng.integers(0, items * 11 // 10, n)
        table = {"request": rng.integers(0, rows, n), "item": item, "x": rng.normal(size=n), "y": rng.integers(0, 9, n)}
        city = pa.DictionaryArray.from_arrays(
            pa.array(rng.zipf(1.3, n) % 5000), pa.array([f"city {i}" for i in range(5000)])
        )
        pq.write_table(pa.table(table | {"city": city.cast(pa.string())}), folder / f"log-{number:02}.parquet")
    table = {"item": rng.permutation(items), "price": rng.normal(size=items), "kind": rng.integers(0, 50, items)}
    pq.write_table(pa.table(table), folder / "items.parquet")


# ---- in their own processes ---------------------------------------------------------------------------------------


def ours(job: str, folder: str, rank: int, cache: str) -> Callable[[], dict[str, Any]]:
    """One rank of two."""
    os.environ["XDG_CACHE_HOME"] = cache
    import cedar
    from cedar.preprocessing import Quantiles, StandardScaler, Vocabulary

    log = cedar.read_parquet(f"{folder}/log-*.parquet")
    list(cedar.from_items([{"x": 1}]).join(pa.table({"x": [1]}), on="x").batch(1).loader())  # imports

    def run() -> dict[str, Any]:
        if job == "fit":
            fitted = cedar.fit(log, StandardScaler("x"), Quantiles("y", bins=4), Vocabulary("city"))
            words = fitted["city"]
            return _answer(words.size, fitted["x"]["std"], words.counts[0].as_py())
        items = cedar.read_parquet(f"{folder}/items.parquet")
        made = {"read": log, "join": log.join(items, on="item", how="inner"), "unique": log.unique("request")}
        return _answer(*_totals(made[job], rank))

    return run


def _totals(pipeline: cedar.Pipeline, rank: int) -> tuple[int, float, int]:
    import cedar

    rows, total, whole = 0, 0.0, 0
    options: dict[str, Any] = {"rank": rank, "world": 2, "format": "arrow", "budget": cedar.Budget(memory="1GiB")}
    with pipeline.batch(32_768, last="keep").loader(**options) as loader:
        for batch in loader:
            found = _figures(batch)
            rows, total, whole = rows + found[0], total + found[1], whole + found[2]
    return rows, total, whole


def _figures(table: pa.Table) -> tuple[int, float, int]:
    column = "price" if "price" in table.column_names else "x"
    return table.num_rows, pc.sum(table[column]).as_py(), pc.sum(table["request"]).as_py()


def polars(job: str, folder: str) -> Callable[[], dict[str, Any]]:
    """The same with whole columns."""
    import polars as pl

    def run() -> dict[str, Any]:
        log = pl.read_parquet(f"{folder}/log-*.parquet")
        if job == "fit":
            counts = log["city"].value_counts(sort=True)
            log["y"].quantile(0.25), log["y"].quantile(0.5), log["y"].quantile(0.75)
            return _answer(len(counts) + 1, log["x"].std(ddof=0), counts["count"][0])
        if job == "join":
            log = log.join(pl.read_parquet(f"{folder}/items.parquet"), on="item", maintain_order="left")
        if job == "unique":
            log = log.unique("request", keep="first", maintain_order=True)
        column = "price" if job == "join" else "x"
        return _answer(len(log), log[column].sum(), log["request"].sum())

    return run


def _answer(*figures: Any) -> dict[str, Any]:
    return {"figures": figures, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)}


# ---- the figures -----------------------------------------------------------------------------------------------------


def two_ranks(job: str, folder: str) -> tuple[float, float, list[Any]]:
    """(CPU seconds of both, GiB of the larger one, what they found together)."""
    with tempfile.TemporaryDirectory() as cache:
        ranks = [Contender("benchmarks.tables:ours", job, folder, rank, cache) for rank in range(2)]
        try:
            for each in ranks:
                each.start()
            samples = [each.finish() for each in ranks]
        finally:
            for each in ranks:
                each.__exit__()
    first, second = (sample.result["figures"] for sample in samples)
    found = first if job == "fit" else [a + b for a, b in zip(first, second, strict=True)]
    if job == "fit" and first != second:
        raise AssertionError(f"two ranks learned different things: {first} and {second}")
    return sum(each.cpu for each in samples), max(each.result["memory"] for each in samples), found


def in_memory(job: str, folder: str) -> Sample:
    with Contender("benchmarks.tables:polars", job, folder) as contender:
        return contender.run()


def measure(job: str, folder: str, rounds: int) -> list[Figure]:
    """The figures of one job."""
    times, memory, theirs = [], [], []
    for _ in range(rounds):
        sample = in_memory(job, folder)
        cpu, most, found = two_ranks(job, folder)
        same = np.allclose(np.array(found, float), np.array(sample.result["figures"], float), rtol=1e-9)
        if not same:
            raise AssertionError(f"{job}: {found}, and polars found {sample.result['figures']}")
        times.append(cpu / sample.cpu)
        memory.append(most)
        theirs.append(sample.cpu)
    each = reported(f"{job}: polars", theirs, "CPU s")
    if job == "read":
        return [each, reported("read: both ranks, next to polars", times, "times")]
    return [
        each,
        at_most(f"{job}: both ranks, next to polars", TIMES, times, "times", note="CPU seconds"),
        at_most(f"{job}: the larger rank", GIGABYTES, memory, "GiB", note="resident at most"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_form(parser, "a million rows")
    parser.add_argument("--only", nargs="*", choices=JOBS, default=JOBS)
    parser.add_argument("--rows", type=int, default=None)
    given = parser.parse_args()
    form: Form = given.form
    rows = given.rows or form.pick(10_000_000, 1_000_000, 20_000)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), rows)
        measured = partial(measure, folder=folder, rounds=form.pick(3, 2, 1))
        figures = [figure for job in given.only for figure in measured(job)]
    return finish(f"Tables of {rows:,} rows, two ranks", "tables", figures, form)


if __name__ == "__main__":
    sys.exit(main())
