"""The figures of the core, side by side with what they should reach: ``python benchmarks/core.py [--quick]``."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

_PARTS = ("start", "overhead", "threads", "state", "ranks", "parquet", "memory")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/core.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller inputs and fewer rounds: under a minute")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--name", default="core", help="of the file in benchmarks/out")
    options = parser.parse_args(arguments)
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness

    figures = []
    for part in options.only:
        start = time.perf_counter()
        figures += importlib.import_module(f"benchmarks.core_{part}").measure(options.quick)
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    harness.show("core" + (" (quick)" if options.quick else ""), figures)
    print(harness.write(options.name, figures))
    return int(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
