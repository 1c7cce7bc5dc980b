"""Slices: of every batch, each rank's part."""

from __future__ import annotations

from cedar import Skip
from tests.engine.delivery.few_rows import in_batches, xs
from tests.engine.delivery.skipped import BAD, failing


def test_slices_of_shuffled_batches_are_of_one_batch():
    for n in (9, 18):
        pipeline = in_batches(n, 4, "keep").shuffle()
        whole = xs(pipeline.loader())
        halves = [xs(pipeline.loader(split_batches=True, rank=rank, world=2)) for rank in range(2)]
        assert [left + right for left, right in zip(*halves, strict=True)] == whole


def test_slices_of_refilled_batches_are_even() -> None:
    p = failing(Skip(refill=True)).batch(4)
    parts = [xs(p.loader(rank=r, world=2, split_batches=True)) for r in range(2)]
    good = [x for x in range(50) if x not in BAD]
    assert [a + b for a, b in zip(*parts, strict=True)] == [good[i : i + 4] for i in range(0, 44, 4)]
    assert {len(b) for part in parts for b in part} == {2}
