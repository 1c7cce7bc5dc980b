"""The suite, optimized against as written on its best single executor: whole runs, jobs of a second, first batches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from benchmarks.harness import Figure, Sample, at_least, at_most, interleaved, ratios, reported
from benchmarks.optimizer_runs import EXECUTORS, Scale, best_executor, busiest, cpu, each, fresh, walls
from benchmarks.suite.case import Case

_NEVER_UNDER = 0.97
_MEAN = 1.6
_PUSHED = 5.0
_FIRST = 1.2
_WITHIN = 0.25


def whole(scale: Scale) -> list[Figure]:
    """Runs of a few seconds."""
    return _compared(scale, "whole run", scale.rows, scale.rounds(3), pushed=True)


def short(scale: Scale) -> list[Figure]:
    """Jobs of about a second."""
    return _compared(scale, "job of a second", lambda case: case.short, scale.rounds(5), pushed=False)


def _compared(scale: Scale, what: str, rows_of: object, rounds: int, pushed: bool) -> list[Figure]:
    assert callable(rows_of)
    speedups: list[float] = []

    def measure(case: Case) -> list[Figure]:
        rows = rows_of(case)
        executor, tried = best_executor(case, rows, scale.form.pick(EXECUTORS, EXECUTORS[:2], EXECUTORS[:1]))
        found = interleaved(
            {
                "off": lambda: fresh("whole", case, rows, "off", executor),
                "auto": lambda: fresh("whole", case, rows, "auto", "auto"),
            },
            rounds,
            warm_up=0,
        )
        gains = ratios(walls(found["off"]), walls(found["auto"]))
        speedups.append(statistics.median(gains))
        limit = _PUSHED if pushed and case.pushes else _NEVER_UNDER
        note = _told(found["off"], found["auto"], executor, tried)
        return [at_least(f"{what}: {case.name}, as written / optimized", limit, gains, "x", note=note)]

    figures = each(scale, measure, what)
    if speedups:
        mean = statistics.geometric_mean(speedups)
        figures.append(at_least(f"{what}: the least of {len(speedups)} pipelines", _NEVER_UNDER, [min(speedups)], "x"))
        figures.append(
            at_least(f"{what}: geometric mean", _MEAN, [mean], "x")
            if pushed
            else reported(f"{what}: geometric mean", [mean], "x")
        )
    return figures


def _told(off: Sequence[Sample], auto: Sequence[Sample], executor: str, tried: dict[str, Sample]) -> str:
    """Seconds, CPU seconds, where the time goes and what the plan did."""
    as_written = ", ".join(f"{name} {sample.wall:.2f}" for name, sample in tried.items())
    applied = auto[-1].result["applied"]
    return (
        f"{statistics.median(walls(off)):.2f} s on {executor} ({as_written}), "
        f"{statistics.median(walls(auto)):.2f} s on {auto[-1].result['ran_on']}; "
        f"CPU {cpu(off):.2f} and {cpu(auto):.2f} s; {busiest(off[-1])}; "
        f"plan: {auto[-1].result['method'] or 'none'}" + (f" ({', '.join(dict.fromkeys(applied))})" if applied else "")
    )


def first(scale: Scale) -> list[Figure]:
    """The time to the first batch, on the executor that a run takes by itself."""
    slower: list[float] = []

    def measure(case: Case) -> list[Figure]:
        found = interleaved(
            {plan: partial(fresh, "first", case, case.short, plan, "auto") for plan in ("off", "auto")},
            scale.rounds(5),
            warm_up=0,
        )
        seconds = {plan: [sample.result["first"] for sample in samples] for plan, samples in found.items()}
        shares = ratios(seconds["auto"], seconds["off"])
        slower.append(statistics.median(shares))
        note = f"{statistics.median(seconds['off']):.3f} s as written"
        return [at_most(f"first batch: {case.name}, optimized / as written", _FIRST, shares, "x", note=note)]

    figures = each(scale, measure, "first batch")
    if slower:
        figures.append(at_most(f"first batch: the most of {len(slower)} pipelines", _FIRST, [max(slower)], "x"))
    return figures


def predicted(scale: Scale) -> list[Figure]:
    """What a plan promises for the last epoch of three, before it begins, against what that gives: rows read a second.

    Nothing pauses. Where rows are kept for later epochs, predictions are of the first, and so is what is measured.
    """
    within: list[bool] = []

    def measure(case: Case) -> list[Figure]:
        result = fresh("epochs", case, scale.rows(case), "auto", "auto", 2 if case.kept else 3).result
        epoch = 0 if case.kept else -1
        rate = result["read"][epoch] / result["epochs"][epoch]
        what = f"prediction: {case.name}, predicted / measured"
        if result["predicted"] is None:
            return [reported(what, [rate], "rows/s", note="predicted: none")]
        share = result["predicted"] / rate if rate else float("inf")
        within.append(abs(share - 1) <= _WITHIN)
        note = f"{result['predicted']:,.0f} and {rate:,.0f} rows/s; bottleneck: {result['bottleneck']}"
        return [Figure(what, "within 25%", share, "x", within[-1], note=note)]

    figures = each(scale, measure, "prediction")
    total = max(1, len(scale.cases))
    note = f"{sum(within)} of {total}; {total - len(within)} predict nothing"
    figures.append(at_least("prediction: share within 25%", round(12 / 14, 3), [sum(within) / total], "", note=note))
    return figures


def epochs(scale: Scale) -> list[Figure]:
    """The second epoch against the first, where the expensive part is deterministic and kept."""
    kept = Scale(scale.form, tuple(case for case in scale.cases if case.kept))

    def measure(case: Case) -> list[Figure]:
        figures = []
        for plan in ("off", "auto"):
            runs = [fresh("epochs", case, scale.rows(case), plan, "auto", 2) for _ in range(scale.rounds(3))]
            gains = [run.result["epochs"][0] / run.result["epochs"][1] for run in runs]
            what = f'second epoch: {case.name}, first / second, plan="{plan}"'
            note = f"first {statistics.median(run.result['epochs'][0] for run in runs):.2f} s"
            if plan == "auto":
                figures.append(at_least(what, 5, gains, "x", note=note))
            else:
                figures.append(reported(what, gains, "x", note=note))
        return figures

    return each(kept, measure, "second epoch")
