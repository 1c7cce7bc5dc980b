"""The figures of the mixture-of-experts trainer: ``python -m benchmarks.moe [--form] [--only language --minutes 30]``.

It may be stopped at any time: parts that were measured, and language models that were trained, are not done again.
Without a GPU there is no latency to tell of: processes of one machine share its cores. Bytes, exactness and survival do
not depend on that.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from benchmarks import kept, moe_exact, moe_language

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
    kept.add_arguments(parser, list(_PARTS), "moe")
    parser.add_argument("--text", help="what the language model reads (default: Python's own sources)")
    parser.add_argument("--target", type=float, default=moe_language.TARGET, help="loss, in nats per byte, to reach")
    parser.add_argument("--jobs", type=int, default=1, help="language models that are trained at once (default: 1)")
    options = kept.parsed(parser, arguments)
    language = partial(
        moe_language.figures, text=options.text, jobs=options.jobs, target=options.target, minutes=options.minutes,
        fresh=options.fresh,
    )  # fmt: skip
    parts = {name: partial(part, options.form) for name, part in (_PARTS | {"language": language}).items()}
    return kept.measure("moe", options.name, parts, options.only, form=options.form, fresh=options.fresh)


if __name__ == "__main__":
    sys.exit(main())
