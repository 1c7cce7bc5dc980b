"""What a loader tells of itself: its length, and what it did."""

from __future__ import annotations

import pytest

import cedar
from tests.engine.delivery.few_rows import rows
from tests.engine.failing import fails_on


def test_rows_that_may_be_skipped_have_no_length():
    loader = cedar.from_items([{"x": i} for i in range(5)]).map(fails_on(1), "x", on_error=cedar.Skip()).loader()
    with pytest.raises(TypeError):
        len(loader)
    with pytest.raises(cedar.PipelineError, match="use batch"):
        loader.read(0)


def test_length_is_exact_where_metadata_and_operators_allow() -> None:
    assert len(rows().loader()) == 20
    assert len(rows().batch(6).loader()) == 4
    assert len(rows().batch(6, last="keep").loader()) == 4
    assert [len(rows().batch(2, last="keep").loader(rank=r, world=3)) for r in range(3)] == [4, 3, 3]
    assert [len(rows().batch(2).loader(rank=r, world=3)) for r in range(3)] == [3, 3, 3]
    assert [len(rows().batch(2, last="pad").loader(rank=r, world=3)) for r in range(3)] == [4, 4, 4]
    assert len(rows().batch(6).loader(rank=1, world=3, split_batches=True)) == 3
    assert len(rows().map(str, "x").with_columns(y=cedar.col("x")).repeat(2).take(33).loader()) == 33
    assert len(rows().filter(cedar.col("x") > 3).batch(2).loader(steps=7)) == 7
    for p in (rows().shuffle().repeat(2).batch(3, last="keep"), rows().skip(3), cedar.concat(rows(), rows(3))):
        for world in (1, 2):
            for rank in range(world):
                loader = p.loader(rank=rank, world=world)
                assert len(loader) == len(list(loader))


def test_length_is_a_type_error_where_only_a_run_can_tell() -> None:
    for p in (rows().filter(cedar.col("x") > 3), rows().flat_map(range, "x"), rows().repeat()):
        with pytest.raises(TypeError, match="steps="):
            len(p.loader())
    with pytest.raises(TypeError):
        len(rows().map(str, "x", on_error=cedar.Skip(refill=True)).batch(2).loader())


def test_the_report_counts_what_was_done() -> None:
    p = rows(40).map(lambda x: x + 1, "x").filter(cedar.col("x") > 20).batch(4, last="keep")
    loader = p.loader(executor="threads", workers=2)
    list(loader)
    report = loader.report()
    assert (report.rows, report.batches, report.epoch, report.rows_read) == (20, 5, 1, 40)
    assert (report.rank, report.world, report.rank_from) == (0, 1, "default")
    assert (report.executor, report.workers, report.restarts) == ("threads", 2, 0)
    assert 0 <= report.stall <= 1
    assert report.rows_per_second > 0
    assert any("map(" in name for name in report.operators)
    assert "rows/s" in str(report)
    assert "20" in str(report)
