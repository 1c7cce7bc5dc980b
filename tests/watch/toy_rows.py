"""Rows of images and of sound."""

from __future__ import annotations

import numpy as np

ROWS = 12


def pictures(rows=ROWS):
    drawn = np.random.default_rng(1)
    return [{"id": i, "image": drawn.integers(9, 240, (40 + i, 60, 3), dtype=np.uint8)} for i in range(rows)]


def clips(rows=ROWS):
    drawn = np.random.default_rng(2)
    return [{"id": i, "clip": drawn.normal(0, 0.1, 900 + i).astype(np.float32)} for i in range(rows)]
