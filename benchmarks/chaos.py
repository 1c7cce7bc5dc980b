"""What a loader bears: killed and stopped workers, rows that kill, and resumes: ``python -m benchmarks.chaos``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

_PARTS = ("kills", "dask", "pace", "poison", "stops", "resumes", "soak")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/chaos.json; 1 if a target was missed."""
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness

    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_form(parser, "fewer kills, cases and batches: some minutes")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--name", default="chaos", help="of the file in benchmarks/out")
    options = parser.parse_args(arguments)
    figures: list[Any] = []
    for part in options.only:
        start = time.perf_counter()
        with harness.Contender(f"benchmarks.chaos_parts:{part}", options.form) as child:
            figures += [harness.Figure(**figure) for figure in child.run().result["figures"]]
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return harness.finish("chaos", options.name, figures, options.form)


if __name__ == "__main__":
    sys.exit(main())
