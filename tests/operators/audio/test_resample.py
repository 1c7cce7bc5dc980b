"""Resampling: soxr's values, rates of a column, and a limit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cedar.core.columns import OBJECT, objects
from cedar.core.errors import PipelineError
from cedar.operators import audio
from cedar.operators.transform import BadValues
from tests.operators.audio.toy_sounds import CLIPS, file, noise, same

soxr = pytest.importorskip("soxr")


@pytest.mark.parametrize("quality", ["QQ", "LQ", "MQ", "HQ", "VHQ"])
def test_resample_is_soxr(quality):
    clips = [c for c in CLIPS if len(c)]
    want = [soxr.resample(c, 48000, 16000, quality) for c in clips]
    assert same(audio.resample(16000, source=48000, quality=quality).columns(objects(clips)), want)


def test_rates_of_a_column():
    clips = [noise(3000, seed=n).astype(np.float32) for n in range(3)]
    made = audio.resample(16000).columns(objects(clips), pa.array([8000, 16000, 44100]))
    assert same(made, [soxr.resample(clips[0], 8000, 16000), clips[1], soxr.resample(clips[2], 44100, 16000)])
    with pytest.raises(BadValues, match="a sampling rate of None Hz"):
        audio.resample(16000).columns(objects(clips), pa.array([8000, None, 0]))
    for wrong in ((OBJECT,), (OBJECT, pa.large_string())):
        with pytest.raises(PipelineError):
            audio.resample(16000).result(*wrong)
    with pytest.raises(PipelineError, match="reads the clips, not 2"):
        audio.resample(16000, source=8000).result(OBJECT, pa.int64())
    empty = audio.resample(16000, source=8000)(np.zeros((0, 2), np.float32))
    assert empty.shape == (0, 2)


def test_a_rate_of_one_hertz_fills_no_memory():
    with pytest.raises(ValueError, match="480,000,000 samples of 1 channels are more than the limit"):
        audio.decode(rate=16000)(file(np.zeros(30_000), 1))
    with pytest.raises(ValueError, match="160 samples of 1 channels are more than the limit of 100"):
        audio.resample(16000, most=100)(np.zeros(10, np.float32), 1000)
