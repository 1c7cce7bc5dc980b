"""The pipelines of the conformance suite, by source, and the files that they read.

Each is a function of a folder with small files in every format (see ``write_files``); ``PIPELINES`` names them.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import cedar

lance: Any = import_module("lance") if find_spec("lance") else None
vortex: Any = import_module("vortex") if find_spec("vortex") else None

PIPELINES: dict[str, Callable[[Path], cedar.Pipeline]] = {}
ROWS = 47
SCHEMA = pa.schema({
    "id": pa.int64(), "x": pa.int64(), "f": pa.float64(), "s": pa.string(), "l": pa.list_(pa.int64()),
    "n": pa.float64(),
})  # fmt: skip


def pipeline(make: Callable[[Path], cedar.Pipeline]) -> Callable[[Path], cedar.Pipeline]:
    PIPELINES[make.__name__] = make
    return make


def row(i: int) -> dict[str, Any]:
    return {"id": i, "x": i % 7, "f": i / 4, "s": f"row {i}", "l": list(range(i % 5)), "n": None if i % 3 else float(i)}


def table(start: int = 0, rows: int = ROWS) -> pa.Table:
    return pa.Table.from_pylist([row(i) for i in range(start, start + rows)], SCHEMA)


def write_files(folder: Path) -> None:
    """Three files in each format, of 47 rows together."""
    for number, (start, rows) in enumerate([(0, 20), (20, 1), (21, 26)]):
        part = table(start, rows)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=7)
        feather.write_feather(part, str(folder / f"{number}.feather"), chunksize=6)
        if vortex is not None:
            vortex.io.write(part, str(folder / f"{number}.vortex"))
        if lance is not None:
            lance.write_dataset(part, str(folder / "all.lance"), mode="append")
        (folder / f"{number}.txt").write_text("\n".join(f"line {i}" * (i % 3) for i in range(start, start + rows)))
        flat = [{k: v for k, v in row(i).items() if k != "l"} for i in range(start, start + rows)]
        lines = [",".join("" if v is None else str(v) for v in r.values()) for r in flat]
        (folder / f"{number}.csv").write_text("\n".join([",".join(flat[0]), *lines]) + "\n")
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in range(start, start + rows)))
        with gzip.open(folder / f"{number}.txt.gz", "wt") as file:
            file.writelines(f"zipped {i}\n" for i in range(start, start + rows))
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for i in range(start, start + rows):
                for name, body in ((f"{i:04}.txt", f"text {i}".encode()), (f"{i:04}.cls", str(i % 3).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))
    for i in range(9):
        (folder / f"{i}.bin").write_bytes(bytes(range(i)))


# ---- sources ---------------------------------------------------------------------------------------------------------


@pipeline
def parquet(folder: Path) -> cedar.Pipeline:
    return cedar.read_parquet(f"{folder}/*.parquet").batch(4, last="keep")


@pipeline
def parquet_columns_rows(folder: Path) -> cedar.Pipeline:
    return cedar.read_parquet(f"{folder}/*.parquet", columns=["id", "l"])


@pipeline
def files(folder: Path) -> cedar.Pipeline:
    return cedar.read_files(f"{folder}/*.bin").map(len, "bytes", into="size").drop("path").batch(2, last="keep")


@pipeline
def text(folder: Path) -> cedar.Pipeline:
    return cedar.read_text(f"{folder}/*.txt").drop("path").batch(5, last="keep")


@pipeline
def text_gz_streams(folder: Path) -> cedar.Pipeline:
    return cedar.read_text(f"{folder}/*.txt.gz").drop("path").shuffle(window=8).batch(5, last="keep")


@pipeline
def csv(folder: Path) -> cedar.Pipeline:
    return cedar.read_csv(f"{folder}/*.csv").shuffle().batch(5, last="keep")


@pipeline
def jsonl(folder: Path) -> cedar.Pipeline:
    return cedar.read_jsonl(f"{folder}/*.jsonl").shuffle().batch(5, last="keep")


@pipeline
def arrow(folder: Path) -> cedar.Pipeline:
    return cedar.read_arrow(f"{folder}/*.feather").shuffle().batch(5, last="keep")


@pipeline
def vortex_files(folder: Path) -> cedar.Pipeline:
    pytest.importorskip("vortex", reason="the extra vortex is not installed")
    return cedar.read_vortex(f"{folder}/*.vortex").filter(cedar.col("id") != 5).shuffle().batch(5, last="keep")


@pipeline
def lance_data_set(folder: Path) -> cedar.Pipeline:
    pytest.importorskip("lance", reason="the extra lance is not installed")
    return cedar.read_lance(folder / "all.lance").filter(cedar.col("id") != 5).shuffle().batch(5, last="keep")


@pipeline
def tar(folder: Path) -> cedar.Pipeline:
    return cedar.read_tar(f"{folder}/*.tar").map(int, "cls").batch(5, last="keep")


@pipeline
def items(folder: Path) -> cedar.Pipeline:
    return cedar.from_items([row(i) for i in range(ROWS)]).shuffle(seed=1).batch(5, last="keep")


class Dataset:
    """A map-style dataset, as PyTorch knows them."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"id": i, "image": np.full((2, 3), i, dtype=np.float32)}


@pipeline
def map_style_dataset(folder: Path) -> cedar.Pipeline:
    return cedar.from_items(Dataset()).shuffle(seed=1, window=9).batch(5, last="keep")


def _many() -> Iterator[dict[str, Any]]:
    for i in range(ROWS):
        yield {"id": i, "square": i * i}


@pipeline
def iterable(folder: Path) -> cedar.Pipeline:
    return cedar.from_iterable(_many).shuffle(seed=1, window=9).batch(5, last="keep")


@pipeline
def arrow_table(folder: Path) -> cedar.Pipeline:
    return cedar.from_arrow(table()).shuffle().batch(5, last="keep")


@pipeline
def polars_frame(folder: Path) -> cedar.Pipeline:
    import polars as pl

    return cedar.from_polars(pl.DataFrame(table().to_pydict())).shuffle().batch(5, last="keep")


class Numbers:
    """The least that a source must be."""

    def splits(self) -> list[int]:
        return [0, 10, 20, 30]

    def read(self, split: int) -> list[list[dict[str, Any]]]:
        return [[{"x": split + i} for i in range(4)], [{"x": split + 5}]]


@pipeline
def own_source(folder: Path) -> cedar.Pipeline:
    return cedar.from_source(Numbers()).shuffle(seed=4).batch(3, last="keep")
