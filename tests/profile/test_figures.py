"""Figures of operators: medians over rows, and what a row is worth."""

from __future__ import annotations

import pytest

from cedar.profile import OperatorProfile
from tests.profile.toy_figures import call


def test_a_first_call_that_loads_a_model_does_not_count():
    figures = OperatorProfile.of("map(f)", [call(100, 9.0), call(100, 0.1), call(100, 0.1), call(100, 0.1)])
    assert figures.wall == pytest.approx(0.001)
    assert (figures.calls, figures.rows) == (4, 400)


def test_large_blocks_count_for_more_than_small_ones():
    small = [call(1, 0.01)] * 5
    figures = OperatorProfile.of("map(f)", [*small, call(1000, 0.1), call(1000, 0.1)])
    assert figures.wall == pytest.approx(1e-4)


def test_what_is_kept_and_sizes_are_per_row():
    figures = OperatorProfile.of("filter", [call(100, 0.1, out=20), call(100, 0.1, out=30)])
    assert figures.keep == 0.25
    assert (figures.bytes_in, figures.bytes_out) == (8, 16)
    assert figures.columns == {"x": 8}


def test_calls_without_rows_do_not_count():
    figures = OperatorProfile.of("map(f)", [call(0, 5.0), call(0, 5.0)])
    assert (figures.calls, figures.wall, figures.keep) == (0, 0.0, 1.0)


def test_observations_add_up():
    both = call(10, 1.0, columns={"a": 1}) + call(20, 2.0, columns={"b": 2})
    assert (both.rows_in, both.wall, both.columns) == (30, 3.0, {"a": 1, "b": 2})
