"""What ranks read where row counts are unknown: the busiest of 8 over its share, and the CPU of all over one alone.

    python -m benchmarks.ranks_share [--rows 640000] [--only pack_best mix]

Ranks run one after another in this process, with default options and ``last="keep"``.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import cedar
from benchmarks.harness import Figure, at_most, show, write
from cedar import col

WORLD = 8
FILES, STREAMS = 64, 16  # files that are one split each; those that can only be read from their beginning
BARS = {FILES: 1.15, STREAMS: 1.3}
CPU = 1.2
Make = Callable[[Path, int], cedar.Pipeline]


def table(start: int, rows: int) -> pa.Table:
    """Rows of a log: an id, a label, and tokens of lengths that differ."""
    draw = np.random.default_rng(start)
    lengths = np.minimum(draw.lognormal(2.5, 1, rows), 200).astype(np.int64)
    tokens = pa.ListArray.from_arrays(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), draw.integers(0, 1000, lengths.sum())
    )
    return pa.table({"id": np.arange(start, start + rows), "label": draw.integers(0, 4, rows), "tokens": tokens})


def parquet(folder: Path, rows: int) -> cedar.Pipeline:
    for number in range(FILES):
        pq.write_table(table(number * rows // FILES, rows // FILES), folder / f"{number:03}.parquet")
    return cedar.read_parquet(f"{folder}/*.parquet")


def sampled(folder: Path, rows: int) -> cedar.Pipeline:
    return parquet(folder, rows).filter(col("label") > 0)


def mixed(folder: Path, rows: int) -> cedar.Pipeline:
    p = parquet(folder, rows)
    parts = [
        p.filter(col("label") > 0),
        p.filter(lambda label: label < 3, "label"),
        p.flat_map(range, "label", into="label", dtype=int),
    ]
    return cedar.mix([(part, 1.0) for part in parts], stop="all")


def zipped(folder: Path, rows: int) -> cedar.Pipeline:
    p = parquet(folder, rows)
    return cedar.zip(p.select("id", "label"), p.select(other="id")).filter(col("label") > 0)


def hive(folder: Path, rows: int) -> cedar.Pipeline:
    for number in range(FILES):
        part = folder / f"day={number % 4}"
        part.mkdir(exist_ok=True)
        pq.write_table(table(number * rows // FILES, rows // FILES), part / f"{number:03}.parquet")
    return cedar.read_parquet(f"{folder}/*/*.parquet").filter(col("label") > 0)


def jsonl(folder: Path, rows: int) -> cedar.Pipeline:
    for number in range(STREAMS):
        lines = "".join(json.dumps({"id": i, "label": i % 4}) + "\n" for i in range(rows // STREAMS))
        (folder / f"{number:03}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 1))
    return cedar.read_jsonl(f"{folder}/*.jsonl.gz")


def csv(folder: Path, rows: int) -> cedar.Pipeline:
    for number in range(STREAMS):
        with pa.CompressedOutputStream(str(folder / f"{number:03}.csv.zst"), "zstd") as sink:
            pa.csv.write_csv(table(number * rows // STREAMS, rows // STREAMS).drop(["tokens"]), sink)
    return cedar.read_csv(f"{folder}/*.csv.zst")


def text(folder: Path, rows: int) -> cedar.Pipeline:
    for number in range(FILES):
        (folder / f"{number:03}.txt").write_text("a line of text\n" * (rows // FILES))
    return cedar.read_text(f"{folder}/*.txt")


def images(folder: Path, rows: int) -> cedar.Pipeline:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "png")
    for number in range(STREAMS):
        with tarfile.open(folder / f"{number:03}.tar", "w") as shard:
            for i in range(rows // STREAMS // 16):
                member = tarfile.TarInfo(f"{i:06}.png")
                member.size = buffer.tell()
                shard.addfile(member, io.BytesIO(buffer.getvalue()))
    return cedar.read_tar(f"{folder}/*.tar").map(len, "png", into="label", dtype=int).drop("png")


class Items:
    """A map-style dataset."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"id": i, "label": i % 4}


def batched(p: cedar.Pipeline) -> cedar.Pipeline:
    return p.batch(32, last="keep")


CASES: dict[str, tuple[int, Make]] = {
    "filter_expression": (FILES, lambda f, n: batched(sampled(f, n).shuffle(seed=1))),
    "filter_function": (FILES, lambda f, n: batched(parquet(f, n).filter(lambda x: x > 0, "label").shuffle(seed=1))),
    "flat_map": (
        FILES,
        lambda f, n: batched(parquet(f, n).flat_map(range, "label", into="label", dtype=int)),
    ),
    "pack_concat": (FILES, lambda f, n: batched(sampled(f, n).select("tokens").pack(256))),
    "pack_best": (FILES, lambda f, n: batched(sampled(f, n).select("tokens").shuffle(seed=1).pack(256, fit="best"))),
    "bucket_by_length": (
        FILES,
        lambda f, n: sampled(f, n).bucket_by_length("tokens", [16, 64], [64, 32, 16], local=True),
    ),
    "mix": (FILES, lambda f, n: batched(mixed(f, n))),
    "zip": (FILES, lambda f, n: batched(zipped(f, n))),
    "hive": (FILES, lambda f, n: batched(hive(f, n).filter(col("day") != 2))),
    "jsonl_gz": (STREAMS, lambda f, n: batched(jsonl(f, n))),
    "csv_zst": (STREAMS, lambda f, n: batched(csv(f, n))),
    "text": (FILES, lambda f, n: batched(text(f, n))),
    "tar": (STREAMS, lambda f, n: batched(images(f, n))),
    "dataset": (FILES, lambda _, n: batched(cedar.from_items(Items(n)).filter(lambda x: x > 0, "label"))),
}


def read(p: cedar.Pipeline, rank: int, world: int) -> tuple[int, int, float]:
    """Rows that a rank read, rows that it delivered, and the seconds of CPU that took."""
    began, delivered = time.process_time(), 0
    with p.loader(rank=rank, world=world, executor="inline") as loader:
        for batch in loader:
            delivered += len(next(iter(batch.values())))
    return loader.report().rows_read, delivered, time.process_time() - began


def measure(make: Make, rows: int, world: int = WORLD) -> tuple[float, float]:
    """The busiest rank's rows over its share, and the CPU of all ranks over that of one alone."""
    with tempfile.TemporaryDirectory() as folder:
        p = make(Path(folder), rows)
        read(p, 0, 1)  # imports, compiled kernels
        alone = read(p, 0, 1)
        ranks = [read(p, rank, world) for rank in range(world)]
    if sum(rank[1] for rank in ranks) < alone[1] * 0.99:  # packs are made per rank
        raise RuntimeError("the ranks delivered fewer rows than one alone")
    return max(rank[0] for rank in ranks) * world / alone[0], sum(rank[2] for rank in ranks) / alone[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/ranks_share.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks_share", description=main.__doc__)
    parser.add_argument("--rows", type=int, default=640_000)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="NAME", help=", ".join(CASES))
    chosen = parser.parse_args(arguments)
    figures: list[Figure] = []
    for name in chosen.only:
        files, make = CASES[name]
        busiest, cpu = measure(make, chosen.rows)
        figures.append(at_most(f"{name}: rows of the busiest rank", BARS[files], [busiest], "of its share"))
        figures.append(at_most(f"{name}: CPU of all ranks", CPU, [cpu], "of one alone"))
    show("ranks share the work", figures)
    write("ranks_share", figures)
    return int(not all(figure.met for figure in figures if "rows" in figure.what))


if __name__ == "__main__":
    raise SystemExit(main())
