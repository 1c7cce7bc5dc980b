"""Runs of the optimizer's benchmark: each in a fresh process with two cores, those that are compared in turns."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import OUT, Contender, Figure, Form, Sample
from benchmarks.optimizer_run import WORKERS
from benchmarks.suite.case import Case

EXECUTORS = ("inline", "threads", "processes")
DATA = OUT / "data" / "optimizer"


@dataclass(frozen=True)
class Scale:
    """How much to measure.

    Args:
        form: the quick one has sizes of about a second and few rounds.
        cases: the pipelines.
    """

    form: Form
    cases: tuple[Case, ...]

    def rows(self, case: Case) -> int:
        """Of a whole run."""
        return self.form.pick(case.rows, case.short, case.tiny)

    def rounds(self, full: int) -> int:
        return self.form.pick(full, 1)


def fresh(target: str, case: Case, rows: int, *arguments: Any) -> Sample:
    """A function of ``optimizer_run`` in a process that has done nothing before; its imports are not timed."""
    directory = case.data(DATA, rows)
    with Contender(f"benchmarks.optimizer_run:{target}", case.name, directory, rows, *arguments, cores=WORKERS) as c:
        sample = c.run()
        assert c.process.stdin is not None
        c.process.stdin.close()  # it ends by itself, and its pools with it
        c.process.stdin = None
        c.process.wait(timeout=60)
        return sample


def best_executor(case: Case, rows: int, among: Sequence[str] = EXECUTORS) -> tuple[str, dict[str, Sample]]:
    """The single executor on which the pipeline as written is fastest, and the runs that showed it."""
    runs = {name: fresh("whole", case, rows, "off", name) for name in among}
    return min(runs, key=lambda name: runs[name].wall), runs


def each(scale: Scale, measure: Callable[[Case], list[Figure]], what: str) -> list[Figure]:
    """Figures of every pipeline; one that fails is a missed figure, and does not end the benchmark."""
    figures: list[Figure] = []
    for case in scale.cases:
        try:
            figures += measure(case)
        except RuntimeError as error:  # the process said on stderr why
            if scale.form is Form.TINY:
                raise
            figures.append(Figure(f"{what}: {case.name}", "runs", 0.0, "", False, note=str(error)))
        print(f"  {what}: {case.name}", file=sys.stderr, flush=True)
    return figures


def walls(samples: Sequence[Sample]) -> list[float]:
    return [sample.wall for sample in samples]


def cpu(samples: Sequence[Sample]) -> float:
    """The median of the CPU seconds, those of worker processes included."""
    return statistics.median(sample.cpu + float(sample.result["workers"]) for sample in samples)


def busiest(sample: Sample, count: int = 3) -> str:
    """The operators with most of the work."""
    operators: dict[str, float] = sample.result["operators"]
    total = sum(operators.values()) or 1.0
    short = (f"{name.partition('(/')[0][:24]} {seconds / total:.0%}" for name, seconds in operators.items())
    return ", ".join(part for part, _ in zip(short, range(count), strict=False))
