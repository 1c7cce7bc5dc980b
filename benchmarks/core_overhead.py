"""What cedar costs next to the work: per block and operator, and per row of a Python function."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import cedar
from benchmarks.harness import Contender, Figure, Form, Sample, at_most, interleaved, reported, timed
from cedar import col
from cedar.core.block import Block
from cedar.operators.base import Bound, Effects, Env, Kernel, RowOperator, Schema

_ROWS = 64  # of a small block
_CHAIN = 20  # operators
_NAMES = tuple("abcdefghij")


@dataclass(frozen=True)
class Nothing(RowOperator):
    """An operator whose kernel does nothing."""

    name = "nothing"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset())

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    def bind(self, bound: Bound) -> Kernel:
        return _same


def _same(block: Block, env: Env) -> Block:  # noqa: ARG001 - a kernel
    return block


class Blocks:
    """A source of many small blocks."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.columns = {"x": pa.array(np.arange(_ROWS)), "y": pa.array(np.arange(_ROWS) / 2)}

    def splits(self) -> list[int]:
        return list(range(self.blocks))

    def read(self, split: int) -> Iterator[dict[str, Any]]:
        yield self.columns


_LINKS: dict[str, Callable[[Any, int], Any]] = {
    "no-op": lambda p, _: p.apply(Nothing()),
    "rename": lambda p, i: p.rename({"x": "z"} if i % 2 == 0 else {"z": "x"}),
    "with_columns": lambda p, _: p.with_columns(y=col("y") + 1),
    "map_batches": lambda p, _: p.map_batches(lambda c: c, "y", format="numpy"),
}


def measure(form: Form) -> list[Figure]:
    return [*_per_operator(form), *_per_row(form)]


# ---- per block and operator ------------------------------------------------------------------------------------------


def _per_operator(form: Form) -> list[Figure]:
    """The slope of the time over the number of operators, per block; and what a block costs without any."""
    blocks = form.pick(3000, 500, 50)
    with Contender("benchmarks.core_overhead:chains", blocks) as chains:
        answers = interleaved({"chains": chains.run}, rounds=form.pick(7, 3, 1))["chains"]
    figures = []
    for name in _LINKS:
        seconds = [(a.result[name] - a.result["none"]) / _CHAIN / blocks * 1e6 for a in answers]
        trivial = name in ("no-op", "rename")
        what = f"per block and operator, inline: {name}"
        note = f"slope over 0 and {_CHAIN} operators, {blocks:,} blocks of {_ROWS} rows"
        figures.append(
            at_most(what, 30, seconds, "us", note=note) if trivial else reported(what, seconds, "us", note=note)
        )
    whole = [a.result["no-op"] / (_CHAIN + 1) / blocks * 1e6 for a in answers]
    figures.append(at_most("per block and operator, inline: no-op, all that a block costs included", 30, whole, "us"))
    alone = [a.result["none"] / blocks * 1e6 for a in answers]
    figures.append(reported("per block without operators: a split read, its task, its delivery", alone, "us"))
    return figures


def chains(blocks: int) -> Callable[[], dict[str, Any]]:
    """CPU seconds of an epoch without operators, and of one for each kind of chain."""
    loaders = {"none": _loader(blocks, None)} | {name: _loader(blocks, link) for name, link in _LINKS.items()}

    def run() -> dict[str, Any]:
        return {name: timed(partial(_drain, loader)).cpu for name, loader in loaders.items()}

    return run


def _loader(blocks: int, link: Callable[[Any, int], Any] | None) -> Any:
    pipeline = cedar.from_source(Blocks(blocks))
    for number in range(_CHAIN if link is not None else 0):
        assert link is not None
        pipeline = link(pipeline, number)
    return pipeline.batch(_ROWS).loader(executor="inline", format="arrow")


def _drain(loader: Any) -> None:
    for _ in loader:
        pass


# ---- per row of a Python function ------------------------------------------------------------------------------------


def _per_row(form: Form) -> list[Figure]:
    rows = form.pick(500_000, 100_000, 5000)
    rounds = form.pick(11, 5, 1)
    with (
        Contender("benchmarks.core_overhead:scalar", rows) as one,
        Contender("benchmarks.core_overhead:dicts", rows // 5) as all_,
    ):
        found = interleaved({"scalar": one.run, "dicts": all_.run}, rounds)
    scalar = [_overhead(sample, rows) for sample in found["scalar"]]
    per_column = [_overhead(sample, rows // 5) / len(_NAMES) for sample in found["dicts"]]
    note = "CPU; map inline, from Arrow to Arrow, less a list of calls in a bare loop"
    return [
        at_most("Python map on one scalar column, per row", 0.3, scalar, "us", note=_bare(found["scalar"], rows, note)),
        at_most(
            "Python map on dict rows, per row and column", 0.2, per_column, "us",
            note=_bare(found["dicts"], rows // 5, f"{note}; {len(_NAMES)} columns"),
        ),
    ]  # fmt: skip


def _overhead(sample: Sample, rows: int) -> float:
    return float(sample.result["cedar"] - sample.result["bare"]) / rows * 1e6


def _bare(samples: list[Sample], rows: int, note: str) -> str:
    bare = statistics.median(s.result["bare"] / rows * 1e6 for s in samples)
    return f"{note}; the loop alone takes {bare:.3f} us per row"


def scalar(rows: int) -> Callable[[], dict[str, Any]]:
    """A function of one number."""
    values = np.arange(rows) / 7
    items = values.tolist()
    loader = cedar.from_arrow(pa.table({"a": values})).map(_scaled, "a", dtype=float)
    return _against(loader, lambda: [_scaled(item) for item in items], rows)


def dicts(rows: int) -> Callable[[], dict[str, Any]]:
    """A function of whole rows: half numbers, half integers."""
    columns = {name: np.arange(rows) / 7 if i % 2 else np.arange(rows) for i, name in enumerate(_NAMES)}
    table = pa.table(columns)
    items = table.to_pylist()
    return _against(cedar.from_arrow(table).map(_row), lambda: [_row(item) for item in items], rows)


def _against(pipeline: Any, bare: Callable[[], Any], rows: int) -> Callable[[], dict[str, Any]]:
    loader = pipeline.batch(rows).loader(executor="inline", format="arrow")

    def run() -> dict[str, Any]:
        return {"cedar": timed(lambda: _drain(loader)).cpu, "bare": timed(bare).cpu, "rows": rows}

    return run


def _scaled(value: float) -> float:
    return value * 2.0


def _row(row: dict[str, Any]) -> dict[str, Any]:
    row["a"] += 1
    return row
