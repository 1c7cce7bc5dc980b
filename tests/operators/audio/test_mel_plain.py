"""What stands in for the kernels of spectrograms while they are compiled: the same bits, on the same arguments."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators import audio, native
from cedar.operators.audio import mel_plain
from cedar.operators.audio.fft_kernels import transform
from cedar.operators.audio.fft_plan import plan
from tests.operators.audio.toy_sounds import noise


@given(
    n_fft=st.integers(2, 130), hop=st.integers(1, 50), cut=st.integers(0, 10), samples=st.integers(80, 1400),
    silent=st.integers(0, 600), n_mels=st.integers(1, 12), power=st.sampled_from([1, 2]), center=st.booleans(),
    scale=st.sampled_from([1.0, 1e-30, 1e18]),
)  # fmt: skip
def test_spectrograms(n_fft, hop, cut, samples, silent, n_mels, power, center, scale):
    mel = audio.log_mel(
        rate=8000, n_fft=n_fft, hop_length=hop, win_length=max(1, n_fft - cut), n_mels=n_mels, power=power, log=None,
        center=center,
    )  # fmt: skip
    clip = (noise(samples, seed=samples) * scale).astype(np.float32)
    clip[max(0, samples - silent) :] = 0
    if not mel.frames(samples):
        return

    def made():
        out = np.full((n_mels, mel.frames(samples)), 7, np.float32)
        mel._spectrogram(clip, out)
        return out.tobytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "kernels", lambda module, last: None)
        plain = made()
    assert made() == plain


@pytest.mark.parametrize("n_fft", [400, 512, 441, 1024, 858])
def test_usual_lengths(monkeypatch, n_fft):
    mel = audio.log_mel(rate=16_000, n_fft=n_fft, hop_length=160, log="ln")
    clip = noise(20_000).astype(np.float32)
    fast = mel(clip)
    monkeypatch.setattr(native, "kernels", lambda module, last: None)
    assert mel(clip).tobytes() == fast.tobytes()


@given(n=st.integers(1, 300), frames=st.integers(1, 9), seed=st.integers(0, 99))
def test_transforms(n, frames, seed):
    stages = plan(n)
    x = np.random.default_rng(seed).standard_normal((2, n, frames)).astype(np.float32)
    plain = np.stack(mel_plain.transform((x[0], x[1]), stages.radices, stages.twiddles, stages.starts))
    flat = x.reshape(2, n * frames).copy()
    fast = transform(flat, flat.copy(), n, frames, stages.radices, stages.twiddles, stages.starts)
    assert fast.tobytes() == plain.tobytes()
    np.testing.assert_allclose(plain[0] + 1j * plain[1], np.fft.fft(x[0] + 1j * x[1], axis=0), atol=1e-3)


CODE = """
import subprocess
import numpy as np
from cedar.operators import audio, native
native.load = lambda module: None
compiling = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)  # ends with this process
native._process = lambda *_: compiling
mel = audio.log_mel(rate=16_000, n_fft=400, hop_length=160)
print(mel(np.ones(16_000, np.float32)).shape[0] > 0 and native.is_compiling())
"""


def test_a_first_clip_waits_for_no_kernel(monkeypatch):
    monkeypatch.delenv("CEDAR_KERNELS", raising=False)
    done = subprocess.run([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == "True"
