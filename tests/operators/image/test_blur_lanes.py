"""Blurring at sizes around those that are worked on at once: lines of 32 numbers, four of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image.blur_kernels import blur_plane
from cedar.operators.image.blur_lanes import LANES, ROWS
from tests.operators.image import pixels_oracle as oracle


def test_lines_of_any_length_and_any_number_are_summed_in_order():
    rng = np.random.default_rng(0)
    heights = (1, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 1)
    for height, width in itertools.product(heights, (1, LANES - 1, LANES, LANES + 1, 2 * LANES)):
        plane = rng.integers(0, 256, (height, width), dtype=np.uint8)
        across, down = (rng.random(taps).astype(np.float32) / np.float32(taps) for taps in (7, 5))
        wanted = oracle.blur(plane[:, :, None], across, down)[:, :, 0]
        blur_plane(plane, across, down)
        assert np.array_equal(plane, wanted), (height, width)


def test_each_line_has_its_own_weights():
    plane = np.zeros((9, 40), np.uint8)
    plane[4, 20] = 160
    blur_plane(plane, np.float32([0, 0.25, 0.75]), np.float32([0.5, 0.375, 0.125]))
    made = np.zeros((9, 40), np.uint8)
    made[3:6, 19:21] = [[15, 5], [45, 15], [60, 20]]
    assert np.array_equal(plane, made)
