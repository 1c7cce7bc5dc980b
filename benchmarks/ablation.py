"""What each part of the optimizer is worth: parallelism, reordering, offloading, fusion and caching, added one by one.

    python -m benchmarks.ablation [--form] [--only simclr text audio recommend]

Two epochs of a pipeline over images, text, audio and a click log, in a fresh process each, in turns. Kernels that
follow each other on a block are one task in every row, the first one too: that is how a plan as written runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Figure, add_form, finish, interleaved, ratios, reported
from benchmarks.optimizer_run import WORKERS
from benchmarks.optimizer_runs import Scale, each, fresh, walls
from benchmarks.suite.case import Case
from benchmarks.suite.cases import CASES

NAMES = ("simclr", "text", "audio", "recommend")
STEPS: dict[str, tuple[str, ...]] = {
    "parallelism": (),
    "reorder": ("push_filter", "limit", "late", "dedup_place", "order"),
    "offload": ("scan_filter", "scan_columns", "place"),
    "fusion": ("group_expressions", "common", "dead_results", "dead_columns", "inexact"),
    "caching": ("cache_place",),
}


def levels() -> dict[str, dict[str, Any]]:
    """What the loader is given, from nothing to all."""
    left = [name for names in STEPS.values() for name in names]
    found: dict[str, dict[str, Any]] = {
        "as written": {"workers": 1, "executor": "threads", "without": list(left)},
    }
    for step, names in STEPS.items():
        left = [name for name in left if name not in names]
        found[step] = {
            "workers": WORKERS,
            "executor": "auto" if "place" not in left else "threads",
            "without": list(left),
            "cache": "1GiB" if step == "caching" else None,
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/ablation.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=main.__doc__)
    add_form(parser, "runs of a second, once")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    chosen = parser.parse_args(arguments)
    scale = Scale(chosen.form, tuple(CASES[name] for name in chosen.only or chosen.form.pick(NAMES, NAMES, NAMES[1:2])))

    def measure(case: Case) -> list[Figure]:
        runs = {
            name: lambda options=options: fresh("ablated", case, scale.rows(case), options)
            for name, options in levels().items()
        }
        found = {name: walls(samples) for name, samples in interleaved(runs, scale.rounds(3), warm_up=0).items()}
        base = found.pop("as written")
        return [
            reported(
                f"{case.name}, with {name}", ratios(base, seconds), "x", note="of two epochs as written, one worker"
            )
            for name, seconds in found.items()
        ]

    figures = each(scale, measure, "ablation")
    return finish("Ablation", "ablation", figures, chosen.form)


if __name__ == "__main__":
    raise SystemExit(main())
