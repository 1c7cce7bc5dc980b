"""Deduplication, side by side with plain lists: ``python -m benchmarks.dedup [--form]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from benchmarks.harness import Form

PARTS = ("build", "factors", "sliding", "auto", "once")
BATCH = 2048


def log(rows: int, samples: int, repeats: float, features: int, length: int, seed: int = 0) -> pa.Table:
    """A clustered log: lists of all features change together with probability 1 - ``repeats`` within a session."""
    rng = np.random.default_rng(seed)
    session = np.arange(rows) // samples
    new = np.ones(rows, dtype=bool)
    new[1:] = (np.diff(session) != 0) | (rng.random(rows - 1) >= repeats)
    version = pa.array(np.cumsum(new) - 1)
    columns: dict[str, Any] = {"session": pa.array(session), "label": pa.array(rng.random(rows) < 0.1)}
    for number in range(features):
        lengths = rng.poisson(length, version[-1].as_py() + 1) if length > 1 else np.ones(version[-1].as_py() + 1, int)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 1_000_000, offsets[-1])))
        columns[f"f{number}"] = lists.take(version)
    return pa.table(columns)


def per_second(fn: Callable[[], Any], rows: int, seconds: float) -> tuple[list[float], float]:
    """Rows per second of each call, for so many seconds; and the median per CPU second."""
    fn()
    wall: list[float] = []
    cpu: list[float] = []
    end = time.perf_counter() + seconds
    while len(wall) < 5 or time.perf_counter() < end:
        start, used = time.perf_counter(), time.thread_time()
        fn()
        wall.append(rows / (time.perf_counter() - start))
        cpu.append(rows / (time.thread_time() - used))
    return wall, float(np.median(cpu))


def build(form: Form) -> list[Any]:
    """Groups of one batch: equal rows found, lists gathered."""
    from benchmarks.harness import at_least, reported
    from cedar.core.groups import grouped

    figures = []
    for features, length, least in ((16, 20, 1.2e6), (1, 50, None)):
        table = log(BATCH * 8, 16, 0.95, features, length)
        names = [f"f{number}" for number in range(features)]
        batches = [{n: table[n].chunk(0).slice(i * BATCH, BATCH) for n in names} for i in range(8)]

        def run(batches: list[Any] = batches) -> None:
            for batch in batches:
                grouped(batch)

        rates, cpu = per_second(run, BATCH * 8, form.pick(5, 1, 0))
        note = f"{cpu:,.0f} rows per CPU second"
        what = f"group of {features} list feature(s) of {length} values, batch {BATCH:,}"
        figures.append(
            at_least(what, least, rates, "rows/s", note=note) if least else reported(what, rates, "rows/s", note=note)
        )
    return figures


def factors(form: Form) -> list[Any]:
    """Predicted factor over the achieved one."""
    import cedar
    from benchmarks.harness import at_most

    figures = []
    for samples, repeats in ((1, 0.0), (8, 0.95), (16, 0.95), (16, 0.8)):
        table = log(BATCH * form.pick(32, 8, 2), samples, repeats, 2, 20)
        p = cedar.from_arrow(table).dedup([["f0", "f1"]], session="session").batch(BATCH)
        with p.loader() as loader:
            for _ in loader:
                pass
            (achieved,) = loader.report().dedup.values()
            predicted = float(loader.explain().split("predicted factor ")[1].split(";")[0])
        what = f"factor, S={samples} d={repeats}: predicted is off by"
        note = f"predicted {predicted:.3g}, achieved {achieved:.3g}"
        figures.append(at_most(what, 0.15, [abs(predicted / achieved - 1)], "of it", note=note))
    return figures


def sliding(form: Form) -> list[Any]:
    """Histories that slide, held as slices of shared values: values read over values held."""
    from benchmarks.harness import at_most
    from cedar.recommendation.slices import slices_of, sliding_factor

    figures = []
    sessions = form.pick(512, 64)
    rng = np.random.default_rng(0)
    for samples, length, shift in ((16, 50, 1), (16, 50, 5), (8, 100, 2)):
        total = length + (samples - 1) * shift
        values = rng.integers(0, 1_000_000, (sessions, total))
        starts = (np.arange(samples) * shift)[None, :] + (np.arange(sessions) * total)[:, None]
        rows = (starts.reshape(-1)[:, None] + np.arange(length)).reshape(-1)
        offsets = np.arange(sessions * samples + 1) * length
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)[rows]))
        held = slices_of(lists)
        achieved, predicted = len(rows) / len(held.values), sliding_factor(samples, length, shift)
        what = f"sliding factor, S={samples} L={length} m={shift}: predicted is off by"
        note = f"predicted {predicted:.3g}, achieved {achieved:.3g}"
        figures.append(at_most(what, 0.15, [abs(predicted / achieved - 1)], "of it", note=note))
    return figures


def auto(form: Form) -> list[Any]:
    """``dedup("auto")`` on data where it cannot pay, against the same pipeline without it."""
    import cedar
    from benchmarks.harness import at_least, interleaved, ratios

    figures = []
    rows = BATCH * form.pick(128, 64, 2)
    for what, length in (("one-hot", 1), ("lists of 20", 20)):
        p = cedar.from_arrow(log(rows, 1, 0.0, 8, length))
        names = [f"f{number}" for number in range(8)]
        contenders = {"plain": _hashed(p, names), "auto": _hashed(p.dedup("auto"), names)}
        runs = interleaved({n: partial(_timed, q, form.pick(4, 1)) for n, q in contenders.items()}, form.pick(15, 5, 1))
        speed = ratios([run.wall for run in runs["plain"]], [run.wall for run in runs["auto"]])
        note = f"CPU {np.median(ratios([r.cpu for r in runs['plain']], [r.cpu for r in runs['auto']])):.2f}x"
        figures.append(at_least(f'dedup("auto") if nothing repeats, {what}', 0.97, speed, "x", note=note))
    return figures


def once(form: Form) -> list[Any]:
    """Per-value transforms on unique rows against all rows; end to end, torch batches."""
    import cedar
    from benchmarks.harness import interleaved, ratios, reported

    rows = BATCH * form.pick(64, 16, 2)
    names = [f"f{number}" for number in range(6)]
    p = cedar.from_arrow(log(rows, 16, 0.95, 6, 30))
    figures = []
    for what, work in (
        ("FirstX, SigridHash, Bucketize of 6 lists", _hashed),
        ("a Python function of 1 list", _looked_up),
    ):
        contenders = {"plain": work(p, names), "once": work(p.dedup([names], session="session"), names)}
        runs = interleaved({n: partial(_timed, q) for n, q in contenders.items()}, form.pick(9, 3, 1))
        speed = ratios([run.wall for run in runs["plain"]], [run.wall for run in runs["once"]])
        note = f"CPU {np.median(ratios([r.cpu for r in runs['plain']], [r.cpu for r in runs['once']])):.2f}x"
        figures.append(reported(f"{what}, S=16 d=0.95: unique rows against all", speed, "x", note=note))
    return figures


def _hashed(p: Any, names: list[str]) -> Any:
    from cedar.operators import recsys

    borders = tuple(np.linspace(0, 1e6, 255).tolist())
    for name in names:
        p = p.map(recsys.FirstX(20), name).map(recsys.SigridHash(1, 1_000_000), name)
    return p.map(recsys.Bucketize(borders), names[0]).batch(BATCH)


def _looked_up(p: Any, names: list[str]) -> Any:
    from cedar.operators.algebra import per_value

    table = {number: number // 2 for number in range(1000)}

    @per_value
    def look_up(ids: list[int]) -> list[int]:
        return [table.get(i % 1000, 0) for i in ids]

    return p.map(look_up, names[0], dtype=list[int]).batch(BATCH)


def _timed(p: Any, epochs: int = 1) -> Any:
    from benchmarks.harness import timed

    return timed(lambda: _drain(p, epochs))


def _drain(p: Any, epochs: int) -> Mapping[str, Any]:
    rows = 0
    with p.loader(format="torch") as loader:
        for batch in chain.from_iterable(loader for _ in range(epochs)):
            rows += len(batch["label"])
    return {"rows": rows}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/dedup.json; 1 if a target was missed."""
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness

    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_form(parser, "smaller inputs and fewer rounds: under a minute")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args(arguments)
    parts = {"build": build, "factors": factors, "sliding": sliding, "auto": auto, "once": once}
    figures = [figure for part in options.only for figure in parts[part](options.form)]
    return harness.finish("deduplication", "dedup" if options.only == PARTS else "dedup_part", figures, options.form)


if __name__ == "__main__":
    sys.exit(main())
