"""Lists that slide: their values are held once, and every row comes back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.recommendation.slices import slices_of, sliding_factor


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=10), st.integers(0, 3))
def test_slices_give_every_row_back(rows, most):
    column = pa.array([[9], *rows], pa.large_list(pa.int64())).slice(1)
    held = slices_of(column, most)
    assert held.plain().to_pylist() == rows
    assert len(held.values) <= sum(map(len, rows))
    assert held.factor >= 1.0


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3), st.integers(1, 4))
def test_histories_that_slide_hold_their_values_once(samples, length, shift, sessions):
    numbers = iter(range(10**6))
    rows = []
    for _ in range(sessions):
        shared = [next(numbers) for _ in range(length + (samples - 1) * shift)]
        rows += [shared[i * shift : i * shift + length] for i in range(samples)]
    held = slices_of(pa.array(rows, pa.large_list(pa.int64())))
    expected = length + (samples - 1) * min(shift, length)  # what slid by more than its length shares nothing
    assert len(held.values) == sessions * expected
    if shift <= length:
        assert held.factor == pytest.approx(sliding_factor(samples, length, shift))


def test_the_expected_factor_at_its_limits():
    assert sliding_factor(16, 50, 0) == 16
    assert sliding_factor(1, 50, 7) == 1
