"""Arithmetic that numba has no word for: a product and a sum rounded once, halves to the even number."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image.blur_kernels import blur_plane
from cedar.operators.image.pixels_kernels import step
from cedar.operators.image.pixels_steps import BLEND
from tests.operators.image import pixels_oracle as oracle


def test_a_product_and_a_sum_are_rounded_once():
    values, factor, rest, mean = np.arange(256, dtype=np.float32), np.float32(4 / 3), np.float32(1 - 4 / 3), 255
    planes, nothing = values[None].copy(), np.zeros((4, 2), np.float32)
    step(BLEND, np.array([4 / 3, mean]), planes, 1, 256, nothing, nothing)
    once = oracle.whole(oracle.fma(np.float32(mean), rest, values * factor))
    assert planes[0].tolist() == once.tolist()
    assert (once != oracle.whole(np.float32(mean) * rest + values * factor)).any()  # each rounded, some are others


def test_halves_become_the_even_number():
    plane = np.array([[1, 3, 5, 7, 255]], dtype=np.uint8)
    blur_plane(plane, np.float32([0.5]), np.float32([1]))
    assert plane.tolist() == [[0, 2, 2, 4, 128]]
