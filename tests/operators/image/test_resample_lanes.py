"""Resizing at sizes around those that are worked on at once: 32 bytes of a line, four rows, six inputs written out."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image import resample_plain
from cedar.operators.image.resample_kernels import resize


def both(image, shape):
    """An image at another size, as the compiled way and as NumPy make it."""
    height, width, channels = image.shape
    ends = np.float32([0, height, 0, width])
    fast, plain = np.empty((*shape, channels), np.uint8), np.empty((*shape, channels), np.uint8)
    lines = np.zeros((height, width * channels + 4), np.uint8)
    lines[:, :-4] = image.reshape(height, -1)
    start, stride = lines.ctypes.data, lines.strides[0]
    resize(start, stride, image.shape, *ends, True, False, fast.reshape(shape[0], -1))
    resample_plain.resize(image, tuple(ends), plain, True, False)
    return fast, plain


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_any_number_of_inputs_is_summed(channels):
    for factor in (1, 2, 3, 4, 9):  # twice as many inputs, and one more
        image = np.random.default_rng(factor).integers(0, 256, (7 * factor, 11 * factor, channels), dtype=np.uint8)
        fast, plain = both(image, (7, 11))
        assert np.array_equal(fast, plain), factor


@pytest.mark.parametrize("columns", [1, 10, 11, 31, 32, 33, 65])
def test_lines_of_any_length_are_summed_whole(columns):
    for height in (1, 3, 4, 5, 8):
        image = np.random.default_rng(height).integers(0, 256, (height, 20, 3), dtype=np.uint8)
        fast, plain = both(image, (6, columns))
        assert np.array_equal(fast, plain), height


def test_white_stays_white():
    fast, _ = both(np.full((23, 29, 3), 255, np.uint8), (10, 40))
    assert (fast == 255).all()
