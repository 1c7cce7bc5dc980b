"""Draws: numbers that follow from a row's word alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators.draws import Draws


@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8), k=st.integers(1, 5))
def test_draws_follow_from_a_rows_word_alone(words: list[int], k: int):
    draws = Draws(np.array(words, dtype=np.uint64))
    numbers = draws.uniform(k)
    assert numbers.shape == (len(words), k)
    assert ((numbers >= 0) & (numbers < 1)).all()
    for row in range(len(words)):
        assert (draws.take(np.array([row])).uniform(k) == numbers[row]).all()
    assert (draws.uniform(1, first=k - 1)[:, 0] == numbers[:, -1]).all()
    whole = draws.integers(3, 9, k)
    assert ((whole >= 3) & (whole < 9)).all()


def test_draws_are_even():
    numbers = Draws(np.arange(20_000, dtype=np.uint64)).uniform(3)
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(numbers.T)[0, 1]) < 0.03
