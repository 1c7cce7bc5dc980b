"""Libraries that are missing."""

from __future__ import annotations

import pytest

from cedar.core.errors import PipelineError
from cedar.operators import audio
from cedar.operators.audio import libraries


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(libraries, "is_installed", lambda module: module not in {"soxr", "numba"})
    audio.decode()
    for make, name in ((lambda: audio.resample(8000), "soxr"), (lambda: audio.decode(rate=8000), "soxr"),
                       (lambda: audio.log_mel(), "numba")):  # fmt: skip
        with pytest.raises(PipelineError) as raised:
            make()
        assert name in str(raised.value)
        assert "cedar-data[audio]" in str(raised.value)
