"""The figures of ranks_share, with few rows: what the busiest of 8 ranks reads over its share."""

from __future__ import annotations

import pytest

from benchmarks.ranks_share import BARS, CASES, measure


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("filter_expression", "text", "csv_zst")])
def test_the_busiest_rank_reads_little_more_than_its_share(name: str) -> None:
    files, make = CASES[name]
    busiest, _ = measure(make, 6400)
    assert busiest <= BARS[files]
