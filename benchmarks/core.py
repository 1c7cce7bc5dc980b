"""The figures of the core, side by side with what they should reach: ``python benchmarks/core.py [--form]``."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

_PARTS = ("start", "overhead", "threads", "state", "ranks", "parquet", "memory")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/core.json; 1 if a target was missed."""
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness

    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_form(parser, "smaller inputs and fewer rounds: under a minute")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--name", default="core", help="of the file in benchmarks/out")
    options = parser.parse_args(arguments)
    figures = []
    for part in options.only:
        start = time.perf_counter()
        figures += importlib.import_module(f"benchmarks.core_{part}").measure(options.form)
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return harness.finish("core", options.name, figures, options.form)


if __name__ == "__main__":
    sys.exit(main())
