"""gaussian_blur: its weights, and what its rows draw."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.draws import Draws
from cedar.operators.image.gaussian_blur import GaussianBlur, weights
from cedar.operators.image.pixels_steps import BLUR
from tests.operators.image.toy_draws import squares


def test_weights_that_matter():
    found, wide, narrow = weights(23, [1.0, 9.0, 1e-3])
    assert len(found) == 11
    assert abs(found.sum() - 1) < 1e-6
    assert np.array_equal(found, found[::-1])
    assert len(wide) == 23
    assert narrow.tolist() == [1.0]


def test_weights_do_not_depend_on_those_beside_them():
    for size in (1, 5, 23, 199):
        sigmas = np.random.default_rng(size).uniform(0.05, 20, 50)
        for sigma, found in zip(sigmas, weights(size, sigmas), strict=True):
            assert np.array_equal(found, weights(size, [sigma])[0])


def test_sigma_is_uniform_and_p_is_the_share_of_rows():
    draws = Draws(np.random.default_rng(5).integers(0, 1 << 63, 5000).astype(np.uint64))
    steps = GaussianBlur((3, 5), (1.0, 3.0), p=0.25).steps(squares(5000), draws)
    taken = steps.codes[:, 0] == BLUR
    assert abs(taken.mean() - 0.25) < 0.02
    first, second = steps.numbers[taken, 0].astype(int).T
    assert {len(steps.tables[i]) for i in first} == {3}
    assert {len(steps.tables[i]) for i in second} == {5}
    # The middle weight of three tells sigma.
    middles = np.array([steps.tables[i][1] for i in first], dtype=np.float64)
    sigmas = np.sqrt(-1 / (2 * np.log((1 / middles - 1) / 2)))
    assert sigmas.min() >= 0.999
    assert sigmas.max() <= 3.001
    assert abs(sigmas.mean() - 2) < 0.05
