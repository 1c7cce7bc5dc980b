"""Gains, and clips at a common level."""

from __future__ import annotations

import numpy as np
import pytest

from cedar.core.columns import objects
from cedar.operators import audio
from tests.operators.audio.toy_sounds import draws, noise, same


def test_gain():
    clip = noise(100).astype(np.float32)
    assert same([audio.gain(0.0)(clip)], [clip])
    np.testing.assert_allclose(audio.gain(-20.0)(clip), clip / 10, rtol=1e-6)
    gain = audio.random_gain(-6.0, 6.0)
    made = gain.columns(objects([clip] * 400), draws=draws(400))
    db = 20 * np.log10([part[5] / clip[5] for part in made])
    assert -6 <= db.min() < -5.5
    assert 5.5 < db.max() <= 6
    assert all(same([part], [clip * np.float32(part[5] / clip[5])]) for part in made[:1])
    assert same([gain(clip, draws=draws(400).take(np.array([7])))], [made[7]])


def test_normalize():
    clip = noise(1000, 2).astype(np.float32)
    peak = audio.normalize()(clip)
    assert np.abs(peak).max() == 1
    np.testing.assert_allclose(peak, clip / np.abs(clip).max(), rtol=1e-6)
    standard = audio.normalize("standard")(clip).astype(np.float64)
    assert abs(standard.mean()) < 1e-6
    assert abs(standard.std() - 1) < 1e-6
    for to in ("peak", "standard"):
        assert not audio.normalize(to)(np.zeros(5, np.float32)).any()
        assert audio.normalize(to)(np.zeros(0, np.float32)).shape == (0,)
        for wrong in (np.nan, np.inf, -np.inf):
            with pytest.raises(ValueError, match="sample 1 of 3 is NaN or infinite"):
                audio.normalize(to)(np.float32([0, wrong, 1]))
    assert not audio.normalize("standard")(np.full(7, 0.1, np.float32)).any()
