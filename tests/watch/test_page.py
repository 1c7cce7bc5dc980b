"""A report as HTML, which needs nothing from a network."""

from __future__ import annotations

from cedar.watch import observers
from tests.watch.toy_runs import numbers


def test_a_report_is_one_page_without_links(tmp_path, monkeypatch):
    monkeypatch.setattr(observers, "_LOOK", 0.0)
    with numbers().loader(on_metrics=lambda figures: None, executor="threads") as loader:
        list(loader)
        report = loader.report()
        assert "map(add_one)" in loader._repr_html_()
    report.html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 2  # the operators, and what was over time
    assert page.count("map(add_one)") >= 3
    links = [word for word in page.split('"') if word.startswith(("http:", "https:"))]
    assert set(links) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in page
