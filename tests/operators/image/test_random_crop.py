"""random_resized_crop: torchvision's loop on the same draws, and how its parts are distributed."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators import image
from cedar.operators.draws import Draws


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 1 << 63))
def test_random_resized_crop_follows_its_draws(height, width, word):
    """The loop of torchvision, on the same numbers."""
    draws = Draws(np.array([word], dtype=np.uint64))
    numbers = draws.uniform(40).reshape(10, 4)
    log_low, log_high = math.log(3 / 4), math.log(4 / 3)
    for area, ratio, y, x in numbers.tolist():
        target = height * width * (0.08 + (1.0 - 0.08) * area)
        shape = math.exp(log_low + (log_high - log_low) * ratio)
        wide, tall = round(math.sqrt(target * shape)), round(math.sqrt(target / shape))
        if 0 < wide <= width and 0 < tall <= height:
            expected = [math.floor(y * (height - tall + 1)), math.floor(x * (width - wide + 1)), tall, wide]
            break
    else:
        wide, tall = width, height
        if width / height < 3 / 4:
            tall = round(width / (3 / 4))
        elif width / height > 4 / 3:
            wide = round(height * (4 / 3))
        expected = [(height - tall) // 2, (width - wide) // 2, tall, wide]
    found = image.random_resized_crop(7).moves(np.array([[height, width]]), None, draws).cut
    assert found.tolist() == [expected]


def test_random_resized_crop_is_distributed_as_it_says():
    rows = 20_000
    draws = Draws(np.random.default_rng(1).integers(0, 1 << 63, rows).astype(np.uint64))
    sizes = np.broadcast_to(np.array([1000, 1000]), (rows, 2))
    cut = image.random_resized_crop(8, scale=(0.1, 0.3)).moves(sizes, None, draws).cut
    share, ratio = cut[:, 2] * cut[:, 3] / 1e6, np.log(cut[:, 3] / cut[:, 2])
    for values, low, high in ((share, 0.1, 0.3), (ratio, math.log(3 / 4), math.log(4 / 3))):
        counts, _ = np.histogram(values, bins=10, range=(low - 1e-3, high + 1e-3))
        assert (np.abs(counts - rows / 10) < 6 * math.sqrt(rows / 10)).all()
    assert abs(np.mean(cut[:, 0] / (1000 - cut[:, 2])) - 0.5) < 0.01
