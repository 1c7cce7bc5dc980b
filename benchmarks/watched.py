"""What it costs to watch a run in every way there is, against none: ``python -m benchmarks.watched``.

Images (simclr) and a click log (recommend) of the optimizer's suite, two epochs of some seconds, in turns; and batches
of 16 numbers, for what a batch costs. CPU seconds stand next to wall time: they say more where others share the
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SMALL, _BATCHES = 16, 20_000
_CASES = {"simclr": ("images", 1.01), "recommend": ("click log", 1.02)}


def options(folder: str) -> dict[str, Any]:
    """Of a loader that is watched in every way."""
    return {
        "progress": True, "trace": f"{folder}/run.json", "serve": "127.0.0.1:0", "on_metrics": lambda _: None,
    }  # fmt: skip


def contender(name: str, rows: int, watched: bool) -> Callable[[], dict[str, Any]]:
    """Two epochs of a case, for ``harness.Contender``; the metrics are scraped after each."""
    from benchmarks.harness import OUT
    from benchmarks.suite.cases import CASES

    case = CASES[name]
    pipeline = case.make(case.data(OUT / "data", rows), rows)

    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            given = options(folder) if watched else {}
            with pipeline.loader(workers=2, executor="threads", plan="off", **given) as loader:
                for _ in range(2):
                    for _ in loader:
                        pass
                    if loader.url is not None:
                        with urllib.request.urlopen(loader.url.replace("/status", "/metrics")) as answer:
                            answer.read()
        return {}

    return run


def small(watched: bool) -> Callable[[], dict[str, Any]]:
    """Small batches, of which an epoch takes about a second; the loop alone."""
    import cedar

    pipeline = cedar.from_items([{"x": i} for i in range(_SMALL * _BATCHES)]).batch(_SMALL)

    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            given = options(folder) if watched else {}
            with pipeline.loader(executor="inline", plan="off", **given) as loader:
                batches = iter(loader)
                next(batches)
                began = time.process_time()
                for _ in range(_BATCHES - 2):
                    next(batches)
                return {"batch": (time.process_time() - began) / (_BATCHES - 2) * 1e6}

    return run


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/watched.json; 1 if a target was missed."""
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness
    from benchmarks.suite.cases import CASES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of all contenders in turns (%(default)s)")
    chosen = parser.parse_args(arguments)
    figures = []
    for name, (what, limit) in _CASES.items():
        rows = CASES[name].rows
        CASES[name].data(harness.OUT / "data", rows)  # before both want to write it
        pair = {w: harness.Contender("benchmarks.watched:contender", name, rows, w) for w in (False, True)}
        with contextlib.ExitStack() as stack:
            for each in pair.values():
                stack.enter_context(each)
            took = harness.interleaved({str(w): each.run for w, each in pair.items()}, chosen.rounds)
        cpu = harness.ratios([s.cpu for s in took["True"]], [s.cpu for s in took["False"]])
        wall = harness.ratios([s.wall for s in took["True"]], [s.wall for s in took["False"]])
        figures.append(harness.at_most(f"{what}: CPU seconds, watched over not", limit, cpu, "x"))
        figures.append(harness.reported(f"{what}: wall time, watched over not", wall, "x"))
    pair = {w: harness.Contender("benchmarks.watched:small", w) for w in (False, True)}
    with contextlib.ExitStack() as stack:
        for each in pair.values():
            stack.enter_context(each)
        took = harness.interleaved({str(w): each.run for w, each in pair.items()}, chosen.rounds)
    more = [a.result["batch"] - b.result["batch"] for a, b in zip(took["True"], took["False"], strict=True)]
    note = f"{statistics.median(s.result['batch'] for s in took['False']):.0f} us without"
    figures.append(harness.at_most("a batch of 16 rows: CPU more", 5, more, "us", note=note))
    harness.show("watched", figures)
    print(json.dumps([figure.what for figure in figures if figure.met is False]))
    print(harness.write("watched", figures))
    return int(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
