"""The blur of a channel: the sum of its weights, its borders, and how near it is to the exact sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.image.gaussian_blur import GaussianBlur
from tests.operators.image import pixels_oracle as oracle


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


def test_a_flat_image_stays():
    image = np.full((12, 13, 3), 255, dtype=np.uint8)
    assert np.array_equal(GaussianBlur(23, 2.0)(image), image)
