"""A report as HTML, which needs nothing from a network."""

from __future__ import annotations

import re
from dataclasses import replace

from cedar.control.timeline import Line
from cedar.watch import observers, page
from tests.watch.toy_runs import numbers


def test_a_report_is_one_page_without_links(tmp_path, monkeypatch):
    monkeypatch.setattr(observers, "_UPDATE_SECONDS", 0.0)
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


def test_the_picture_shares_out_all_work_also_what_belongs_to_no_operator():
    with numbers().loader(executor="inline", plan="off") as loader:
        list(loader)
        report = loader.report()
    spent = {"importing libraries": 6.0, "gathering rows": 1.0, "map(add_one)": 3.0, "idle": 9.0}
    lines = tuple(Line(label, seconds) for label, seconds in spent.items())
    operators = dict.fromkeys(report.operators, 0.0) | {"map(add_one)": 3.0}
    shown = page.view(replace(report, workers_time=lines, operators=operators, bottleneck="importing libraries"))
    shares = dict(re.findall(r">([^<]*?) +([0-9]+)%<", shown.partition("</figure>")[0]))
    assert shares["importing libraries and 1 more (no operators)"] == "70"
    assert shares["map(add_one)"] == "30"
    assert sum(map(int, shares.values())) == 100
    assert "10.00 s in which workers worked" in shown
    assert "epoch 1, step 0" in shown  # as in the state: the epoch is over
    assert loader.state_dict()["epoch"] == report.epoch == 1
