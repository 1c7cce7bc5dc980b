"""to_float and normalize against the same arithmetic in NumPy, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixels import compile_pixels

EVERY = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)


def test_every_value_as_a_float():
    assert np.array_equal(ToFloat()(EVERY[0]), EVERY[0].astype(np.float32) * np.float32(1 / 255))


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
    st.lists(st.floats(1e-42, 1e38) | st.floats(-1e38, -1e-42), min_size=3, max_size=3),
)
def test_every_value_normalized_as_divided(means, stds):
    with np.errstate(all="ignore"):
        unit = EVERY.astype(np.float32) * np.float32(1 / 255)
        wanted = (unit - np.array(means, dtype=np.float32)) / np.array(stds, dtype=np.float32)
        made = compile_pixels([ToFloat(), Normalize(means, stds)]).run(EVERY, [None, None])
        assert made.tobytes() == wanted.tobytes()
        assert Normalize(means, stds)(unit[0]).tobytes() == wanted[0].tobytes()


def test_lists_make_the_same_transform():
    assert Normalize([0.5, 0.4], [1, 2]) == Normalize((0.5, 0.4), (1.0, 2.0))
    assert Normalize(0.5, 2) == Normalize([0.5], [2.0])
