"""The report of a run, as text and as a page."""

from dataclasses import replace

import cedar
from tests.engine.delivery.few_rows import rows as few_rows


def test_a_report_says_what_was_dropped_and_who_died(tmp_path):
    def checked(item: int) -> int:
        if item == 3:
            raise ValueError("bad")
        return item

    rows = cedar.from_items([{"x": i} for i in range(9)]).map(checked, "x")
    loader = rows.loader(executor="inline", on_error=cedar.Skip())
    assert len(list(loader)) == 8
    report = loader.report()
    assert report.rows == 8
    assert "skipped 1 row(s) in map(checked)" in str(report)
    many = replace(report, deaths=tuple(f"worker {i}" for i in range(23)))
    assert "worker 19" in str(many)
    assert "worker 20" not in str(many)
    assert "and 3 more" in str(many)
    many.html(tmp_path / "report.html")
    assert "map(checked)" in (tmp_path / "report.html").read_text()


def test_the_report_counts_what_was_done() -> None:
    p = few_rows(40).map(lambda x: x + 1, "x").filter(cedar.col("x") > 20).batch(4, last="keep")
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
