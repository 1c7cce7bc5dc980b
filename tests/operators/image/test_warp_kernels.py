"""The kernels that look around in an image, on their own: what they write, and where."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image.warp_kernels import sharpen_plane, warp_planes


def test_only_the_channels_and_pixels_of_the_image_are_written():
    planes = np.arange(40, dtype=np.uint8).reshape(4, 10).copy()
    kept = planes.copy()
    mirror = np.array([-1, 0, 3, 0, 1, 0, 0, 0, 9, 9, 9, 9], dtype=np.float32)
    warp_planes(planes, 2, 2, 3, mirror, 0)
    assert np.array_equal(planes[:2, :6].reshape(2, 2, 3), kept[:2, :6].reshape(2, 2, 3)[:, :, ::-1])
    assert np.array_equal(planes[2:], kept[2:])
    assert np.array_equal(planes[:, 6:], kept[:, 6:])


def test_places_that_are_no_numbers_are_filled():
    planes = np.ones((1, 4), dtype=np.uint8)
    nowhere = np.array([1, 0, 0, 0, 1, 0, -2, 0, 7, 7, 7, 7], dtype=np.float32)  # divided by 0 in the first column
    for mode in (0, 1, 2):
        warp_planes(planes, 1, 2, 2, nowhere, mode)
        assert (planes == 7).all()


def test_the_border_is_not_sharpened():
    plane = np.random.default_rng(0).integers(0, 256, (6, 7), dtype=np.uint8)
    kept = plane.copy()
    sharpen_plane(plane, np.float32(-3))
    assert not np.array_equal(plane, kept)
    plane[1:-1, 1:-1] = kept[1:-1, 1:-1]
    assert np.array_equal(plane, kept)
