"""Figures as a table of text that fits a screen."""

from __future__ import annotations

from cedar.profile import OperatorProfile, Profile
from tests.profile.toy_figures import HERE, profile


def test_the_table_fits_a_screen_whatever_the_labels_and_figures():
    figures = OperatorProfile(
        "map(" + "f" * 300 + "\n)", 10**6, 10**9, 123.4, 123.4, 0.12345, 123456789.0, 1e11, {}, gil=0.5
    )
    text = profile(1e-9, 1e-3).table() + "\n" + str(Profile("", {0: figures}, HERE, rows=10**12, seconds=1e6))
    assert max(map(len, text.splitlines())) <= 100


def test_the_table_has_a_line_for_each_operator_and_tells_of_the_gil():
    found = profile(1e-6, 9e-6)
    assert [line.split()[0] for line in found.table().splitlines()] == ["operator", "map(f0)", "map(f1)", "1,000"]
    held = Profile("", {0: OperatorProfile("map(f)", 1, 1, 1.0, 1.0, gil=0.8)}, HERE)
    assert "the GIL is held 80% of the time: threads give at most 1.2x" in str(held)
    assert "<pre>" in held._repr_html_()
