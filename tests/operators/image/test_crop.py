"""crop: what is there, and what is filled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators import image
from tests.operators.image.toy_image_values import picture

SIDES = st.integers(1, 40)


@given(SIDES, SIDES, st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 30), st.integers(1, 30))
def test_crop_takes_what_is_there_and_fills_the_rest(height, width, top, left, tall, wide):
    given_image = picture(height, width)
    expected = np.full((tall, wide, 3), 9, dtype=np.uint8)
    for y in range(tall):
        for x in range(wide):
            if 0 <= top + y < height and 0 <= left + x < width:
                expected[y, x] = given_image[top + y, left + x]
    assert np.array_equal(image.crop(top, left, tall, wide, fill=9)(given_image), expected)
    inside = top >= 0 and left >= 0 and top + tall <= height and left + wide <= width
    if inside:
        assert np.array_equal(image.crop(top, left, tall, wide)(given_image), expected)
    else:
        with pytest.raises(ValueError) as caught:
            image.crop(top, left, tall, wide)(given_image)
        assert "does not hold" in str(caught.value)
