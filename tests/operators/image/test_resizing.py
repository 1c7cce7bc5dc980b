"""Resampling one image, by any filter, of bytes or floats: Pillow's values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cedar.operators import image
from tests.operators.image.toy_image_values import picture

SIDES = st.integers(1, 40)


@given(SIDES, SIDES, st.integers(1, 30), st.integers(1, 30), st.sampled_from(["bilinear", "bicubic", "nearest"]))
def test_resize_is_pillows_along_rows_then_down(height, width, tall, wide, name):
    filters = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "nearest": Image.NEAREST}
    given_image = picture(height, width)
    pillow = Image.fromarray(given_image)
    if name != "nearest":
        pillow = pillow.resize((wide, height), filters[name])
    expected = np.asarray(pillow.resize((wide, tall), filters[name]))
    assert np.array_equal(image.resize((tall, wide), interpolation=name)(given_image), expected)


def test_floats_are_cut_flipped_and_resized_too():
    floats = (picture(12, 10) / 255).astype(np.float32)
    made = image.resize((6, 5))(floats)
    planes = [
        Image.fromarray(floats[..., i]).resize((5, 12), Image.BILINEAR).resize((5, 6), Image.BILINEAR) for i in range(3)
    ]
    assert made.dtype == np.float32
    assert np.array_equal(made, np.stack([np.asarray(p) for p in planes], axis=2))
    assert np.array_equal(image.center_crop(4)(floats), floats[4:8, 3:7])
