"""Is plan="auto" ever slower than plan="off", and does it gain what it can: ``python -m benchmarks.never_worse``.

Two pipelines over rows in memory, in runs of three epochs that take from 0.2 to 20 s as written: one opaque function,
for which nothing can be done; and a costly function in front of a cheap filter, whose best order is written manually,
too. The contenders run in turns; a ratio is that of the wall times of a round, CPU seconds stand next to it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cedar

_SECONDS = (0.2, 1.0, 5.0, 20.0)  # that a run takes as written, about
_ROUNDS = 60  # of the function's loop: about 3 us of work
_EACH = 8e-6  # seconds a row, about
_EPOCHS = 3
_KEPT = 4  # one row in so many


def costly(x: int) -> int:
    """Holds the GIL for some microseconds."""
    found = 0
    for i in range(_ROUNDS):
        found += i * x % 7
    return found


def kept(x: int) -> bool:
    """Cheap, and few rows pass."""
    return x % _KEPT == 0


def opaque(rows: int) -> cedar.Pipeline:
    """One function."""
    import cedar

    return cedar.from_items([{"x": i} for i in range(rows)]).map(costly, "x", into="y", dtype=int).batch(64)


def late(rows: int) -> cedar.Pipeline:
    """The function before the filter."""
    import cedar

    p = cedar.from_items([{"x": i} for i in range(rows)])
    return p.map(costly, "x", into="y", dtype=int).filter(kept, "x").batch(64)


def early(rows: int) -> cedar.Pipeline:
    """The best order of ``late``."""
    import cedar

    p = cedar.from_items([{"x": i} for i in range(rows)])
    return p.filter(kept, "x").map(costly, "x", into="y", dtype=int).batch(64)


def contender(name: str, plan: Any, rows: int) -> Callable[[], dict[str, Any]]:
    """Runs the epochs of one pipeline; for ``harness.Contender``."""
    pipeline = {"opaque": opaque, "late": late, "early": early}[name](rows)

    def run() -> dict[str, Any]:
        found = 0
        with pipeline.loader(plan=plan) as loader:
            for _ in range(_EPOCHS):
                found += sum(len(batch["y"]) for batch in loader)
        return {"rows": found}

    return run


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/never_worse.json; 1 if a target was missed."""
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of all contenders in turns (%(default)s)")
    parser.add_argument("--seconds", type=float, nargs="+", default=_SECONDS, help="of a run as written")
    options = parser.parse_args(arguments)
    figures = []
    for seconds in options.seconds:
        rows = int(seconds / _EACH / _EPOCHS)
        target = "benchmarks.never_worse:contender"
        runs = [("opaque", "off"), ("opaque", "auto"), ("late", "off"), ("late", "auto"), ("early", "off")]
        contenders = {" ".join(run): harness.Contender(target, *run, rows) for run in runs}
        with contextlib.ExitStack() as stack:
            for each in contenders.values():
                stack.enter_context(each)
            took = harness.interleaved({name: each.run for name, each in contenders.items()}, options.rounds)
        walls = {name: [sample.wall for sample in samples] for name, samples in took.items()}
        for pipeline in ("opaque", "late"):
            off, auto = took[f"{pipeline} off"], took[f"{pipeline} auto"]
            ratios = harness.ratios(walls[f"{pipeline} off"], walls[f"{pipeline} auto"])
            cpu = sum(each.cpu for each in auto) / sum(each.cpu for each in off)
            what = f"{pipeline}, {seconds:g} s: speed of auto over off"
            figures.append(harness.at_least(what, 0.97, ratios, "x", note=f"{cpu:.2f} of the CPU seconds"))
        shares = harness.ratios(walls["early off"], walls["late auto"])
        what = f"late, {seconds:g} s: share of the best order's speed"
        if seconds >= 1:
            figures.append(harness.at_least(what, 0.8, shares, "x"))
        else:
            figures.append(harness.reported(what, shares, "x"))
    harness.show("never worse", figures)
    print(harness.write("never_worse", figures))
    return int(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
