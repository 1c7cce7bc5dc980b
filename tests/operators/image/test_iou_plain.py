"""The trials of iou_crop in Python: the parts that the compiled ones find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.image import iou_kernels, iou_plain


@given(seed=st.integers(0, 9999), rows=st.integers(1, 6), trials=st.integers(1, 12))
def test_trials_of_parts(seed, rows, trials):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 300, (rows, 2))
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 5, rows))])
    corners = rng.random((starts[-1], 2, 2)).astype(np.float32) * 300
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    numbers, least = rng.random((rows, 4 * trials)), rng.choice([0.0, 0.1, 0.3, 0.5], rows).astype(np.float32)
    made = []
    for module in (iou_kernels, iou_plain):
        parts, found = np.zeros((rows, 4), dtype=np.int64), np.zeros(rows, dtype=bool)
        inside = np.zeros(starts[-1], dtype=bool)
        module.try_parts(sizes, numbers, least, boxes, starts, (0.3, 0.7, 0.5, 2.0), parts, found, inside)
        kept = [inside[starts[i] : starts[i + 1]].tolist() for i in np.flatnonzero(found)]
        made.append((parts[found].tolist(), found.tolist(), kept))
    assert made[0] == made[1]
