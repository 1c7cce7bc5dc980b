"""What plans, mixes, wide tables and small batches cost as they grow, each next to its bar.

    python -m benchmarks.grows [--only plans mix columns calls small]

Seconds are CPU seconds of this process, the least of a few; calls are those of Python functions, which no other program
on the machine changes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from benchmarks.harness import Figure, add_form, at_most, finish
from cedar import col
from cedar.datasets.clicklog import write_sessions


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/grows.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grows", description=main.__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    add_form(parser)
    chosen = parser.parse_args(arguments)
    figures = [figure for part in chosen.only for figure in PARTS[part](10 if chosen.form else 1)]
    return finish("As it grows", "grows", figures, chosen.form)


def cpu(work: Callable[[], Any], rounds: int = 3) -> list[float]:
    """The least CPU seconds of a few calls."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return [min(found)]


def calls(work: Callable[[], Any]) -> int:
    """Python functions that are called in this thread."""
    count = 0

    def count_calls(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(count_calls)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


# ---- plans -----------------------------------------------------------------------------------------------------------


def chain(operators: int) -> cedar.Pipeline:
    """Expressions, functions, filters and renames in turns, in batches, of which three columns are kept."""
    p = cedar.from_arrow(pa.table({"x": np.arange(1000), "y": np.arange(1000) / 2}))
    for i in range(0, operators - 2, 4):
        p = p.with_columns(**{f"c{i}": col("x") + i}).map(_plus, "y", dtype=float)
        p = p.filter(col("x") >= i).rename({f"c{i}": f"d{i}"})
    return p.select("x", "y", "d0").batch(10)


def _plus(value: float) -> float:
    return value + 1


def _explained(operators: int) -> None:
    chain(operators).explain()


def plans(less: int) -> Iterator[Figure]:
    """``explain()`` of long pipelines; ``less``: so many times smaller, as in all parts."""
    chain(8).explain()
    for operators, limit in ((200 // less, 0.3), (500 // less, 1.0)):
        seconds = cpu(partial(_explained, operators), 3 if operators < 500 else 1)
        yield at_most(f"explain() of {operators} operators", limit, seconds, "s")


# ---- mixes -----------------------------------------------------------------------------------------------------------


def mix(less: int) -> Iterator[Figure]:
    """A mix of 1,000 sources."""

    def first(sources: int) -> Any:
        mixed = cedar.mix([(cedar.from_items([{"x": i}] * 10), 1.0 + i % 3) for i in range(sources)])
        loader = mixed.batch(64).loader(executor="inline")
        next(iter(loader))
        return loader

    first(30)
    many = 1000 // less
    yield at_most(f"a mix of {many:,} sources: first batch", 0.3, cpu(lambda: first(many)), "s")
    yield at_most(f"a mix of {many:,} sources: state", 4096, [len(json.dumps(first(many).state_dict()))], "bytes")


# ---- columns ---------------------------------------------------------------------------------------------------------


def columns(less: int) -> Iterator[Figure]:
    """Batches of wide tables, against a loop over pyarrow alone."""
    with tempfile.TemporaryDirectory() as folder:
        for wide, rows in ((1000 // less, 20_000 // less), (5000 // less, 4_000 // less)):
            path = str(Path(folder) / f"{wide}.parquet")
            values = np.random.default_rng(0).random(rows)
            pq.write_table(pa.table({f"c{i}": values for i in range(wide)}), path, row_group_size=rows // 4)
            if wide == 5000 // less:
                loader = cedar.read_parquet(path).batch(256).loader(executor="inline")
                yield at_most(f"{wide:,} columns: first batch", 0.7, cpu(partial(_first, loader), 2), "s")
            ours = cpu(partial(_whole, cedar.read_parquet(path).batch(256)))
            plain = cpu(partial(_plain, path))
            note = f"a cell takes {ours[0] / wide / rows * 1e9:.1f} ns, {plain[0] / wide / rows * 1e9:.1f} in pyarrow"
            yield at_most(f"{wide:,} columns: against pyarrow alone", 1.5, [ours[0] / plain[0]], "x", note=note)


def _first(loader: cedar.Loader) -> None:
    next(iter(loader))


def _whole(pipeline: cedar.Pipeline) -> None:
    _drain(pipeline.loader(executor="inline", format="arrow"))


def _drain(batches: Any) -> None:
    for _ in batches:
        pass


def _plain(path: str) -> None:
    """The same batches."""
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group)
        for start in range(0, len(table), 256):
            table.slice(start, 256).combine_chunks()


# ---- calls -----------------------------------------------------------------------------------------------------------


def python_calls(less: int) -> Iterator[Figure]:
    """README's pipeline, inline."""
    with tempfile.TemporaryDirectory() as folder:
        write_sessions(folder, 20_000 // less, 0)
        pipeline = (
            cedar.read_parquet(f"{folder}/*.parquet")
            .filter(col("label").is_not_null())
            .with_columns(d0=col("d0").fill_null(0.0).log1p())
            .shuffle(seed=1)
            .batch(256)
        )
        with pipeline.loader(executor="inline") as warm:
            _drain(islice(warm, 3))  # imports, and what is known of files
        loader = pipeline.loader(executor="inline")
        batches = iter(loader)
        yield at_most("Python calls to the first batch", 1000, [calls(lambda: next(batches))], "calls")
        later = [calls(lambda: next(batches)) for _ in range(30 // less)]
        yield at_most("Python calls to each later batch", 60, later, "calls")
        loader.close()


# ---- small batches ---------------------------------------------------------------------------------------------------


def small(less: int) -> Iterator[Figure]:
    """Batches of 64 rows of one column, shuffled."""
    table = pa.table({"x": np.arange(200_000 // less)})
    loader = cedar.from_arrow(table).shuffle().batch(64).loader(executor="inline")
    found = []
    for _ in range(3):
        batches = iter(loader)
        next(batches)
        start = time.process_time()
        for _ in islice(batches, 2500 // less):
            pass
        found.append((time.process_time() - start) / (2500 // less) * 1e6)
    yield at_most("a batch of 64 rows of one column, shuffled", 60, [min(found)], "us")


PARTS: dict[str, Callable[[int], Iterator[Figure]]] = {
    "plans": plans, "mix": mix, "columns": columns, "calls": python_calls, "small": small,
}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
