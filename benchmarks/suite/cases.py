"""The pipelines of the suite."""

from __future__ import annotations

from benchmarks.suite.case import Case

_ALL = (
    Case("simclr", "images, user functions with declared algebra", 2_500, 500, 40, permuted=True),
    Case("ssd", "images with boxes", 4_500, 900, 48),
    Case("text", "text", 150_000, 30_000, 600, permuted=True),
    Case("audio", "audio", 8_000, 2_000, 60),
    Case("recommend", "a click log", 1_500_000, 350_000, 3000),
    Case("filter_last", "a filter after expensive maps", 30_000, 6_000, 800, pushes=True),
    Case("wide", "3 of 120 columns", 3_000_000, 600_000, 20_000, pushes=True),
    Case(
        "map_then_filter",
        "an expensive map before a selective filter",
        500_000,
        100_000,
        2000,
        pushes=True,
        permuted=True,
    ),
    Case("inflate", "a cheap inflating map before an expensive shrinking one", 350_000, 75_000, 2000),
    Case("python_map", "a pure-Python map", 600_000, 120_000, 600),
    Case("c_gil", "a C function that holds the GIL", 60_000, 14_000, 120),
    Case("slow_source", "a slow source", 80_000, 20_000, 2500),
    Case("slow_consumer", "a slow consumer", 80_000, 20_000, 2000, pause=0.01),
    Case("random_middle", "a random operator in the middle", 60_000, 15_000, 300),
    Case("diamond", "a diamond", 18_000, 3_600, 150),
    Case("best_already", "nothing to improve", 5_000, 1_000, 70),
    Case("sorted_column", "a predicate on a sorted Parquet column", 4_000_000, 1_000_000, 20_000, pushes=True),
    Case("bad_filters", "filters in a bad order", 600_000, 130_000, 3000, permuted=True),
    Case("cached", "an expensive deterministic part, kept", 30_000, 7_000, 200, kept=True),
)

CASES = {case.name: case for case in _ALL}
