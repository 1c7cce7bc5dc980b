"""Brute force: every order of the movable steps, typed manually, against the plan that was chosen."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial

import cedar
from benchmarks.harness import Figure, Sample, at_most, interleaved, ratios, reported
from benchmarks.optimizer_run import stream_digest
from benchmarks.optimizer_runs import DATA, Scale, each, fresh, walls
from benchmarks.suite.case import Case

_MARGIN = 1.15
_FINALISTS = 3

Order = tuple[str, ...]


def orders(scale: Scale) -> list[Figure]:
    chosen = tuple(case for case in scale.cases if case.permuted)
    few = scale.form.pick(chosen, chosen[-2:][:1])  # one, of few orders
    return each(Scale(scale.form, few), lambda case: _one(case, scale), "orders")


def _one(case: Case, scale: Scale) -> list[Figure]:
    written: Order = tuple(case.module.STEPS)
    legal = list(legal_orders(case, case.data(DATA, case.tiny)))
    warm = [written, *legal]  # the first of a process pays for its imports
    seconds = fresh("orders", case, case.short, warm).result["seconds"][1:]
    found = dict(zip(legal, seconds, strict=True))
    print(f"  {case.name}: {len(legal)} orders", file=sys.stderr, flush=True)
    rows = scale.rows(case)
    finalists = sorted(found, key=found.__getitem__)[: scale.rounds(_FINALISTS)]
    runs: dict[str, Callable[[], Sample]] = {
        "auto": lambda: fresh("whole", case, rows, "auto", "auto"),
        **{" > ".join(order): partial(fresh, "orders", case, rows, [order]) for order in finalists},
    }
    samples = {name: walls(s) for name, s in interleaved(runs, scale.rounds(3), warm_up=0).items()}
    auto = samples.pop("auto")
    best = min(samples, key=lambda name: statistics.median(samples[name]))
    shares = ratios(auto, samples[best])
    note = f"{len(legal)} legal orders; best: {best}"
    spread = f"the worst order takes {max(seconds) / min(seconds):.2f}x of the best; threads, no plan, short jobs"
    return [
        at_most(f"brute force: {case.name}, optimized / best order", _MARGIN, shares, "x", note=note),
        reported(
            f"brute force: {case.name}, as written / best order", [found[written] / min(seconds)], "x", note=spread
        ),
    ]


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
