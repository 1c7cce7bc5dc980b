"""Audio to log-mel spectrograms: FLAC and WAV of 3 to 8 s at 48 kHz, resampled to 16 kHz, padded to 8 s."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.workload import SEED, Array, Batch, Files, Row, Workload, library

FROM, RATE, SECONDS = 48_000, 16_000, 8
LENGTH = RATE * SECONDS
N_FFT, HOP, MELS = 400, 160, 80
FLOOR = 1e-6
DISTINCT = 240


class Audio(Files):
    """Row i is file i; the output is float32 (80, 801)."""

    batch = 16
    compared = ("mel",)

    def read(self, i: int) -> bytes:
        return (self.path / "clips" / f"{i:06d}.audio").read_bytes()

    def ids(self, batch: Batch, position: int) -> Array:
        if "path" not in batch:
            return super().ids(batch, position)
        return np.array([int(str(path).rpartition("/")[2].partition(".")[0]) for path in batch["path"]])

    def finish(self, i: int, content: bytes) -> Row:
        clip, rate = decoded(content)
        clip = library("soxr").resample(clip, rate, RATE, "HQ")[:LENGTH]
        padded = np.zeros(LENGTH, np.float32)
        padded[: len(clip)] = clip
        return {"id": np.int64(i), "mel": log_mel(padded)}

    def thin(self, name: str, value: Array) -> Array:
        return value[::4, ::8]


def decoded(content: bytes) -> tuple[Array, int]:
    """float32 samples and their rate; the mean of the channels."""
    import soundfile

    clip, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    return (clip if clip.ndim == 1 else clip.mean(axis=1)), rate


def log_mel(clip: Array) -> Array:
    """As torchaudio's MelSpectrogram with its defaults, then log(x + 1e-6)."""
    padded = np.pad(clip, N_FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    spectrum = library("scipy.fft").rfft(frames * window())  # several frames at a time: four times NumPy's speed
    power = spectrum.real**2 + spectrum.imag**2
    found: Array = np.log(filters() @ power.T + np.float32(FLOOR))
    return found


@lru_cache
def window() -> Array:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)


@lru_cache
def filters() -> Array:
    """Triangles on the HTK mel scale, float32 (mels, bins)."""
    bins = np.linspace(0, RATE / 2, N_FFT // 2 + 1)
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def prepare(folder: Path, rows: int, own: Path | None) -> None:
    """``clips/000000.audio`` and on: the user's own files over and over, or made ones, FLAC and WAV in turn."""
    place = folder / "clips"
    place.mkdir()
    files = []
    if own is not None:
        files = sorted(path.resolve() for path in own.rglob("*") if path.suffix.lower() in (".wav", ".flac"))
        if not files:
            raise FileNotFoundError(f"there is no .wav or .flac file below {own}")
    for i in range(rows):
        path = place / f"{i:06d}.audio"
        if files:
            path.symlink_to(files[i % len(files)])
        elif i < DISTINCT:
            path.write_bytes(clip_file(i))
        else:
            path.symlink_to(f"{i % DISTINCT:06d}.audio")


def clip_file(i: int) -> bytes:
    """Something like speech: harmonics of a voice that come and go, and some noise."""
    import soundfile

    rng = np.random.default_rng([SEED, i])
    time = np.arange(int(rng.uniform(3, SECONDS) * FROM)) / FROM
    pitch = rng.uniform(90, 240) * (1 + 0.05 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / FROM
    wave = sum(np.sin(k * phase + rng.uniform(0, 6)) * rng.uniform(0.3, 1) / k for k in range(1, 13))
    loudness = np.clip(np.sin(2 * np.pi * rng.uniform(1, 4) * time + rng.uniform(0, 6)) + 0.4, 0, 1)
    wave = 0.15 * wave * loudness + rng.normal(0, 0.003, len(time))
    file = io.BytesIO()
    soundfile.write(file, wave.astype(np.float32), FROM, format="WAV" if i % 2 else "FLAC", subtype="PCM_16")
    return file.getvalue()


def pipeline(work: Any, _setting: str) -> Any:
    import cedar
    from cedar.operators import audio

    return (
        cedar.read_files(f"{work.folder}/clips/*.audio")
        .map(audio.decode(rate=RATE, mono=True), "bytes", into="mel")
        .map(audio.pad(LENGTH, longer="crop"), "mel")
        .map(audio.log_mel(rate=RATE, n_fft=N_FFT, hop_length=HOP, n_mels=MELS, log="ln", floor=FLOOR), "mel")
        .select("path", "mel")
        .batch(work.batch, last="keep")
    )


def decode_alone(work: Audio, rows: Sequence[int]) -> int:
    for i in rows:
        decoded(work.read(i))
    return len(rows)


WORKLOAD = Workload(
    name="audio",
    title="audio to log-mel",
    unit="clips",
    rows=(70, 320, 2400),
    work=Audio,
    prepare=prepare,
    pipeline=pipeline,
    limits={"decode": decode_alone},
    tolerance=0.01,
)
