"""horizontal_flip and vertical_flip: the share of rows that are mirrored, and boxes."""

from __future__ import annotations

import numpy as np

from cedar.operators import image
from cedar.operators.draws import Draws


def test_flips_happen_as_often_as_they_say():
    rows = 20_000
    draws = Draws(np.random.default_rng(2).integers(0, 1 << 63, rows).astype(np.uint64))
    sizes = np.broadcast_to(np.array([100, 200]), (rows, 2))
    for flips in (
        image.horizontal_flip(0.3).moves(sizes, None, draws).flip,
        image.vertical_flip(0.3).moves(sizes, None, draws).flip_vertical,
    ):
        assert abs(flips.mean() - 0.3) < 0.02
