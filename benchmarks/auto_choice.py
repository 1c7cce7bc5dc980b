"""Does cedar choose the executor well on its own: ``python -m benchmarks.auto_choice`` (``make bench-auto``).

24 pipelines with one Python function differ in how long the function holds the GIL, in the size of its results, in the
operators after it, and in the length of the run; some have a slow trainer or share the machine with a busy program.
Each runs with the defaults and with every executor and worker count of a short list, in turns; choices that take far
longer than the best in the first round, which only warms up, are left out of the others. The figure is the speed of the
defaults divided by that of the best of the list. CPU seconds are in the note.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Contender, Figure, Form, Sample, add_form, at_least, finish, interleaved, reported

if TYPE_CHECKING:
    import cedar

_LOOPS = 25_000_000  # iterations of a Python loop per second, about
_HASHED = 1_500_000_000  # bytes that SHA-256 reads per second, about; it releases the GIL
_BUFFER = bytes(64 << 20)
_MANUAL: dict[str, dict[str, Any]] = {
    "inline": {"executor": "inline"},
    "1 thread": {"executor": "threads", "workers": 1},
    "2 threads": {"executor": "threads", "workers": 2},
    "4 threads": {"executor": "threads", "workers": 4},
    "2 processes": {"executor": "processes", "workers": 2},
}
_MUST, _LEAST = 0.97, 0.9  # share of the best: in 22 of 24 pipelines, and in every one
_MAY_MISS = 2
_FAR = 1.5  # a choice that takes so much longer than the best in the first round is not measured further


@dataclass(frozen=True)
class Case:
    """One pipeline.

    Args:
        gil: share of the function's time in which it holds the GIL, 0 to 1.
        size: bytes of a result.
        after: the operators after the function: "batch", "pack", "bucket" or "shuffle".
        seconds: about how long one core works on the run.
        trainer: seconds that the trainer takes for each row, as a share of the function's.
        busy: another program uses one core.
    """

    gil: float
    size: int
    after: str
    seconds: float
    trainer: float = 0.0
    busy: bool = False

    @property
    def name(self) -> str:
        """For the table."""
        size = f"{self.size / 1e6:g} MB" if self.size >= 1e5 else f"{self.size / 1e3:g} kB"
        more = ", slow trainer" * (self.trainer > 0) + ", busy machine" * self.busy
        return f"GIL {self.gil:.0%}, {size}, {self.after}, {self.seconds:g} s{more}"


_KB, _LARGE, _HUGE = 1_000, 600_000, 8_000_000
CASES = (
    *(Case(gil, _KB, after, 10) for gil in (0.0, 0.3, 1.0) for after in ("batch", "pack", "bucket", "shuffle")),
    *(Case(gil, _LARGE, "batch", 10) for gil in (0.0, 0.3, 1.0)),
    *(Case(gil, _HUGE, "batch", 10) for gil in (0.0, 1.0)),
    *(Case(gil, _KB, "batch", 2) for gil in (0.0, 1.0)),
    *(Case(1.0, _KB, after, 60) for after in ("batch", "pack")),
    Case(1.0, _KB, "batch", 10, trainer=2.0),
    Case(1.0, _KB, "pack", 10, busy=True),
    Case(0.0, _LARGE, "shuffle", 10, busy=True),
)


def work(row: int, gil: float, size: int, seconds: float, ragged: bool) -> Any:
    """About ``seconds`` of work, part of it with the GIL; returns uint8[size], or of half to one and a half of it."""
    found = 0
    for i in range(int(_LOOPS * seconds * gil)):
        found += i
    hashlib.sha256(memoryview(_BUFFER)[: int(_HASHED * seconds * (1 - gil))])
    length = size // 2 + row * 7919 % size if ragged else size
    return np.full(length, (found + row) % 251, np.uint8)


def pipeline(case: Case, rows: int) -> cedar.Pipeline:
    """The pipeline of a case."""
    import cedar

    ragged = case.after in ("pack", "bucket")
    fn = partial(work, gil=case.gil, size=case.size, seconds=_row_seconds(case), ragged=ragged)
    p = cedar.from_numpy({"x": np.arange(rows)}).map(fn, "x", into="y")
    few = 32 if case.size < _LARGE else 4
    if case.after == "pack":
        return p.select("y").shuffle(seed=1).pack(4 * case.size, "y").batch(few)
    if case.after == "bucket":
        return p.bucket_by_length("y", [case.size], [few, few])
    return (p.shuffle(seed=1) if case.after == "shuffle" else p).batch(few)


def _row_seconds(case: Case) -> float:
    return 2e-4 if case.size < _LARGE else 2e-3 if case.size < _HUGE else 2e-2


def contender(case: dict[str, Any], options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Runs one epoch of a case; for ``harness.Contender``."""
    chosen = Case(**case)
    rows = max(int(chosen.seconds / _row_seconds(chosen)), 16)
    made = pipeline(chosen, rows)

    def run() -> dict[str, Any]:
        with made.loader(**options) as loader:
            for batch in loader:
                if chosen.trainer:
                    time.sleep(chosen.trainer * _row_seconds(chosen) * len(batch["y"]))
        return {"rows": rows}

    return run


@contextlib.contextmanager
def other_program(runs: bool) -> Iterator[None]:
    """A program that keeps one core busy, if it runs."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if runs else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def measure(case: Case, rounds: int, manual: dict[str, dict[str, Any]]) -> Figure:
    """The share of the best manual choice that the defaults reach, round by round."""
    choices = {"auto": {}, **{name: {"plan": "off", **options} for name, options in manual.items()}}
    with contextlib.ExitStack() as stack:
        stack.enter_context(other_program(case.busy))
        contenders = {
            name: stack.enter_context(Contender("benchmarks.auto_choice:contender", asdict(case), options))
            for name, options in choices.items()
        }
        runs = {name: each.run for name, each in contenders.items()}
        first: dict[str, list[Sample]] = interleaved(runs, 1, warm_up=0)
        limit = _FAR * min(first[name][0].wall for name in manual)
        manual = {name: options for name, options in manual.items() if first[name][0].wall <= limit}
        took: dict[str, list[Sample]] = interleaved({n: runs[n] for n in ("auto", *manual)}, rounds, warm_up=0)
    best = min(manual, key=lambda name: sum(sample.wall for sample in took[name]))
    shares = [least.wall / auto.wall for least, auto in zip(took[best], took["auto"], strict=True)]
    cpu = sum(sample.cpu for sample in took["auto"]) / sum(sample.cpu for sample in took[best])
    return at_least(case.name, _LEAST, shares, "x", note=f"best: {best}; {cpu:.2f} of its CPU seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/auto_choice.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto_choice", description=main.__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names contain it")
    add_form(parser, quick="runs of a fifth of the length, one round")
    chosen = parser.parse_args(arguments)
    form: Form = chosen.form
    cases = [case for case in CASES if chosen.only in case.name][: form.pick(None, None, 1)]
    manual = dict(list(_MANUAL.items())[: form.pick(None, None, 1)])
    figures = []
    for case in cases:
        shorter = case.seconds / form.pick(1, 5, 50)
        figures.append(measure(Case(**{**asdict(case), "seconds": shorter}), form.pick(3, 1), manual))
        print(figures[-1].what, f"{figures[-1].measured:.2f}", figures[-1].note, flush=True)
    reached = sum(figure.measured >= _MUST for figure in figures)
    what = f"pipelines that reach {_MUST} of the best manual choice"
    if len(cases) == len(CASES):
        figures.append(at_least(what, len(CASES) - _MAY_MISS, [reached], f"of {len(CASES)}"))
    else:
        figures.append(reported(what, [reached], f"of {len(cases)}"))
    return finish("The choice of executors", "auto_choice", figures, form)


if __name__ == "__main__":
    sys.exit(main())
