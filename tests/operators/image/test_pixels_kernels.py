"""The compiled pass: stretches of an image, and steps that need the whole of it, against plain NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.draws import Draws
from cedar.operators.image.color_jitter import ColorJitter
from cedar.operators.image.gaussian_blur import GaussianBlur
from cedar.operators.image.pixel_transform import Grayscale
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.sharpness import Sharpness
from cedar.operators.image.solarize import Autocontrast, Equalize, Solarize
from cedar.operators.image.warp import Perspective, Rotation
from tests.operators.image import pixels_oracle as oracle


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 1, 1), (1, 3000, 3), (67, 61, 3), (224, 224, 3)])
def test_sizes_around_the_stretches(shape):
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, shape, dtype=np.uint8)
    transforms = [
        ColorJitter(0.8, 0.8, 0.8, 0.2), GaussianBlur(23), Rotation(40, "bilinear"), Sharpness(2, 1.0),
        Grayscale(p=0.5), Solarize(100),
    ]  # fmt: skip
    draws = [Draws(rng.integers(0, 1 << 63, 1).astype(np.uint64)) for _ in transforms]
    wanted = image
    for transform, own in zip(transforms, draws, strict=True):
        wanted = oracle.plain(transform.steps(np.array([shape[:2]]), own), 0, wanted)
    assert np.array_equal(compile_pixels(transforms).run(image[None], draws)[0], wanted)
    padded = np.zeros((shape[0], shape[1] + 2, shape[2]), dtype=np.uint8)
    padded[:, 1:-1] = image
    assert np.array_equal(compile_pixels(transforms).run([padded[:, 1:-1]], draws)[0], wanted)  # rows apart


@pytest.mark.parametrize("channels", [1, 3])
def test_steps_on_the_whole_image_follow_each_other(channels):
    whole = [
        ColorJitter(contrast=(1.9, 1.9)), Autocontrast(1.0), Equalize(1.0), GaussianBlur(5, 1.0), Grayscale(3),
        Solarize(120, 1.0), Sharpness(3.0, 1.0), Perspective(p=1.0),
    ]  # fmt: skip
    rng = np.random.default_rng(7)
    image = (rng.integers(0, 90, (40, 50, channels)) + 60).astype(np.uint8)
    draws = Draws(np.array([11], dtype=np.uint64))
    for transforms in itertools.product(whole, repeat=3):
        given = [draws if t.random else None for t in transforms]
        wanted = image
        for transform, own in zip(transforms, given, strict=True):
            wanted = oracle.plain(transform.steps(np.array([[40, 50]]), own), 0, wanted)
        assert np.array_equal(compile_pixels(transforms).run(image[None], given)[0], wanted), transforms
