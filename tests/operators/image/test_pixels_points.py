"""Compiled operators on single pixels: values that anyone can compute."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image.pixels_kernels import step
from cedar.operators.image.pixels_steps import (
    BRIGHTNESS,
    GRAY,
    GRAY_ONE,
    HUE,
    PERMUTE,
    POSTERIZE,
    SATURATION,
    SOLARIZE,
)

RED, GREEN, BLUE, DIM, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (100, 180, 7), (255, 255, 255)


@pytest.mark.parametrize(
    ("code", "amount", "made"),
    [
        (BRIGHTNESS, 1.5, [RED, GREEN, BLUE, (150, 255, 10), WHITE]),  # no further than white, and rounded down
        (SATURATION, 0.0, [(76,) * 3, (149,) * 3, (29,) * 3, (136,) * 3, (254,) * 3]),
        (SATURATION, 2.0, [RED, GREEN, BLUE, (64, 224, 0), WHITE]),
        (HUE, 1 / 3, [GREEN, BLUE, RED, (7, 100, 180), WHITE]),
        (HUE, -1 / 3, [BLUE, RED, GREEN, (180, 7, 100), WHITE]),
        (GRAY, 0.0, [(76,) * 3, (149,) * 3, (29,) * 3, (136,) * 3, (254,) * 3]),
        (GRAY_ONE, 0.0, [(76,), (149,), (29,), (136,), (254,)]),
        (SOLARIZE, 180.0, [(0, 0, 0)] * 3 + [(100, 75, 7), (0, 0, 0)]),
        (POSTERIZE, 64.0, [(192, 0, 0), (0, 192, 0), (0, 0, 192), (64, 128, 0), (192,) * 3]),
        (PERMUTE, 1 + (2 << 2) + (0 << 4), [BLUE, RED, GREEN, (180, 7, 100), WHITE]),
    ],
)
def test_a_step_on_pixels(code, amount, made):
    pixels = [RED, GREEN, BLUE, DIM, WHITE]
    planes = np.zeros((8, len(pixels)), np.float32)
    planes[:3] = np.transpose(pixels)
    nothing = np.zeros((4, 2), np.float32)
    channels = step(code, np.array([amount, 0.0]), planes, 3, len(pixels), nothing, nothing)
    assert planes[:channels].T.tolist() == [list(pixel) for pixel in made]
