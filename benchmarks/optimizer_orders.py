"""Brute force: every order of the movable steps, typed by hand, against the plan that was chosen."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import cedar
from benchmarks.harness import Figure, at_most, interleaved, ratios, reported
from benchmarks.optimizer_run import stream_digest
from benchmarks.optimizer_runs import DATA, Scale, each, fresh, walls
from benchmarks.suite.case import Case

_MARGIN = 1.15
_FINALISTS = 3

Order = tuple[str, ...]


def orders(scale: Scale) -> list[Figure]:
    chosen = tuple(case for case in scale.cases if case.permuted)
    return each(Scale(scale.quick, chosen[:2] if scale.quick else chosen), lambda case: _one(case, scale), "orders")


def _one(case: Case, scale: Scale) -> list[Figure]:
    rows = scale.rows(case)
    written: Order = tuple(case.module.STEPS)
    legal = list(legal_orders(case, case.data(DATA, case.tiny)))
    found = {order: fresh("order", case, rows, order).wall for order in legal}
    finalists = sorted(found, key=found.__getitem__)[: 1 if scale.quick else _FINALISTS]
    print(f"  {case.name}: {len(legal)} orders, {min(found.values()):.2f} s the best", file=sys.stderr, flush=True)
    runs = {
        "auto": lambda: fresh("whole", case, rows, "auto", "auto"),
        **{" > ".join(order): lambda order=order: fresh("order", case, rows, order) for order in finalists},  # type: ignore[misc]
    }
    samples = {name: walls(s) for name, s in interleaved(runs, scale.rounds(3), warm_up=0).items()}
    auto = samples.pop("auto")
    best = min(samples, key=lambda name: sorted(samples[name])[len(samples[name]) // 2])
    note = f"{len(legal)} legal orders; best: {best}"
    slowest = max(found.values())
    return [
        at_most(f"brute force: {case.name}, optimized / best order", _MARGIN, ratios(auto, samples[best]), "x", note=note),
        reported(
            f"brute force: {case.name}, as written / best order", [found[written] / min(found.values())], "x",
            note=f"the worst order takes {slowest / min(found.values()):.2f}x of the best; on threads, without a plan",
        ),
    ]  # fmt: skip


def legal_orders(case: Case, directory: str) -> Iterator[Order]:
    """The orders whose stream is that of the pipeline as written, bit for bit, on a small input; that one first."""
    written: Order = tuple(case.module.STEPS)
    wanted = _digest(case, directory, written)
    assert wanted is not None
    for order in itertools.permutations(written):
        if _digest(case, directory, order) == wanted:
            yield order


def _digest(case: Case, directory: str, order: Order) -> str | None:
    """None for an order that cannot be built or run."""
    try:
        return stream_digest(case.ordered(directory, order).loader(plan="off", executor="inline"))
    except cedar.CedarError:
        return None
