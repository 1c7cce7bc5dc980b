"""The figures of the optimizer, side by side with what they should reach: ``python -m benchmarks.optimizer``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Figure
    from benchmarks.optimizer_runs import Scale

_FEW = ("map_then_filter", "cached")  # of the tiny form: together they are in every part
_PARTS = ("digests", "whole", "short", "first", "predicted", "epochs", "orders")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/optimizer.json; 1 if a target was missed."""
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness
    from benchmarks.optimizer_runs import Scale
    from benchmarks.suite.cases import CASES

    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_form(parser, "jobs of a second, one round, fewer checks")
    parser.add_argument("--only", nargs="+", choices=_PARTS, metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--name", default="optimizer", help="of the file in benchmarks/out")
    options = parser.parse_args(arguments)
    scale = Scale(options.form, tuple(CASES[name] for name in options.cases or options.form.pick(CASES, CASES, _FEW)))
    # Quick runs have one size, that of a job of a second.
    parts = options.only or tuple(part for part in _PARTS if not (options.form and part == "short"))
    figures: list[Figure] = []
    for part in parts:
        start = time.perf_counter()
        figures += _measure(part)(scale)
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return harness.finish("optimizer", options.name, figures, options.form)


def _measure(part: str) -> Callable[[Scale], list[Figure]]:
    from benchmarks import optimizer_digests, optimizer_orders, optimizer_suite

    for module in (optimizer_suite, optimizer_orders, optimizer_digests):
        if hasattr(module, part):
            found: Callable[[Scale], list[Figure]] = getattr(module, part)
            return found
    raise KeyError(part)


if __name__ == "__main__":
    sys.exit(main())
