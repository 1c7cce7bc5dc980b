"""A click log from storage to tensors: clustered by session, and in the order of time.

python -m benchmarks.recommendation_storage [--form]

Samples per session 16, duplication 0.95. Baselines get the same transforms, two workers, and the best of three codecs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

import cedar
from benchmarks.harness import (
    Figure,
    Form,
    Sample,
    add_form,
    at_least,
    at_most,
    environment,
    finish,
    interleaved,
    ratios,
    reported,
    timed,
)  # fmt: skip
from cedar.datasets.clicklog import ClickLog, ListFeature, write_sessions
from cedar.datasets.parquet import read_parquet
from cedar.operators import recsys
from cedar.recommendation import cluster, criteo

_LISTS = [f"list{i}" for i in range(6)]
_USER = [*_LISTS, "profile"]
_ITEM = [f"i{i}" for i in range(8)]
_GROUP_ROWS = 65_536
_CODECS: dict[str, dict[str, Any]] = {
    "snappy": {"compression": "snappy"},
    "zstd": {"compression": "zstd"},
    "zstd, no dictionaries": {"compression": "zstd", "use_dictionary": False},
}


def log() -> ClickLog:
    """Six lists of 30 ids and one of ten that change together, eight ids of the item, four numbers."""
    lists = [ListFeature(name, 30, ids=1_000_000, group="user") for name in _LISTS]
    return ClickLog(lists=(*lists, ListFeature("profile", 10, ids=1_000_000, group="user")), scalars=0,
                    item_scalars=8, dense=4, skew=0.0, minutes=55.0)  # fmt: skip


# ---- files -----------------------------------------------------------------------------------------------------------


def _files(folder: str, rows: int) -> tuple[dict[str, str], dict[str, str]]:
    """(the log in order of time, by codec; the clustered log, by compression)."""
    write_sessions(f"{folder}/raw", rows, log=log(), rows_per_file=rows, row_group_rows=_GROUP_ROWS)
    table = pq.read_table(f"{folder}/raw")
    paths: dict[str, str] = {}
    for name, options in _CODECS.items():
        paths[name] = f"{folder}/{len(paths)}.parquet"
        pq.write_table(table, paths[name], row_group_size=_GROUP_ROWS, **options)
    clustered = {name: f"{folder}/clustered-{name}" for name in ("zstd", "lz4", "auto")}
    for compression, path in clustered.items():
        cluster(f"{folder}/raw", path, session="session_id", sort="ts", compression=compression)
    return paths, clustered


def _size(path: str) -> int:
    return sum(f.stat().st_size for f in Path(path).glob("*.parquet")) if os.path.isdir(path) else os.path.getsize(path)


def _read(path: str) -> Callable[[], Sample]:
    def read() -> dict[str, Any]:
        source = read_parquet(path)
        return {"rows": sum(chunk.rows for split in source.splits() for chunk in source.read(split))}

    return lambda: timed(read)


def storage(paths: dict[str, str], clustered: dict[str, str], rounds: int) -> list[Figure]:
    """Sizes, and the time to decode all columns with one core."""
    ours = {f"clustered, {name}": path for name, path in clustered.items()}
    found = interleaved({name: _read(path) for name, path in (paths | ours).items()}, rounds)
    cpu = {name: [sample.cpu for sample in samples] for name, samples in found.items()}
    smallest = min(paths, key=lambda name: _size(paths[name]))
    fastest = min(paths, key=lambda name: sum(cpu[name]))
    sizes = ", ".join(f"{name} {_size(path) / 1e6:.0f} MB" for name, path in paths.items())
    figures = []
    for name, path in ours.items():
        note = f"{sizes}; {_size(path) / 1e6:.0f} MB"
        figures += [
            at_least(f"{name}, against interleaved, the smallest file of each", 4.0,
                     [_size(paths[smallest]) / _size(path)], "x", note=note),
            at_least(f"{name}, decoded, against that file ({smallest}), CPU", 3.0,
                     ratios(cpu[smallest], cpu[name]), "x"),
            at_least(f"{name}, decoded, against the fastest interleaved file ({fastest}), CPU", 2.5,
                     ratios(cpu[fastest], cpu[name]), "x"),
        ]  # fmt: skip
    return figures


# ---- reader, end to end ----------------------------------------------------------------------------------------------


def pipeline(path: str, dedup: bool) -> cedar.Pipeline:
    """Parquet to batches with the transforms of the reference: first 20, hash, buckets."""
    borders = tuple((np.sort(np.random.default_rng(0).random(255)) * 1e6).tolist())
    p = cedar.read_parquet(path).select(*_USER, *_ITEM, *(f"d{i}" for i in range(4)), "label")
    p = p.with_columns(buckets=cedar.col("profile"))  # before dedup, so that it is part of the group
    if dedup:
        p = p.dedup([[*_USER, "buckets"]])
    for name in _LISTS:
        p = p.map(recsys.FirstX(20), name)
    p = p.map(recsys.Bucketize(borders), "buckets")
    for name in [*_USER, *_ITEM]:
        p = p.map(recsys.SigridHash(1, 1_000_000), name)
    return p.batch(2048)


def _out(batch: dict[str, Any]) -> int:
    """Bytes of a batch's tensors."""
    held = {id(value): value for value in batch.values()}
    return sum(_bytes(value) for value in held.values())


def _bytes(value: Any) -> int:
    if isinstance(value, cedar.InverseKeyedJaggedTensor):
        return _bytes(value.inverse_lookup) + sum(_bytes(value[name]) for name in value.keys)
    if isinstance(value, cedar.JaggedTensor):
        return _bytes(value.values) + _bytes(value.offsets)
    return int(value.nbytes)


def _epoch(path: str, dedup: bool) -> Callable[[], Sample]:
    """Three epochs of a loader after two more, in which its plan is created."""

    def sample() -> Sample:
        with pipeline(path, dedup).loader(format="torch", executor="threads", workers=2) as loader:
            _read_all(loader, 2)
            return timed(lambda: _read_all(loader, 3))

    return sample


def _read_all(loader: cedar.Loader, epochs: int) -> dict[str, Any]:
    rows = out = 0
    for batch in chain.from_iterable(loader for _ in range(epochs)):
        rows += len(batch["label"])
        out += _out(batch)
    return {"rows": rows, "out": out}


def reader(paths: dict[str, str], clustered: str, rounds: int) -> list[Figure]:
    """Rows per second and bytes out, with two workers, once plans are created."""
    runs = {"plain": _epoch(paths["snappy"], False), "dedup": _epoch(clustered, True),
            "clustered, plain": _epoch(clustered, False)}  # fmt: skip
    found = interleaved(runs, rounds)
    plain, both, half = found["plain"], found["dedup"], found["clustered, plain"]
    return [
        at_least("reader, clustered and deduplicated against interleaved and plain, rows/s", 2.2,
                 ratios([s.wall for s in plain], [s.wall for s in both]), "x", note="two workers, epochs 3 to 5"),
        reported("the same, CPU", ratios([s.cpu for s in plain], [s.cpu for s in both]), "x"),
        at_least("bytes out", 5.0, [a.result["out"] / b.result["out"] for a, b in zip(plain, both, strict=True)], "x"),
        reported("rows/s, deduplicated", [s.rate for s in both], "rows/s"),
        reported("deduplicated against plain, both clustered, CPU",
                 ratios([s.cpu for s in half], [s.cpu for s in both]), "x"),
    ]  # fmt: skip


# ---- Criteo ----------------------------------------------------------------------------------------------------------


def _criteo_text(rows: int) -> bytes:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"label": rng.integers(0, 2, rows)}
    for i in range(13):
        columns[f"I{i}"] = pa.array(rng.integers(0, 5000, rows), mask=rng.random(rows) < 0.2)
    for i in range(26):
        ids = rng.zipf(1.3, rows).astype(np.uint64) * np.uint64(2_654_435_761) % np.uint64(1 << 32)
        columns[f"C{i}"] = pa.array([f"{v:08x}" for v in ids.tolist()], mask=rng.random(rows) < 0.1)
    sink = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    csv.write_csv(pa.table(columns), sink, options)
    return bytes(sink.getvalue().to_pybytes())


def _criteo_epoch(paths: list[str]) -> Callable[[], Sample]:
    def run() -> dict[str, Any]:
        with criteo(paths).batch(8192, last="keep").loader(format="arrow", executor="threads", workers=2) as loader:
            return {"rows": sum(len(batch["label"]) for batch in loader)}

    return lambda: timed(run)


def criteo_speed(folder: str, text: bytes, rounds: int) -> list[Figure]:
    """Rows per second from gzipped files, with two workers."""
    paths = [f"{folder}/day_{i}.gz" for i in range(2)]
    for path in paths:
        Path(path).write_bytes(gzip.compress(text, 6))
    found = interleaved({"two": _criteo_epoch(paths), "one": _criteo_epoch(paths[:1])}, rounds)
    return [
        at_least("Criteo from gz, two files, two workers", 150_000, [s.rate for s in found["two"]], "rows/s"),
        reported("one file, which nothing can split", [s.rate for s in found["one"]], "rows/s"),
        reported("per CPU second", [s.result["rows"] / s.cpu for s in found["two"]], "rows/s"),
    ]


_WHOLE = """
import json, sys
from cedar.recommendation import criteo
rows = 0
with criteo(sys.argv[1]).batch(8192, last="keep").loader(format="arrow", executor="threads", workers=2) as loader:
    for batch in loader:
        rows += len(batch["label"])
with open("/proc/self/status") as status:  # ru_maxrss knows that of the parent too
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({"rows": rows, "peak": peak}))
"""


def criteo_memory(folder: str, text: bytes, copies: int, form: Form) -> list[Figure]:
    """A gzipped file, and one of a quarter of it: what a process holds at most while it reads all of each."""
    member = gzip.compress(text, 1)
    said = {}
    for name, count in (("whole", copies), ("quarter", max(1, copies // 4))):
        path = f"{folder}/{name}.gz"
        with open(path, "wb") as file:
            file.writelines(member for _ in range(count))
        command = [sys.executable, "-c", _WHOLE, path]
        said[name] = json.loads(subprocess.run(command, env=environment(), capture_output=True, check=True).stdout)
        os.remove(path)
    whole, quarter = said["whole"], said["quarter"]
    size, against = copies * len(text), "its text against the peak memory of the process"
    note = f"{size / 1e6:,.0f} MB of text, peak {whole['peak'] / 1e6:,.0f} MB, interpreter and libraries included"
    return [
        at_least("rows read of a large file in Criteo's format", 1.0, [whole["rows"] / (copies * text.count(b"\n"))],
                 "of all"),
        reported(against, [size / whole["peak"]], "x", note=note) if form
        else at_least(against, 4.0, [size / whole["peak"]], "x", note=note),
        at_most("its peak memory against that for a quarter of it", 1.2, [whole["peak"] / quarter["peak"]], "x"),
    ]  # fmt: skip


def figures(form: Form) -> list[Figure]:
    """All rows of the table; ``quick`` takes small logs, whose ratios are those of small files."""
    rounds = form.pick(5, 2, 1)
    with tempfile.TemporaryDirectory() as folder:
        paths, clustered = _files(folder, form.pick(262_144, 40_000, 8192))
        found = storage(paths, clustered, rounds) + reader(paths, clustered["zstd"], rounds)
        text = _criteo_text(form.pick(100_000, 10_000, 1000))
        found += criteo_speed(folder, text, rounds)
        return found + criteo_memory(folder, text, form.pick(90, 8), form)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_form(parser, "small logs, few rounds")
    form = parser.parse_args().form
    return finish("From storage to tensors", "recommendation_storage", figures(form), form)


if __name__ == "__main__":
    sys.exit(main())
