"""Resizing in NumPy, which stands in for the compiled one: the same bits, on the same arguments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.image import resample
from cedar.operators.image.resample import resize_into
from tests.operators.image.without_kernels import both

SIDE = st.integers(1, 45)


@given(
    height=SIDE, width=SIDE, rows=SIDE, columns=SIDE, channels=st.sampled_from([1, 2, 3, 4, 5]),
    ends=st.tuples(*[st.integers(0, 255)] * 4), antialias=st.booleans(), flip=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_resizing(height, width, rows, columns, channels, ends, antialias, flip, seed):
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    top, left = height * min(ends[:2]) / 256, width * min(ends[2:]) / 256
    box = (top, left, height * (abs(ends[0] - ends[1]) + 1) / 257, width * (abs(ends[2] - ends[3]) + 1) / 257)

    def made():
        out = np.empty((rows, columns, channels), dtype=np.uint8)
        resize_into(image, box if sum(ends) % 3 else None, out, antialias=antialias, flip=flip)
        return out

    if top + box[2] > height or left + box[3] > width:
        box = (0, 0, height, width)
    fast, plain = both(resample, made)
    assert fast.tobytes() == plain.tobytes()
