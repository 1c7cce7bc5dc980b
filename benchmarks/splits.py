"""A source of very many splits, and of very many files: what is before the first batch, in CPU seconds and memory.

    python -m benchmarks.splits [--splits 1000000 10000000] [--files 2000] [--rounds 3] [--only splits manifest]

Each measurement is its own process; memory is what its peak rose by since its imports.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cedar
from benchmarks.harness import ROOT, Figure, add_form, at_most, environment, reported, show, write
from benchmarks.scale_data import Size, counted
from cedar.datasets.manifest import write_manifest

SECONDS = {1_000_000: 1.5, 10_000_000: 10.0}
MEGABYTES = {1_000_000: 300.0}
LATE = 1.5  # a batch late in the epoch over one at its start
_BATCHES = 600  # more than a window
_ROWS = 100  # of a row group, and of a small split


# ---- in a process of its own -----------------------------------------------------------------------------------------


def small(count: int) -> dict[str, float]:
    """To the first batch of a shuffled epoch, whose window has a 64th of all the small splits."""
    pipeline, began = counted(Size(1, count, count * _ROWS, 100, 64)), time.process_time()
    with pipeline.loader(executor="inline") as loader:
        next(iter(loader))
    return {"seconds": time.process_time() - began}


def first_batch(count: int) -> dict[str, float]:
    """To the first batch of a shuffled epoch of splits of 10 MB; then batches at its start, and at 90% of it."""
    pipeline = counted(Size(1, count, count * 10_000))
    before, began = _peak(), time.process_time()
    with pipeline.loader(executor="inline") as loader:
        batches = iter(loader)
        next(batches)
        found = {"seconds": time.process_time() - began, "megabytes": _peak() - before}
        found["early"] = _each(batches)
        state = loader.state_dict()
    state = _at(state, len(loader) * 9 // 10)
    with pipeline.loader(executor="inline") as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        next(batches)
        found["late"] = _each(batches)
    return found


def _at(state: dict[str, Any], taken: int) -> dict[str, Any]:
    """The state after so many batches."""
    from cedar.engine.delivery.state import seal

    plain = json.loads(json.dumps({name: value for name, value in state.items() if name != "check"}))
    plain["open"]["0"]["deal"] = [[taken, None, None], 0]
    return seal(plain | {"step": taken})


def _each(batches: Any) -> float:
    """CPU seconds of a batch, over windows that are begun and ended."""
    began = time.process_time()
    for _ in range(_BATCHES):
        if next(batches, None) is None:
            break
    return (time.process_time() - began) / _BATCHES


def with_manifest(folder: str) -> dict[str, float]:
    """A start on files that a manifest names."""
    began = time.process_time()
    pipeline = cedar.read_parquet(f"{folder}/*.parquet", manifest=f"{folder}/all.manifest").shuffle(seed=1).batch(100)
    with pipeline.loader(executor="inline") as loader:
        next(iter(loader))
    return {"seconds": time.process_time() - began}


def without_manifest(folder: str) -> dict[str, float]:
    """The same start, which lists the files and reads their footers."""
    began = time.process_time()
    with cedar.read_parquet(f"{folder}/*.parquet").shuffle(seed=1).batch(100).loader(executor="inline") as loader:
        next(iter(loader))
    return {"seconds": time.process_time() - began}


def make_manifest(folder: str) -> dict[str, float]:
    """Made, or brought up to date."""
    began = time.process_time()
    made = write_manifest(f"{folder}/*.parquet", f"{folder}/all.manifest")
    return {"seconds": time.process_time() - began, "read": made.read, "bytes": made.bytes}


def _peak() -> float:
    """Megabytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 10 if sys.platform != "darwin" else 1 << 20)


# ---- figures ---------------------------------------------------------------------------------------------------------


def apart(function: str, argument: Any) -> dict[str, float]:
    """What a function of this module says in a fresh process."""
    code = f"import json, sys; from benchmarks import splits; print(json.dumps(splits.{function}({argument!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def from_splits(count: int, rounds: int) -> list[Figure]:
    """A source of so many splits."""
    found = [apart("first_batch", count) for _ in range(rounds)]
    seconds, memory = ([each[name] for each in found] for name in ("seconds", "megabytes"))
    late = [each["late"] / each["early"] for each in found]
    name = f"{count:,} splits"

    def figure(what: str, limit: float | None, values: list[float], unit: str) -> Figure:
        return reported(what, values, unit) if limit is None else at_most(what, limit, values, unit)

    return [
        figure(f"{name}: CPU to the first batch", SECONDS.get(count), seconds, "s"),
        figure(f"{name}: memory to the first batch", MEGABYTES.get(count), memory, "MB"),
        figure(f"{name}: a batch at 90% of the epoch over one at its start", LATE, late, "x"),
        reported(f"{name} of {_ROWS} rows: CPU to the first batch", [apart("small", count)["seconds"]], "s",
                 note=f"its window has {count // 64:,} of them to read"),
    ]  # fmt: skip


def of_files(count: int, rounds: int) -> list[Figure]:
    """A manifest of so many files, made, brought up to date, and started from."""
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"x": np.arange(10 * _ROWS), "y": np.arange(10 * _ROWS) * 0.5})
        first = Path(folder, "00000.parquet")
        pq.write_table(table, first, row_group_size=_ROWS)
        for number in range(1, count):
            Path(folder, f"{number:05}.parquet").write_bytes(first.read_bytes())
        made, again = apart("make_manifest", folder), apart("make_manifest", folder)
        starts = [apart("with_manifest", folder)["seconds"] for _ in range(rounds)]
        plain = [apart("without_manifest", folder)["seconds"] for _ in range(rounds)]
        size = os.path.getsize(f"{folder}/all.manifest")
    name = f"{count:,} files of 10 row groups"
    return [
        reported("manifest: CPU to make it", [made["seconds"]], "s", note=name),
        reported("manifest: footers read to make it", [made["read"]], "files", note=name),
        reported("manifest: CPU to bring it up to date, nothing changed", [again["seconds"]], "s", note=name),
        reported("manifest: files whose footers a second start reads", [again["read"]], "files", note=name),
        reported("manifest: its size, a file", [size / count], "B", note=name),
        reported("CPU to the first batch, with the manifest", starts, "s", note=name),
        reported("CPU to the first batch, without", plain, "s", note=name),
    ]


def main(arguments: Sequence[str] | None = None) -> list[Figure]:
    """Runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_form(parser)
    parser.add_argument("--splits", type=int, nargs="*", help="default: " + " ".join(map(str, SECONDS)))
    parser.add_argument("--files", type=int, help="default: 2000")
    parser.add_argument("--rounds", type=int, help="default: 3")
    parser.add_argument("--only", nargs="*", choices=["splits", "manifest"], default=["splits", "manifest"])
    chosen = parser.parse_args(arguments)
    splits, files, rounds = ([2000], 20, 1) if chosen.form else (list(SECONDS), 2000, 3)
    figures = []
    if "splits" in chosen.only:
        for count in chosen.splits or splits:
            figures += from_splits(count, chosen.rounds or rounds)
    if "manifest" in chosen.only:
        figures += of_files(chosen.files or files, chosen.rounds or rounds)
    show("splits", figures)
    write("splits", figures)
    return figures


if __name__ == "__main__":
    main()
