"""The report of a run, as text and as a page."""

from dataclasses import replace

import cedar


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
