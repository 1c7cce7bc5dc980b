"""gaussian_blur: its weights, its borders, and how near it is to the exact sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.draws import Draws
from cedar.operators.image.blur import GaussianBlur, weights
from cedar.operators.image.pixels_steps import BLUR
from tests.operators.image import test_pixels_oracle as oracle


@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 4), st.integers(0, 15), st.integers(0, 15),
    st.floats(0.05, 30), st.integers(0, 99),
)  # fmt: skip
def test_is_the_sum_of_its_weights(height, width, channels, across, down, sigma, seed):
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    made = GaussianBlur((2 * across + 1, 2 * down + 1), sigma)(image)
    wanted = oracle.blur(image, oracle.gauss(2 * across + 1, sigma), oracle.gauss(2 * down + 1, sigma))
    assert np.array_equal(made, wanted)


def test_is_within_half_a_level_of_the_exact_sum():
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    for sigma in (0.1, 0.7, 2.0, 5.0):
        x = np.arange(23) - 11
        exact = np.exp(-(x**2) / (2 * sigma**2))
        exact /= exact.sum()
        wide = np.pad(image.astype(np.float64), ((11, 11), (11, 11), (0, 0)), mode="reflect")
        for axis in (0, 1):
            wide = np.apply_along_axis(lambda line, w: np.convolve(line, w, "valid"), axis, wide, exact)
        assert abs(GaussianBlur(23, sigma)(image) - wide).max() <= 0.5001


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


def test_a_flat_image_stays():
    image = np.full((12, 13, 3), 255, dtype=np.uint8)
    assert np.array_equal(GaussianBlur(23, 2.0)(image), image)


def test_sigma_is_uniform_and_p_is_the_share_of_rows():
    draws = Draws(np.random.default_rng(5).integers(0, 1 << 63, 5000).astype(np.uint64))
    steps = GaussianBlur((3, 5), (1.0, 3.0), p=0.25).steps(len(draws), draws)
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
