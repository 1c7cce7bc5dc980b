"""Pixels to channels and back: bytes and floats, side by side or apart, in stretches."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.image.normalize import ToFloat
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.pixels_kernels import CHUNK
from cedar.operators.image.solarize import Autocontrast, Solarize


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("first", [True, False])
def test_every_value_comes_out_at_its_place(channels, first):
    width = CHUNK // 2 + 5  # stretches end within a row
    image = np.random.default_rng(channels).integers(0, 256, (3, width, channels), dtype=np.uint8)
    for end, wanted in (([], 255 - image), ([ToFloat()], (255 - image).astype(np.float32) * np.float32(1 / 255))):
        (made,) = compile_pixels([Solarize(-1, p=1.0), *end], channels_first=first).run(image[None], [None, None])
        assert np.array_equal(made.transpose(1, 2, 0) if first else made, wanted)


def test_what_is_kept_between_sweeps_comes_back():
    image = np.random.default_rng(0).integers(0, 256, (4, CHUNK, 3), dtype=np.uint8)
    image[0, :2] = [[0] * 3, [255] * 3]  # nothing is left to stretch
    steps = [Solarize(-1, p=1.0), Autocontrast(p=1.0), Solarize(-1, p=1.0)]
    assert np.array_equal(compile_pixels(steps).run(image[None], [None] * 3)[0], image)
