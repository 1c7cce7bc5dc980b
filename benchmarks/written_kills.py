"""Jobs that write and are sent SIGKILL at random moments, and begun again until all is written: what of it is wrong?

Jobs run in their own processes. One that ended is begun with other data of its kind, until the kills are used up.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from cedar import col
from cedar.lake import writing

SPLITS = 24
PATIENCE = 300.0  # seconds for a job to end


@dataclass(frozen=True)
class Case:
    """A job: its pipeline over rows of ``id``, ``k`` and ``s``, and how it is written."""

    make: Callable[[cedar.Pipeline], cedar.Pipeline]
    options: dict[str, Any]
    world: int = 1


def copies(i: int) -> list[int]:
    """As many copies of a row as its number says."""
    return list(range(i % 3))


CASES = {
    "filter": Case(lambda p: p.filter(col("id") % 7 != 0), {"rows_per_file": 700}),
    "shuffle": Case(lambda p: p.shuffle(seed=1), {"rows_per_file": 500, "format": "arrow"}),
    "flat_map": Case(
        lambda p: p.filter(col("k") > 0).flat_map(copies, "id", into="copy", dtype=int),
        {"rows_per_file": 900, "format": "jsonl", "workers": 2},
    ),
    "batches": Case(lambda p: p.shuffle(seed=2).batch(64, last="keep"), {"rows_per_file": 600}),
    "folders": Case(lambda p: p.filter(col("id") % 5 != 0), {"partition_by": "k"}),
    "ranks": Case(lambda p: p.filter(col("id") % 7 != 0).shuffle(seed=3), {"rows_per_file": 400}, world=2),
    "known_ranks": Case(lambda p: p.shuffle(seed=4), {"rows_per_file": 400, "executor": "inline"}, world=3),
}


def generated(folder: Path, rows: int, start: int) -> Path:
    """Files of rows that are numbered from ``start``."""
    folder.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(start, start + rows), SPLITS)):
        table = pa.table({"id": ids, "k": ids % 4, "s": [f"row {i}" for i in ids.tolist()]})
        pq.write_table(table, folder / f"{number:03}.parquet")
    return folder


def pipeline(name: str, data: Path) -> cedar.Pipeline:
    """The pipeline of a case over some files."""
    return CASES[name].make(cedar.read_parquet(str(data)))


def job(name: str, data: Path, out: Path, rank: int) -> None:
    """One process of a job."""
    writing.RUN_BYTES = 16 << 10  # so that folders have several commits, too
    case = CASES[name]
    pipeline(name, data).write(out, rank=rank, world=case.world, **case.options)


def wrong_rows(p: cedar.Pipeline, out: Path, case: Case) -> int:
    """Rows that were lost or repeated; of one rank without folders, also where their order is another one."""
    form = case.options.get("format", "parquet")
    found = getattr(cedar, f"read_{form}")(f"{out}/**/*.{form}" if form != "parquet" else str(out)).to_arrow()
    columns = [c for c in ("id", "copy") if c in found.column_names]
    rows, expected = (
        list(zip(*(table[c].to_pylist() for c in columns), strict=True)) for table in (found, p.to_arrow())
    )
    if case.world == 1 and "partition_by" not in case.options:
        return 0 if rows == expected else max(1, len(set(rows) ^ set(expected)))
    there, wanted = Counter(rows), Counter(expected)
    return (there - wanted).total() + (wanted - there).total()


def kill(folder: Path, kills: int, seed: int, rows: int = 20_000, only: Sequence[str] = ()) -> tuple[int, int, int]:
    """Kills jobs of all cases in turn; how many kills met one at work, how many jobs ended, how many rows are wrong."""
    draw, context = random.Random(seed), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.written_kills", "pyarrow.parquet", "polars"])
    met = jobs = bad = 0
    names = only or [*CASES]
    while met < kills:
        name, took = names[jobs % len(names)], 1.0
        data, out = generated(folder / f"in-{jobs}", rows, jobs), folder / f"out-{jobs}"
        left = max(1, -(-kills // len(names)))  # kills of this job
        while True:
            began = time.perf_counter()
            ranks = [context.Process(target=job, args=(name, data, out, rank)) for rank in range(CASES[name].world)]
            for process in ranks:
                process.start()
            if left and met < kills:
                ranks[0].join(draw.uniform(0.0, 1.2 * took))
                for process in ranks:
                    process.kill()
            for process in ranks:
                process.join(PATIENCE)
                if process.exitcode not in (0, -9):
                    raise RuntimeError(f"{name}: a job ended with {process.exitcode}")
            if all(process.exitcode == 0 for process in ranks):
                break
            met, left, took = met + 1, left - 1, max(took, time.perf_counter() - began)
        jobs, bad = jobs + 1, bad + wrong_rows(pipeline(name, data), out, CASES[name])
    return met, jobs, bad
