"""Schedules of the fault-tolerant pipeline trainer: how good plans are, against what can be proven and against others.

``python -m benchmarks.resilient_plans [--form]``. It may be stopped, and continues where it was. Periods and
throughputs are simulated; times to plan are measured.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kept as keeping
from benchmarks.harness import Figure, Form, at_least, at_most, reported
from benchmarks.kept import Kept
from cedar.simulate import (
    SYSTEMS,
    bamboo_time,
    drop_replica_time,
    fault_free_time,
    one_f_one_b_time,
    oobleck_time,
    random_dead,
    random_trace,
    replay,
    resilient_time,
    throughput_bound,
    zero_bubble_time,
)
from cedar.trainers.resilient.planner import Memory, Plan, Problem, ahead, exact, normal, plan
from cedar.trainers.resilient.schedule import Worker, grid

_CAPS: tuple[tuple[str, Memory], ...] = (
    ("no cap", None), ("the 1F1B cap (PP everywhere)", "1f1b"), ("1F1B's need at each stage (PP - s)", "stage 1f1b"),
)  # fmt: skip


# ---- the toy, with the solver's bound --------------------------------------------------------------------------------


def toy(form: Form) -> list[Figure]:
    seconds = form.pick(60, 5, 1)
    figures = []
    for (name, memory), limit in zip(_CAPS, (27, 30, None), strict=True):
        problem = Problem(4, 3, 6, frozenset({Worker(2, 1)}), memory)
        quick_plan, best = plan(problem), exact(problem, seconds)
        what = f"period, PP 4, DP 3, 6 micro-batches, one failure, {name}"
        note = (
            f"heuristic; CP-SAT {best.period:g}, its bound {best.bound:g}{', proven' if best.optimal else ''},"
            f" {seconds} s; peak {quick_plan.peak} activations; fault-free 1F1B 27"
        )
        if limit is None:
            figures.append(reported(what, [quick_plan.period], "slots", how="simulated", note=note))
        else:
            figures.append(at_most(what, limit, [quick_plan.period], "slots", how="simulated", note=note))
    return figures


# ---- heuristic against CP-SAT ----------------------------------------------------------------------------------------


def cases(count: int, seed: int = 0) -> Iterator[Problem]:
    """Small problems, all different, with and without failures, mostly with caps."""
    draw = random.Random(seed)
    seen: set[tuple[object, ...]] = set()
    while len(seen) < count:
        stages, replicas, batches = draw.randint(2, 4), draw.randint(2, 3), draw.randint(2, 6)
        places = list(grid(stages, replicas))
        dead = frozenset(draw.sample(places, draw.choice((0, 1, 1, 2))))
        memory: Memory = draw.choice(("1f1b", "1f1b", "stage 1f1b", 2, 3, None))
        if all(any((stage, r) not in dead for r in range(replicas)) for stage in range(stages)):
            problem = Problem(stages, replicas, batches, dead, memory)
            key = (stages, replicas, batches, dead, memory)
            if key not in seen:
                seen.add(key)
                yield problem


def against_exact(form: Form, kept: Kept | None = None) -> list[Figure]:
    count, seconds = form.pick((50, 60), (12, 5), (2, 1))
    kept = kept or Kept("resilient_plans")

    def one(problem: Problem) -> dict[str, float]:
        best = exact(problem, seconds)
        return {
            "found": plan(problem).period, "best": best.period, "bound": best.bound, "proven": best.optimal,
        }  # fmt: skip

    found = kept.some({f"exact: {seconds} s, case {n}": partial(one, p) for n, p in enumerate(cases(count))})
    values = [each["found"] / each["best"] for each in found]
    gaps = [each["found"] / each["bound"] for each in found if not each["proven"]]
    proven, count = sum(each["proven"] for each in found), len(found)
    note = f"{count} cases, {seconds} s each, {proven} proven; worst case {max(values):.3f}"
    mean = statistics.fmean(values)
    figures = [at_most("heuristic / CP-SAT, mean", 1.05, [mean], "x", how="simulated", note=note)]
    if gaps:
        note = f"the {len(gaps)} cases that were not proven; mean {statistics.fmean(gaps):.3f}"
        figures.append(reported("heuristic / CP-SAT's bound, where unproven", gaps, "x", how="simulated", note=note))
    return figures


# ---- throughput against others ---------------------------------------------------------------------------------------


def throughput(form: Form, kept: Kept | None = None) -> list[Figure]:
    sizes = form.pick(((4, 8, 8), (8, 8, 16), (8, 8, 32), (8, 16, 32)), ((4, 8, 8), (8, 8, 16)), ((3, 3, 4),))
    kept = kept or Kept("resilient_plans")
    makes: dict[str, Callable[[], Any]] = {}
    for name, memory in form.pick(_CAPS, _CAPS[1:2]):
        for stages, replicas, batches in sizes:
            base = Problem(stages, replicas, batches, memory=memory)
            for rate in (0.01, 0.05, 0.10):
                draws, targets = form.pick(5, 2, 1), memory == "1f1b"
                makes[f"throughput: {base.stages} {base.replicas} {base.micro_batches} {rate} {name}"] = partial(
                    _plain, base, rate, draws, name, targets=targets
                )
    return [Figure(**plain) for rows in kept.some(makes) for plain in rows]


def _plain(base: Problem, rate: float, draws: int, name: str, *, targets: bool) -> list[dict[str, Any]]:
    return [asdict(figure) for figure in _throughput(base, rate, draws, name, targets=targets)]


def _throughput(base: Problem, rate: float, draws: int, name: str, *, targets: bool) -> list[Figure]:
    whole = one_f_one_b_time(base)
    actual = [replace(base, dead=random_dead(base, rate, seed)) for seed in range(draws)]
    ours = [resilient_time(problem) for problem in actual]
    count = len(actual[0].dead)
    spread = replace(base, dead=normal(base, count))
    moved = resilient_time(spread)
    oobleck = [oobleck_time(problem) for problem in actual]
    others = [min(bamboo_time(problem), drop_replica_time(problem)) for problem in actual]
    where = f"PP {base.stages}, DP {base.replicas}, M {base.micro_batches}, {rate:.0%} ({count}) failed, {name}"
    bounds = [throughput_bound(problem) for problem in actual]
    beside = (
        f"of fault-free 1F1B: ours {whole / max(ours):.3f} to {whole / min(ours):.3f} (bound {min(bounds):.3f} to"
        f" {max(bounds):.3f}), after moves {whole / moved:.3f} (bound {throughput_bound(spread):.3f}), own fault-free"
        f" {whole / fault_free_time(base):.3f}, zero-bubble {whole / zero_bubble_time(base):.3f}, Oobleck"
        f" {whole / max(oobleck):.3f} to {whole / min(oobleck):.3f}, better of Bamboo and drop-a-replica"
        f" {whole / max(others):.3f} to {whole / min(others):.3f}"
    )
    worst = min(other / our for our, other in zip(ours, others, strict=True))
    against = [other / our for our, other in zip(ours, oobleck, strict=True)]
    reach = [other / max(p.bound, 1e-9) for p, other in zip(actual, oobleck, strict=True)]
    within = [a for a, most in zip(against, reach, strict=True) if most >= 0.93]
    limit = (
        f"median of {draws} random sets; for {draws - len(within)} of them no schedule reaches 0.93 without moves: the"
        f" proven bounds allow {min(reach):.3f} to {max(reach):.3f}"
        + (f"; where they allow it, the worst is {min(within):.3f}" if within else "")
    )
    after = [other / moved for other in oobleck]
    names = [
        f"ours / the better of Bamboo and drop-a-replica, worst of {draws}: {where}",
        f"ours / idealised Oobleck, same dead: {where}",
        f"ours after moves / idealised Oobleck: {where}",
    ]
    if targets:
        return [
            at_least(names[0], 1.0, [worst], "x", how="simulated", note=beside),
            at_least(names[1], 0.93, against, "x", how="simulated", note=limit),
            at_least(names[2], 0.93, after, "x", how="simulated", note="failures spread over stages at a boundary"),
        ]
    return [
        reported(names[0], [worst], "x", how="simulated", note=beside),
        reported(names[1], against, "x", how="simulated"),
        reported(names[2], after, "x", how="simulated"),
    ]


def traces(form: Form) -> list[Figure]:
    """A day of machines that fail and come back."""
    base = Problem(4, 8, 8, memory="1f1b")
    hours = form.pick(24, 6, 4)
    trace = random_trace(base.stages * base.replicas, 20 * 3600.0, 3600.0, hours * 3600.0)
    steps = {
        name: replay(base, trace, system, slot=0.2, pause=0.5 if name == "resilient" else 0.0).steps
        for name, system in SYSTEMS.items()
    }
    what = "steps done by ours / {}: {} h, each of 32 machines fails every 20 h, is back after 1 h"
    return [
        reported(what.format(name, hours), [steps["resilient"] / done], "x", how="simulated", note="PP 4, DP 8, M 8")
        for name, done in steps.items()
        if name != "resilient"
    ]


# ---- time to plan ----------------------------------------------------------------------------------------------------


def time_to_plan(form: Form) -> list[Figure]:
    size, failures = form.pick((32, 10), (32, 10), (4, 2))
    dead = frozenset(random.Random(1).sample(list(grid(size, size)), failures))
    figures = []
    for name, memory in _CAPS[:2]:
        problem = Problem(size, size, 2 * size, dead, memory)
        walls, cpus, made = _timed(partial(plan, problem), form.pick(3, 1))
        note = f"validator included; {statistics.median(cpus):.1f} CPU s; period {made.period:g}, bound {made.bound:g}"
        what = f"one plan, {size} stages x {size} replicas x {2 * size} micro-batches, {failures} failures, {name}"
        figures.append(at_most(what, 10, walls, "s", note=note))
    small = Problem(3, 3, 4, frozenset({Worker(1, 1)}), "1f1b")
    walls, _, _ = _timed(lambda: plan(small), 9)
    figures.append(reported("one plan at a failure, PP 3, DP 3, M 4", [wall * 1000 for wall in walls], "ms"))
    start = time.perf_counter()
    plans = ahead(small, 4)
    wall = time.perf_counter() - start
    figures.append(reported(f"{len(plans)} plans ahead, PP 3, DP 3, M 4", [wall * 1000], "ms"))
    return figures


def _timed(make: Callable[[], Plan], rounds: int) -> tuple[list[float], list[float], Plan]:
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        made = make()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return walls, cpus, made


_PARTS: dict[str, Callable[..., list[Figure]]] = {
    "toy": toy, "plan": time_to_plan, "exact": against_exact, "throughput": throughput, "traces": traces,
}  # fmt: skip
_LONG = {"exact", "throughput"}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/resilient_plans.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    keeping.add_arguments(parser, list(_PARTS), "resilient_plans")
    options = keeping.parsed(parser, arguments)
    kept = Kept(options.name + keeping.suffix(options.form), fresh=options.fresh, minutes=options.minutes)
    parts = {
        name: partial(part, options.form, kept) if name in _LONG else partial(part, options.form)
        for name, part in _PARTS.items()
    }
    return keeping.measure("resilient plans", options.name, parts, options.only, form=options.form, fresh=options.fresh)


if __name__ == "__main__":
    sys.exit(main())
