"""The figures of the mixture-of-experts trainer: ``python -m benchmarks.moe [--quick]``.

Without a GPU there is no latency to tell of: processes of one machine share its cores. Bytes, exactness and survival do
not depend on that.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from benchmarks import harness, moe_exact, moe_language
from benchmarks.harness import Figure

_PARTS = {
    "oracle": moe_exact.against_oracle,
    "placement": moe_exact.placement,
    "bytes": moe_exact.byte_counts,
    "sparse": moe_exact.sparse_checkpoints,
    "lost": moe_exact.loss_of_a_rank,
    "language": moe_language.figures,
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/moe.json; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few ranks, steps and seeds: minutes")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--text", help="what the language model reads (default: Python's own sources)")
    parser.add_argument("--target", type=float, default=moe_language.TARGET, help="loss, in nats per byte, to reach")
    parser.add_argument("--jobs", type=int, default=1, help="language models that are trained at once (default: 1)")
    parser.add_argument("--name", default="moe", help="of the file in benchmarks/out")
    options = parser.parse_args(arguments)
    parts = _PARTS | {
        "language": partial(moe_language.figures, text=options.text, jobs=options.jobs, target=options.target)
    }
    figures: list[Figure] = []
    for name in options.only:
        start = time.perf_counter()
        figures += parts[name](options.quick)
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    harness.show("moe" + (" (quick)" if options.quick else ""), figures)
    print(harness.write(options.name, figures))
    return int(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
