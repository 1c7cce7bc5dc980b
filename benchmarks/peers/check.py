"""Are the rows right? Every run's rows against one plain reference, in the environment that has the functions.

Of an epoch all identities are compared (each expected row once, none else), and some dozens of rows in full with the
plain reference. Peers draw with one shared function of the row's number, so that their random rows have a reference,
too. Our own draws are keyed by the row in their own way: our random rows are compared with those of the same
pipeline as written (``plan="off"``, inline), and their means and deviations with the reference's.

``python -m benchmarks.peers.check order.json`` prints a verdict for each file of samples: "" or what is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.peers.workload import Array, Row, Workload
from benchmarks.peers.workload import workload as workload_named

Samples: TypeAlias = dict[int, Row]
SPREAD = 5.0  # standard errors within which means of random rows must agree
FEWEST = 24  # rows for a comparison of means


@dataclass(frozen=True)
class Delivered:
    """What a run left."""

    first: Array  # identities of the first epoch
    last: Array
    samples: Samples


def load(path: str) -> Delivered:
    with np.load(path, allow_pickle=False) as file:
        samples: Samples = {}
        for name in file.files:
            if name.startswith("row."):
                _, row, column = name.split(".", 2)
                samples.setdefault(int(row), {})[column] = file[name]
        return Delivered(file["ids.first"], file["ids.last"], samples)


def wrong_rows(ids: Array, expected: Array, batch: int) -> str:
    """What is wrong with the identities of an epoch. Two workers may each leave out a last short batch."""
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        return f"{int((counts > 1).sum())} rows came more than once"
    if strange := int(np.isin(values, expected, invert=True).sum()):
        return f"{strange} rows that should not be there"
    missing = len(expected) - len(values)
    return f"{missing} of {len(expected)} rows are missing" if missing >= 2 * batch else ""


def wrong_values(samples: Samples, reference: Callable[[int], Row], tolerance: float) -> str:
    """The first row whose mean absolute difference from the reference is too large."""
    for row, columns in sorted(samples.items()):
        wanted = reference(row)
        for name, value in columns.items():
            problem = differs(value, np.asarray(wanted[name]), tolerance)
            if problem:
                return f"row {row}, {name}: {problem}"
    return ""


def differs(value: Array, wanted: Array, tolerance: float) -> str:
    if value.shape != wanted.shape:
        return f"shape {value.shape}, not {wanted.shape}"
    if not value.size:
        return ""
    difference = np.abs(value.astype(np.float64) - wanted.astype(np.float64))
    mean = float(difference.mean())
    return "" if mean <= tolerance else f"differs by {mean:.3g} on average (allowed: {tolerance:g})"


def wrong_means(samples: Samples, reference: Callable[[int], Row]) -> str:
    """Random rows: the mean and the deviation of each row, on average over rows, within a few standard errors."""
    if len(samples) < FEWEST:
        return ""
    for name in next(iter(samples.values())):
        for what, measure in (("mean", np.mean), ("deviation", np.std)):
            mine = np.array([measure(columns[name]) for columns in samples.values() if columns[name].size])
            theirs = np.array([measure(wanted) for row in samples if (wanted := reference(row)[name]).size])
            error = float(np.sqrt(mine.var() / len(mine) + theirs.var() / len(theirs))) + 1e-3
            if abs(mine.mean() - theirs.mean()) > SPREAD * error:
                return f"{name}: the {what} of rows is {mine.mean():.3g}, the reference's {theirs.mean():.3g}"
    return ""


def verdict(
    workload: Workload, work: Any, found: Delivered, reference: Callable[[int], Row], own: Samples | None
) -> str:
    """What is wrong with a run, or "". ``own``: rows of our pipeline as written, where draws are our own."""
    expected = work.expected()
    problem = wrong_rows(found.first, expected, work.batch) or wrong_rows(found.last, expected, work.batch)
    if problem:
        return problem
    if not found.samples:
        return "no rows to compare"
    if own is None:
        return wrong_values(found.samples, reference, workload.tolerance)
    shared = {row: columns for row, columns in found.samples.items() if row in own}
    if not shared:
        return "no row in common with the plan as written"
    return wrong_values(shared, own.__getitem__, 0.0) or wrong_means(found.samples, reference)


def main() -> None:
    """The verdicts as JSON, the last line of stdout."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    workload = workload_named(order["workload"])
    work: Any = workload.work(order["folder"], order["rows"])
    known: dict[int, Row] = {}

    def reference(row: int) -> Row:
        if row not in known:
            columns = work.reference(row)
            known[row] = work.sample_of(columns)
        return known[row]

    own = load(order["own"]).samples if order.get("own") else None
    verdicts = {}
    for path, ours in order["samples"]:
        verdicts[path] = verdict(workload, work, load(path), reference, own if ours else None)
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
