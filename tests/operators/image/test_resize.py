"""resize: the shorter side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cedar.operators import image
from tests.operators.image.toy_image_values import picture

SIDES = st.integers(1, 40)


@given(SIDES, SIDES, st.integers(1, 30), st.none() | st.integers(1, 30))
def test_the_shorter_side_is_given(height, width, size, more):
    short, long = min(height, width), max(height, width)
    new_short, new_long = size, int(size * long / short)
    if more is not None and new_long > size + more:
        new_short, new_long = int((size + more) * new_short / new_long), size + more
    expected = (new_short, new_long) if width > height else (new_long, new_short)
    operator = image.resize(size, max_size=None if more is None else size + more)
    assert operator(picture(height, width)).shape[:2] == tuple(max(1, side) for side in expected)
