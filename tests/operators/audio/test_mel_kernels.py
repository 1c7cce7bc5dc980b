"""Compiled mel spectrograms: frames of even and odd lengths, reflected at the ends of a clip."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators import audio
from cedar.operators.audio.log_mel import hann, mel_filters
from tests.operators.audio.toy_sounds import noise, same


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("n_fft", [64, 65])
def test_a_click_is_as_strong_in_every_bin(n_fft, power):
    clip = np.zeros(40 * 16 + n_fft, np.float32)  # more frames than are transformed at once
    clip[[20, 640]] = 1
    mel = audio.log_mel(rate=8000, n_fft=n_fft, hop_length=16, n_mels=6, power=power, log=None, center=False)
    made = mel(clip)
    bands = mel_filters(n_fft, 8000, 6, 0, 4000, "htk", None).sum(axis=1)
    window = np.zeros(len(clip) + n_fft)
    window[:n_fft] = hann(n_fft) ** power
    for frame in range(made.shape[1]):
        strength = sum(window[click - 16 * frame] for click in (20, 640) if click >= 16 * frame)
        np.testing.assert_allclose(made[:, frame], bands * strength, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n_fft", [64, 65])
def test_frames_at_the_ends_are_of_the_reflected_clip(n_fft):
    clip = noise(700).astype(np.float32)
    arguments = {"rate": 8000, "n_fft": n_fft, "hop_length": 10, "n_mels": 6, "log": None}
    reflected = np.pad(clip, n_fft // 2, mode="reflect")
    made = audio.log_mel(**arguments)(clip)
    want = audio.log_mel(**arguments, center=False)(reflected)
    assert same([made[:, : want.shape[1]]], [want])
