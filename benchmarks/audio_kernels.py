"""Audio transforms against plain versions of the same on the libraries that every worker uses, CPU time per clip.

    python -m benchmarks.audio_kernels [--quick]        QUICK=1 does the same as --quick

Clips of 3 to 8 s at 48 kHz, half of them WAV and half FLAC, made of the recordings in --data, or of noise. Each step
and the whole are run in turns, ours and theirs, in one process and one thread; results are compared before.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Figure, at_least, interleaved, ratios, reported, show, write
from cedar.operators import audio
from cedar.operators.audio.clips import run_rows
from cedar.operators.audio.log_mel import mel_filters
from cedar.operators.transform import Link

RATE, TO, LENGTH, N_FFT, HOP, MELS = 48_000, 16_000, 8 * 16_000, 400, 160, 80


def files(folder: str | None, count: int) -> list[bytes]:
    """Clips of 3 to 8 s, WAV and FLAC in turns."""
    import soundfile

    rng = np.random.default_rng(0)
    paths = sorted(Path(folder).glob("*.wav")) if folder else []
    sounds = [soundfile.read(path, dtype="int16")[0] for path in paths]
    sounds = sounds or [(rng.standard_normal(100_000) * 3000).astype(np.int16)]
    made = []
    for number in range(count):
        samples = int(rng.uniform(3, 8) * RATE)
        order = rng.integers(len(sounds), size=200)
        clip = np.concatenate([sounds[i] for i in order])[:samples]
        file = io.BytesIO()
        soundfile.write(file, clip, RATE, format="FLAC" if number % 2 else "WAV")
        made.append(file.getvalue())
    return made


class Plain:
    """Each step as one writes it with soundfile, soxr, and NumPy or torch."""

    def __init__(self) -> None:
        self.window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)
        self.filters = mel_filters(N_FFT, TO, MELS, 0, TO / 2, "htk", None).astype(np.float32)

    def decode(self, data: bytes) -> Any:
        import soundfile

        return soundfile.read(io.BytesIO(data), dtype="float32")[0]

    def resample(self, clip: Any) -> Any:
        soxr = importlib.import_module("soxr")
        return soxr.resample(clip, RATE, TO)

    def pad(self, clip: Any) -> Any:
        return np.pad(clip, (0, LENGTH - len(clip)))

    def log_mel(self, clip: Any) -> Any:
        padded = np.pad(clip, N_FFT // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP] * self.window
        powers = np.abs(np.fft.rfft(frames)) ** 2
        return 10 * np.log10(np.maximum(self.filters @ powers.T, np.float32(1e-10)))

    def log_mel_torch(self) -> Callable[[Any], Any]:
        """With torch.stft, on one thread, as torchaudio does it."""
        import torch

        torch.set_num_threads(1)
        window, filters = torch.from_numpy(self.window), torch.from_numpy(self.filters)

        def run(clip: Any) -> Any:
            spectrum = torch.stft(torch.from_numpy(clip), N_FFT, HOP, window=window, return_complex=True)
            return 10 * torch.log10(torch.clamp(filters @ spectrum.abs().pow(2), min=1e-10))

        return run


def thread_seconds(work: Callable[[], Any]) -> float:
    """CPU time of a call, of this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def measure(data: str | None, quick: bool) -> list[Figure]:
    """The steps one by one, and the whole."""
    count, rounds = (8, 5) if quick else (32, 15)
    column = pa.array(files(data, count), pa.large_binary())
    raw = column.to_pylist()
    decode, resample = audio.decode(mono=True), audio.resample(TO, source=RATE)
    pad, mel = audio.pad(LENGTH), audio.log_mel(rate=TO, n_fft=N_FFT, hop_length=HOP, n_mels=MELS)
    plain = Plain()
    torch_mel = plain.log_mel_torch()
    clips = decode.columns(column)
    short = resample.columns(clips)
    padded = pad.columns(short)
    links = [
        Link(decode, ("bytes",), ("a",)), Link(resample, ("a",), ("a",)),
        Link(pad, ("a",), ("a",)), Link(mel, ("a",), ("a",)),
    ]  # fmt: skip

    def plainly(last: Callable[[Any], Any]) -> list[Any]:
        return [last(plain.pad(plain.resample(plain.decode(item)))) for item in raw]

    whole = run_rows(links, {"bytes": column}, [None] * 4)[0]["a"]
    for made, want in zip(whole, plainly(plain.log_mel), strict=True):
        np.testing.assert_allclose(made, want, atol=0.1)
    wavs, flacs = column.take(pa.array(range(0, count, 2))), column.take(pa.array(range(1, count, 2)))
    pairs: dict[str, tuple[int, Callable[[], Any], Callable[[], Any]]] = {
        "decode WAV / soundfile": (len(wavs), lambda: decode.columns(wavs), lambda: [*map(plain.decode, raw[::2])]),
        "decode FLAC / soundfile": (len(flacs), lambda: decode.columns(flacs), lambda: [*map(plain.decode, raw[1::2])]),
        "resample / soxr": (count, lambda: resample.columns(clips), lambda: [*map(plain.resample, clips)]),
        "pad / numpy": (count, lambda: pad.columns(short), lambda: np.stack([*map(plain.pad, short)])),
        "log-mel / numpy": (count, lambda: mel.columns(padded), lambda: [*map(plain.log_mel, padded)]),
        "log-mel / torch": (count, lambda: mel.columns(padded), lambda: [*map(torch_mel, padded)]),
        "all four / soundfile, soxr, numpy": (
            count, lambda: run_rows(links, {"bytes": column}, [None] * 4), lambda: plainly(plain.log_mel),
        ),
        "all four / soundfile, soxr, torch": (
            count, lambda: run_rows(links, {"bytes": column}, [None] * 4), lambda: plainly(torch_mel),
        ),
    }  # fmt: skip
    figures = []
    for what, (clips_run, ours, theirs) in pairs.items():
        runs = {"ours": lambda ours=ours: thread_seconds(ours), "theirs": lambda theirs=theirs: thread_seconds(theirs)}
        found = interleaved(runs, rounds)
        faster = ratios(found["theirs"], found["ours"])
        least = 1.15 if what.startswith("all four") else None
        mine, others = (1e3 * min(found[who]) / clips_run for who in ("ours", "theirs"))
        note = f"ours {mine:.2f} ms a clip, theirs {others:.2f}"
        figures.append(
            reported(what, faster, "x as fast", note=note)
            if least is None
            else at_least(what, least, faster, "x as fast", note=note)
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder of recordings: WAV of one channel at 48 kHz")
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")))
    given = parser.parse_args()
    figures = measure(given.data, given.quick)
    show("audio kernels: CPU time per clip", figures)
    print(f"written to {write('audio_kernels', figures)}")


if __name__ == "__main__":
    main()
