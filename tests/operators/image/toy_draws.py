"""The draws of rows: of one word each, and of many rows."""

from __future__ import annotations

import numpy as np

from cedar.operators.draws import Draws

MANY = Draws(np.random.default_rng(5).integers(0, 1 << 63, 20_000).astype(np.uint64))


def words(*values):
    """The draws of rows, a word for each."""
    return Draws(np.array(values, dtype=np.uint64))


def squares(rows):
    """Sizes of images, where they do not matter."""
    return np.full((rows, 2), 8, dtype=np.int64)
