"""What files are worth that are made to be read: the click log of the peers in each layout, and laid out by a plan.

python -m benchmarks.layouts [--form]

CPU seconds, of processes that may be busy with other things: contenders run in turns, and ratios are of the same round.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyarrow.parquet as pq

import cedar
from benchmarks.harness import (
    Figure,
    Form,
    Sample,
    add_form,
    at_least,
    at_most,
    finish,
    interleaved,
    ratios,
    reported,
    timed,
)
from benchmarks.peers.workloads.clicklog import READ, pipeline, prepare
from cedar.datasets.base import Read

_FORMS: dict[str, tuple[Literal["parquet", "arrow", "vortex"], Literal["fast", "small", "pyarrow"]]] = {
    "Parquet as pyarrow writes it": ("parquet", "pyarrow"), "Parquet, fast": ("parquet", "fast"),
    "Parquet, small": ("parquet", "small"), "Arrow, fast": ("arrow", "fast"), "Arrow, small": ("arrow", "small"),
    "Vortex": ("vortex", "fast"),
}  # fmt: skip
_FIRST = next(iter(_FORMS))


def _files(folder: Path) -> dict[str, cedar.Pipeline]:
    """The log in each form; what it takes is printed."""
    log = cedar.read_parquet(str(folder / "log"))
    made = {}
    for name, (form, layout) in _FORMS.items():
        if form == "vortex" and importlib.util.find_spec("vortex") is None:
            continue
        written = log.write(folder / name, format=form, layout=layout, progress=False)
        print(f"{name}: {written.bytes / written.rows:.1f} B a row; {written}")
        made[name] = getattr(cedar, f"read_{form}")(written.files)
    return made


def _decode(data: cedar.Pipeline) -> Callable[[], Sample]:
    """Half the columns, by the reader alone."""
    assert isinstance(data.node.operator, Read)
    source = data.node.operator.source.select(READ)

    def decode() -> dict[str, Any]:
        return {"rows": sum(chunk.rows for split in source.splits() for chunk in source.read(split))}

    return lambda: timed(decode)


def _decoded(files: dict[str, cedar.Pipeline], rounds: int) -> list[Figure]:
    found = interleaved({name: _decode(data) for name, data in files.items()}, rounds)
    cpu = {name: [sample.cpu for sample in samples] for name, samples in found.items()}
    figures = []
    for name, samples in found.items():
        rates = [sample.result["rows"] / sample.cpu / 1e6 for sample in samples]
        figures.append(reported(f"{name}: half the columns decoded", rates, "M rows per CPU second"))
    better = ratios(cpu[_FIRST], cpu["Parquet, fast"])
    return [*figures, at_least("Parquet, fast, against pyarrow's own", 2.0, better, "x, CPU")]


def _sizes(folder: Path) -> Figure:
    """The small layout against zstd for every column, as pyarrow writes it."""
    table = pq.read_table(folder / "log")
    pq.write_table(table, folder / "zstd.parquet", compression="zstd", row_group_size=65_536)
    small = sum(path.stat().st_size for path in (folder / "Parquet, small").glob("*.parquet"))
    size = (folder / "zstd.parquet").stat().st_size
    return at_most("Parquet, small, against zstd", 1.1, [small / size], "of its bytes")


def _epochs(folder: Path, rounds: int) -> list[Figure]:
    """Later epochs of the pipeline, with and without a layout; the first ones are for plans to settle."""
    work = SimpleNamespace(folder=str(folder), batch=4096)
    budgets = {"as the files are": None, "laid out": cedar.Budget(layout=folder / "laid out")}
    loaders = {name: pipeline(work, "").loader(format="torch", budget=budget) for name, budget in budgets.items()}
    rows = pq.read_table(folder / "log", columns=["id"]).num_rows

    def epoch(name: str) -> Callable[[], Sample]:
        def run() -> dict[str, Any]:
            for _ in loaders[name]:
                pass
            return {"rows": rows}

        return lambda: timed(run)

    found = interleaved({name: epoch(name) for name in budgets}, rounds, warm_up=3)
    for loader in loaders.values():
        loader.close()
    cpu = {name: [sample.cpu for sample in samples] for name, samples in found.items()}
    figures = [reported(f"later epochs, {name}", [rows / each / 1e6 for each in seconds], "M rows per CPU second")
               for name, seconds in cpu.items()]  # fmt: skip
    better = ratios(cpu["as the files are"], cpu["laid out"])
    return [*figures, at_least("later epochs, laid out, against as they are", 3.0, better, "x, CPU")]


def figures(form: Form) -> list[Figure]:
    """Decoding by layout, sizes, and epochs by Budget(layout=)."""
    rows, rounds = form.pick((524_288, 7), (20_000, 1))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, rows, None)
        return [*_decoded(_files(folder), rounds), _sizes(folder), *_epochs(folder, rounds)]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/layouts.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_form(parser, "a small log, in seconds")
    found = figures(form := parser.parse_args(arguments).form)
    return finish("layouts", "layouts", found, form)


if __name__ == "__main__":
    sys.exit(main())
