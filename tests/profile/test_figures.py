"""Figures of operators: medians over rows, and what a row is worth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.profile import OperatorProfile, Profile
from cedar.profile.figures import cores_kept, lock_share
from tests.profile.toy_figures import HERE, call, profile


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


@given(st.floats(0, 1), st.integers(1, 64))
def test_a_lock_leaves_between_one_and_all(share, workers):
    kept = cores_kept(share, workers)
    assert 1 - 1e-9 <= kept <= workers + 1e-9
    assert kept <= 1 / max(share, 1e-9) + 1e-6
    assert kept <= cores_kept(share, workers + 1) + 1e-9
    assert kept >= cores_kept(min(1.0, share + 0.05), workers) - 1e-9


@given(st.floats(0.05, 1), st.integers(2, 16))
def test_the_share_is_found_again(share, workers):
    kept = cores_kept(share, workers)
    assert cores_kept(lock_share(kept, workers), workers) == pytest.approx(kept, rel=1e-3)


@pytest.mark.parametrize(("share", "workers"), [(0.3, 2), (0.6, 2), (0.5, 4)])
def test_it_is_what_a_simulation_gives(share, workers):
    """Steps of random length, with the lock and without, in turns."""
    draw, work, free = random.Random(1), 0.0, 0.0
    ready = sorted((draw.expovariate(1 / (1 - share)), i) for i in range(workers))
    for _ in range(40_000):
        now, worker = ready.pop(0)
        held, alone = draw.expovariate(1 / share), draw.expovariate(1 / (1 - share))
        free = max(now, free) + held
        work += held + alone
        ready.append((free + alone, worker))
        ready.sort()
    assert work / free == pytest.approx(cores_kept(share, workers), rel=0.03)


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
