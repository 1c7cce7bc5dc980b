"""Pixel operators and images to draw from."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cedar.operators.image.augmenting import RandAugment, TrivialAugment
from cedar.operators.image.color_jitter import ColorJitter
from cedar.operators.image.distort import PhotometricDistort
from cedar.operators.image.gaussian_blur import GaussianBlur
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixel_transform import Grayscale
from cedar.operators.image.sharpness import Sharpness
from cedar.operators.image.solarize import Autocontrast, Equalize, Invert, Posterize, Solarize
from cedar.operators.image.warp import Affine, Perspective, Rotation

P = st.sampled_from([0.0, 0.5, 1.0])
TAKEN = st.sampled_from(["nearest", "bilinear"])
FILLS = st.sampled_from([None, 0, 9, 254.5])
OPERATORS = st.one_of(
    st.builds(
        ColorJitter,
        brightness=st.sampled_from([None, 0.8, (0.0, 3.0)]),
        contrast=st.sampled_from([None, 0.8, (0.0, 3.0)]),
        saturation=st.sampled_from([None, 0.8, (0.0, 3.0)]),
        hue=st.sampled_from([None, 0.2, 0.5]),
        p=P,
    ),
    st.builds(Grayscale, num_output_channels=st.sampled_from([1, 3])),
    st.builds(Grayscale, p=st.just(0.5)),
    st.builds(GaussianBlur, st.sampled_from([1, 3, (5, 9), 23]), st.sampled_from([1.0, (0.1, 2.0), (2.0, 9.0)]), P),
    st.builds(Solarize, st.integers(-1, 255), P),
    st.builds(Posterize, st.integers(0, 8), P),
    st.builds(Autocontrast, P),
    st.builds(Equalize, P),
    st.builds(PhotometricDistort, p=P),
    st.builds(Invert, P),
    st.builds(Sharpness, st.sampled_from([0, 0.4, 1.0, 9.5]), P),
    st.builds(Rotation, st.sampled_from([0, 30, 180, (90, 90)]), TAKEN, st.none() | st.just((3, 40)), FILLS),
    st.builds(Affine, st.just(90), st.just((0.4, 0.0)), st.just((0.5, 2.0)), st.just((-9, 9, 0, 45)), TAKEN, FILLS),
    st.builds(Perspective, st.sampled_from([0.0, 0.5, 1.0]), P, TAKEN, FILLS),
    st.builds(RandAugment, st.integers(0, 3), st.integers(0, 30), interpolation=TAKEN, fill=FILLS),
    st.builds(TrivialAugment, st.sampled_from([2, 31]), interpolation=TAKEN),
)
NORMS = st.builds(Normalize, st.floats(-2, 2), st.floats(1e-30, 1e30) | st.sampled_from([0.229, -3.0, 1e-3]))
ENDS = (
    st.just(())
    | st.tuples(st.just(ToFloat()))
    | st.tuples(st.just(ToFloat()), NORMS)
    | st.tuples(st.just(ToFloat()), NORMS, NORMS)
)


def some_images(rng, kind, height, width, channels):
    if kind == "noise":
        return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    if kind == "few":
        return rng.choice(np.array([0, 1, 128, 254, 255], dtype=np.uint8), (height, width, channels))
    return np.full((height, width, channels), rng.integers(0, 256), dtype=np.uint8)
