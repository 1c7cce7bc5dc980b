"""Sounds, files of them, draws, and plain references."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import soundfile

from cedar.operators.draws import Draws

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "audio"
EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text(encoding="utf-8"))


def chirp():
    """4,000 samples at 8 kHz: a tone, a rising one, and 200 samples of silence."""
    t = np.arange(4000) / 8000
    clip = 0.4 * np.sin(2 * np.pi * 440 * t) + 0.2 * np.sin(2 * np.pi * (200 * t + 900 * t * t))
    clip[1500:1700] = 0
    return clip.astype(np.float32)


def noise(samples, channels=1, seed=0):
    """float64 in [-0.5, 0.5): (samples,), or (samples, channels)."""
    values = np.random.default_rng(seed).random((samples, channels)) - 0.5
    return values[:, 0] if channels == 1 else values


def file(values, rate=16000, format="WAV", subtype=None):
    """The bytes of a file."""
    made = io.BytesIO()
    soundfile.write(made, values, rate, format=format, subtype=subtype)
    return made.getvalue()


def wav(body=b"\0" * 64, size=None, number=1, channels=1, rate=8000, align=2, bits=16, extra=b""):
    """A WAV file, chunk by chunk: what of it is wrong, the caller says."""
    form = struct.pack("<HHIIHH", number, channels, rate, rate * align, align, bits) + extra
    chunks = b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(body) if size is None else size) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def peer(data):
    """What soundfile reads from a file's bytes: float32."""
    return soundfile.read(io.BytesIO(data), dtype="float32")[0]


def binary(files):
    """A column of bytes."""
    return pa.array(files, pa.large_binary())


def draws(n, seed=0):
    return Draws(np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64))


CLIPS = [noise(n, c, seed=n).astype(np.float32) for n, c in ((0, 1), (1, 1), (50, 1), (99, 2), (300, 1), (0, 2))]
FLAC_FILE = file(noise(20_000), 48000, "FLAC")


def same(one, other):
    """Two columns, bit for bit."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert type(a) is type(b)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert a.tobytes() == b.tobytes()
        else:
            assert a == b
    return True


def plain_mel(clip, filters, n_fft, hop, window, power, center):
    """A mel spectrogram, frame by frame, in float64."""
    clip = np.asarray(clip, dtype=np.float64)
    if center:
        clip = np.pad(clip, n_fft // 2, mode="reflect")
    padded = np.zeros(n_fft)
    left = (n_fft - len(window)) // 2
    padded[left : left + len(window)] = window
    frames = []
    for start in range(0, len(clip) - n_fft + 1, hop):
        spectrum = np.fft.rfft(clip[start : start + n_fft] * padded)
        frames.append(filters @ np.abs(spectrum) ** power)
    return np.array(frames).T


def plain_filters(n_fft, rate, n_mels, low, high):
    """HTK triangles, bin by bin."""
    mel = lambda f: 2595 * np.log10(1 + f / 700)
    back = lambda m: 700 * (10 ** (m / 2595) - 1)
    corners = [back(mel(low) + (mel(high) - mel(low)) * i / (n_mels + 1)) for i in range(n_mels + 2)]
    filters = np.zeros((n_mels, n_fft // 2 + 1))
    for band in range(n_mels):
        a, b, c = corners[band : band + 3]
        for k in range(n_fft // 2 + 1):
            f = k * rate / n_fft
            if a < f <= b:
                filters[band, k] = (f - a) / (b - a)
            elif b < f < c:
                filters[band, k] = (c - f) / (c - b)
    return filters
