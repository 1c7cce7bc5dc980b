"""A store over HTTP that fails, side by side with one that does not: ``python -m benchmarks.storage [--form]``."""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from benchmarks.harness import Figure, Form

SHARES = (0.05, 0.1, 0.2, 0.3)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/storage.json; 1 if a target was missed."""
    sys.path[:0] = [] if __package__ else [str(Path(__file__).resolve().parents[1])]
    from benchmarks import harness

    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_form(parser, "fewer rounds and smaller files: under a minute")
    options = parser.parse_args(arguments)
    figures = measure(options.form)
    return harness.finish("storage", "storage", figures, options.form)


def measure(form: Form) -> list[Figure]:
    """At each share of requests that end in 503, 429, a reset or too few bytes: rows, retries, the budget, seconds."""
    from benchmarks.harness import at_least, at_most, reported

    count, rows, rounds = form.pick((24, 20_000, 5), (8, 2_000, 2))
    files = stored(count, rows)
    chosen = form.pick(SHARES, SHARES[::3])
    results: dict[float, list[dict[str, float]]] = {share: [] for share in (0.0, *chosen)}
    for number in range(rounds):
        shares = list(results)
        for share in shares[number % len(shares) :] + shares[: number % len(shares)]:
            results[share].append(run(files, count * rows, share, seed=number))
    figures = []
    sound = [r["seconds"] for r in results[0.0]]
    figures.append(reported("no faults: an epoch", sound, "s"))
    for share in chosen:
        found = results[share]
        what = f"{share:.0%} of requests fail"
        figures += [
            at_least(f"{what}: rows that are right", 1.0, [r["right"] for r in found], "of all"),
            at_most(f"{what}: retries", 1.0, [r["retries"] / r["budget"] for r in found], "of the budget"),
            reported(f"{what}: retries", [r["retries"] / r["first"] for r in found], "per request"),
            reported(f"{what}: an epoch", [r["seconds"] for r in found], "s"),
        ]
    listings = [r["listings"] for each in results.values() for r in each]
    figures.append(at_most("requests that list, of 4 ranks", 1.0, listings, "requests"))
    return figures


def stored(count: int, rows: int) -> dict[str, bytes]:
    """Parquet and JSON lines, ``count`` files of each."""
    files = {}
    for i in range(count):
        numbers = range(i * rows, (i + 1) * rows)
        sink = io.BytesIO()
        pq.write_table(pa.table({"x": numbers, "y": [float(n) for n in numbers]}), sink, row_group_size=rows // 10)
        files[f"parquet/{i:03d}.parquet"] = sink.getvalue()
        files[f"lines/{i:03d}.jsonl"] = b"".join(json.dumps({"x": n}).encode() + b"\n" for n in numbers)
    return files


def run(files: Mapping[str, bytes], rows: int, share: float, seed: int) -> dict[str, float]:
    """An epoch on four ranks, one after the other, from a store that fails at ``share`` of the requests."""
    import cedar
    from cedar.core.requests import FLOOR, SHARE
    from tests.toy_http_store import Store

    with Store(files, share, seed) as store:
        names = sorted(files)
        parquet = cedar.read_parquet(f"{store.url}/parquet/*.parquet").select("x")
        lines = cedar.read_jsonl([f"{store.url}/{name}" for name in names if name.startswith("lines")])
        p = cedar.concat(parquet, lines).batch(100)
        start = time.perf_counter()
        seen: list[int] = []
        asked = again = 0
        for rank in range(4):
            with p.loader(executor="threads", workers=4, rank=rank, world=4) as loader:
                for batch in loader:
                    seen += batch["x"].tolist()
                report = loader.report()
            asked, again = asked + report.requests, again + report.retries
        known = p.loader().report()  # listings and footers, which each report counted again
        asked, again = asked - 3 * known.requests, again - 3 * known.retries
        seconds = time.perf_counter() - start
        right = sorted(seen) == sorted([*range(len(seen) // 2)] * 2) and len(seen) == 2 * rows
        listings = store.served["GET /parquet"]
    first = asked - again
    return {
        "right": float(right), "retries": again, "first": first, "budget": 2 * FLOOR + SHARE * first,
        "seconds": seconds, "listings": listings,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
