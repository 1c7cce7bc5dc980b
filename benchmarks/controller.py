"""The controller against the best plan in hindsight, on simulated machines: ``python -m benchmarks.controller``.

Regret is what a run takes more than it would have under the best fixed plan, as a share of that plan's time. One window
of the plan as written is not counted, since no plan can change before its end, nor is a quarter of a second, for which
nothing is looked for; the same is printed without that quarter.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

_LENGTHS = (1.0, 10.0, 100.0)  # seconds: by how long the best plan takes


def main(arguments: list[str] | None = None) -> int:
    """Replay runs, print a table, write benchmarks/out/controller.json; 1 if a target was missed."""
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness
    from benchmarks.controller_simulation import regret, traces
    from cedar.control.controller import ControllerSettings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=2000, help="how many runs are simulated (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the traces (%(default)s)")
    options = parser.parse_args(arguments)
    began, least = time.process_time(), ControllerSettings().least_gain
    found = [regret(trace) for trace in traces(options.traces, options.seed)]
    took = time.process_time() - began
    beyond = sorted(each.beyond(each.window + least) for each in found)
    strict = sorted(each.beyond(each.window) for each in found)
    slower, first = sorted(each.slower for each in found), sorted(each.first / each.best for each in found)
    figures = [
        harness.at_most("regret of 95% of traces", 0.03, [_at(beyond, 0.95)], "share", how="simulated"),
        harness.at_most("regret of any trace", 0.1, beyond[-1:], "share", how="simulated"),
        harness.at_least("traces within 3%", 0.95, [sum(e <= 0.03 for e in beyond) / len(beyond)], "", how="simulated"),
        harness.at_most("slower than as written, of 99%", 0.03, [_at(slower, 0.99)], "share", how="simulated"),
        harness.reported("regret of 95%, a quarter second counted", [_at(strict, 0.95)], "share", how="simulated"),
        harness.reported("regret of the plan as written, of 95%", [_at(first, 0.95)], "share", how="simulated"),
        harness.reported("CPU time of it all", [took], "s"),
    ]
    for low, high in zip((0.0, *_LENGTHS), (*_LENGTHS, math.inf), strict=True):
        some = sorted(each.beyond(each.window + least) for each in found if low <= each.best < high)
        if some:
            what = f"regret of 95% of the {len(some)} that last {low:g} to {high:g} s"
            figures.append(harness.reported(what, [_at(some, 0.95)], "share", how="simulated"))
    harness.show(f"controller, {options.traces} traces", figures)
    print(harness.write("controller", figures))
    return int(any(figure.met is False for figure in figures))


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


if __name__ == "__main__":
    sys.exit(main())
