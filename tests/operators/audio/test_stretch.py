"""Stretches: librosa's values, and what they keep."""

from __future__ import annotations

import numpy as np
import pytest

from cedar.core.columns import objects
from cedar.operators import audio
from tests.operators.audio.toy_sounds import EXPECTED, chirp, draws, same


@pytest.mark.parametrize("case", EXPECTED["time_stretch"], ids=lambda case: str(case["arguments"]))
def test_stretches_of_librosa(case):
    made = audio.time_stretch(**case["arguments"])(chirp())
    assert len(made) == case["samples"]
    apart = np.abs(made[:: case["step"]] - case["values"])
    assert np.median(apart) < 2e-4
    assert apart.max() < 5e-3  # where it is silent, phases are rounding


def test_stretches():
    clip = chirp()
    assert same([audio.time_stretch(1.0)(clip)], [clip])
    assert audio.time_stretch(2.0)(np.zeros(0, np.float32)).shape == (0,)
    short = audio.time_stretch(0.5)(np.ones(3, np.float32))
    assert short.shape == (6,)
    two = audio.time_stretch(1.25, n_fft=256)(np.stack([clip, clip[::-1]], axis=1))
    assert same([np.ascontiguousarray(two[:, 0])], [audio.time_stretch(1.25, n_fft=256)(clip)])
    tone = np.sin(np.arange(16000, dtype=np.float32) * np.float32(0.2))
    peak = lambda x: np.abs(np.fft.rfft(x)).argmax() / len(x)
    assert abs(peak(audio.time_stretch(0.7)(tone)) - peak(tone)) < 2e-4
    stretch = audio.random_time_stretch(0.5, 2.0)
    lengths = [len(c) for c in stretch.columns(objects([np.zeros(1000, np.float32)] * 60), draws=draws(60))]
    assert 500 <= min(lengths) < 600
    assert 1500 < max(lengths) <= 2000
    with pytest.raises(ValueError, match="NaN"):
        audio.time_stretch(2.0)(np.float32([np.nan]))
