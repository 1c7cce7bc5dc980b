"""Masks of spectrograms: along one axis, as wide as drawn, and anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from cedar.core.columns import objects
from cedar.operators import audio
from tests.operators.audio.toy_sounds import draws, same


@pytest.mark.parametrize(
    "mask", [audio.time_mask(5, count=2, value=-1.0), audio.frequency_mask(4, count=2, value=-1.0)]
)
@pytest.mark.parametrize("shape", [(8, 20), (2, 8, 20), (8, 1), (8, 0)])
def test_masks(mask, shape):
    rows = np.random.default_rng(0).random((60, *shape)).astype(np.float32)
    made = mask.columns(rows, draws=draws(60))
    assert made.shape == rows.shape
    if not rows.size:
        return
    masked = np.moveaxis(made == -1, mask.axis, -1).reshape(-1, rows.shape[mask.axis])
    assert masked.sum(axis=1).max(initial=0) <= 2 * mask.width
    across = np.moveaxis(made == -1, mask.axis, 1)
    others = tuple(range(2, across.ndim))
    assert (across.all(axis=others) == across.any(axis=others)).all()
    assert (made[made != -1] == rows[made != -1]).all()
    assert (rows >= 0).all()
    ragged = mask.columns(objects(list(rows)), draws=draws(60))
    assert same(list(made), ragged)


def test_masks_are_as_wide_as_drawn_and_anywhere():
    made = audio.time_mask(3).columns(np.ones((2000, 1, 6), np.float32), draws=draws(2000))[:, 0]
    widths = (made == 0).sum(axis=1)
    assert set(widths) == {0, 1, 2, 3}
    assert np.bincount(widths).min() > 420
    starts = {int(np.flatnonzero(row == 0)[0]) for row in made[widths == 3]}
    assert starts == {0, 1, 2, 3}
    limited = audio.time_mask(100, share=0.25).columns(np.ones((200, 1, 8), np.float32), draws=draws(200))
    assert (limited == 0).sum(axis=2).max() == 2
