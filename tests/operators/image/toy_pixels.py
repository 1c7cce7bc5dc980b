"""Pixel operators and images to draw from."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cedar.operators.image.blur import GaussianBlur
from cedar.operators.image.color import Grayscale
from cedar.operators.image.distort import PhotometricDistort
from cedar.operators.image.jitter import ColorJitter
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.solarize import Autocontrast, Equalize, Posterize, Solarize

P = st.sampled_from([0.0, 0.5, 1.0])
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
