"""The limit of samples."""

from __future__ import annotations

import pytest

from cedar.core.errors import PipelineError
from cedar.operators import audio
from tests.operators.audio.toy_sounds import file, noise


def test_a_limit_is_kept_and_can_be_raised(monkeypatch):
    data = file(noise(1000, 2))
    with pytest.raises(ValueError, match="1,000 samples of 2 channels are more than the limit of 1,999"):
        audio.decode(most=1999)(data)
    assert audio.decode(most=1999, duration=0.05)(data).shape == (800, 2)
    monkeypatch.setenv("CEDAR_MAX_SAMPLES", "1500")
    limited = audio.decode()
    monkeypatch.setenv("CEDAR_MAX_SAMPLES", "2000")
    assert audio.decode()(data).shape == (1000, 2)
    with pytest.raises(ValueError, match="CEDAR_MAX_SAMPLES|the limit of 1,500"):
        limited(data)
    monkeypatch.setenv("CEDAR_MAX_SAMPLES", "lots")
    with pytest.raises(PipelineError, match="CEDAR_MAX_SAMPLES='lots'"):
        audio.decode()
