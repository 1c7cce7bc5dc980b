"""Data sets written by jobs: rows lost or repeated over kills, and time next to reading and encoding alone.

    python -m benchmarks.written [--kills 100] [--rounds 5] [--rows 2000000] [--only kills speed]

Kills are those of benchmarks/written_kills.py. Ratios of times are of runs within one round.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from benchmarks.harness import Figure, Sample, add_form, at_least, at_most, interleaved, ratios, show, timed, write
from benchmarks.written_kills import kill
from cedar import col

# ---- speed -----------------------------------------------------------------------------------------------------------


def table(rows: int, start: int) -> pa.Table:
    """Numbers and texts, as a log has them."""
    draw = np.random.default_rng(start)
    return pa.table(
        {
            "id": np.arange(start, start + rows),
            "a": draw.normal(size=rows),
            "b": draw.normal(size=rows).astype(np.float32),
            "user": draw.integers(0, 1 << 40, rows),
            "item": draw.integers(0, 1000, rows),
            "s": pa.array([f"user-{i}" for i in draw.integers(0, 10**6, rows).tolist()]),
        }
    )


def alone(p: cedar.Pipeline, workers: int) -> dict[str, int]:
    """Reading, and encoding what was read into memory, by as many threads as a job has."""
    done = []
    with ThreadPoolExecutor(workers) as pool:
        with p.batch(65_536, last="keep").loader(executor=pool, format="arrow") as loader:
            for batch in loader:
                done.append(pool.submit(encode, batch))
                while len(done) > 2 * workers:
                    done.pop(0).result()
        for future in done:
            future.result()
    return {}


def encode(batch: pa.Table) -> None:
    """As Parquet."""
    pq.write_table(batch, pa.BufferOutputStream(), row_group_size=1 << 20, write_page_checksum=True)


def speed(folder: Path, rows: int, rounds: int) -> list[Figure]:
    """A job of one and of two workers, and reading plus encoding alone."""
    (folder / "log").mkdir()
    for number in range(16):
        pq.write_table(
            table(rows // 16, number * rows // 16), folder / f"log/{number:03}.parquet", row_group_size=65_536
        )
    p = cedar.read_parquet(str(folder / "log")).with_columns(d=col("a") * 2 + col("b"))
    numbers = iter(range(10**9))

    def write_by(workers: int) -> Sample:
        out = folder / f"written-{next(numbers)}"
        return timed(lambda: {"rows": p.write(out, executor="threads", workers=workers).rows})

    runs = {
        "one": lambda: write_by(1), "two": lambda: write_by(2),
        "alone": lambda: timed(lambda: alone(p, 1)), "alone two": lambda: timed(lambda: alone(p, 2)),
    }  # fmt: skip
    found = interleaved(runs, rounds=rounds, warm_up=1)
    wall = {name: [sample.wall for sample in each] for name, each in found.items()}
    cpu = {name: [sample.cpu for sample in each] for name, each in found.items()}
    return [
        at_least("speed of two workers over one", 1.7, ratios(wall["one"], wall["two"]), "x"),
        at_most("wall time over reading plus encoding, one worker", 1.1, ratios(wall["one"], wall["alone"]), "x"),
        at_most("wall time over reading plus encoding, two workers", 1.1, ratios(wall["two"], wall["alone two"]), "x"),
        at_most("CPU over reading plus encoding, one worker", 1.1, ratios(cpu["one"], cpu["alone"]), "x"),
        at_most("CPU over reading plus encoding, two workers", 1.1, ratios(cpu["two"], cpu["alone two"]), "x"),
    ]


def main() -> None:
    """Runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_form(parser)
    parser.add_argument("--kills", type=int, help="default: 100")
    parser.add_argument("--rounds", type=int, help="default: 5")
    parser.add_argument("--rows", type=int, help="default: 2,000,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=["kills", "speed"], default=["kills", "speed"])
    chosen = parser.parse_args()
    kills, killed_rows, rounds, rows = (7, 2000, 1, 20_000) if chosen.form else (100, 20_000, 5, 2_000_000)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        if "kills" in chosen.only:
            met, jobs, bad = kill(Path(folder), chosen.kills or kills, chosen.seed, killed_rows)
            figures.append(at_most(f"rows lost or repeated over {met} kills of {jobs} jobs", 0, [bad], "rows"))
        if "speed" in chosen.only:
            figures += speed(Path(folder), chosen.rows or rows, chosen.rounds or rounds)
    show("written", figures)
    write("written", figures)


if __name__ == "__main__":
    main()
