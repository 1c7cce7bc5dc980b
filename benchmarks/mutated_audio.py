"""Damaged audio files: each decoder gets 10,000 of them. None may end the process, and none may take two seconds.

    python -m benchmarks.mutated_audio [--quick] [--count N] [--only flac mp3] [--seed S]

Files of every format are made from a few seconds of sound, and then bits are flipped, bytes overwritten, parts cut out,
doubled, moved or cut off, headers most of all. The decoding runs in its own process: where it dies, the file is
named, and a new process continues behind it.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SLOW = 2.0  # seconds
FORMATS = {
    "wav16": ("WAV", "PCM_16"), "wav8": ("WAV", "PCM_U8"), "wav24": ("WAV", "PCM_24"), "wav_float": ("WAV", "FLOAT"),
    "wav_extensible": ("WAVEX", "PCM_24"), "wav_adpcm": ("WAV", "MS_ADPCM"), "flac": ("FLAC", "PCM_16"),
    "flac24": ("FLAC", "PCM_24"), "vorbis": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"), "aiff": ("AIFF", "PCM_16"), "caf": ("CAF", "PCM_16"), "au": ("AU", "PCM_16"),
    "rf64": ("RF64", "PCM_16"),
}  # fmt: skip


@dataclass
class Tally:
    """What became of a format's files."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    slow: list[int] = field(default_factory=list)
    odd: dict[int, str] = field(default_factory=dict)
    died: dict[int, int] = field(default_factory=dict)


def sound(seconds: float, rate: int, channels: int) -> Any:
    """Tones and noise, and a silent part."""
    rng = np.random.default_rng(5)
    times = np.arange(int(seconds * rate))[:, None] / rate
    tones = 0.3 * np.sin(2 * np.pi * (220 + 110 * np.arange(channels)) * times)
    clip = tones + 0.05 * rng.standard_normal((len(times), channels))
    clip[len(clip) // 2 : len(clip) * 5 // 8] = 0
    return clip


def originals(name: str) -> list[bytes]:
    """Whole files of a format: short and long, of one channel and of two."""
    import soundfile

    made = []
    for seconds, channels in ((0.05, 1), (0.4, 2)):
        file = io.BytesIO()
        soundfile.write(file, sound(seconds, 48000, channels), 48000, format=FORMATS[name][0], subtype=FORMATS[name][1])
        made.append(file.getvalue())
    return made


def mutated(whole: bytes, seed: int) -> bytes:
    """A damaged copy; the same for the same seed."""
    rng = np.random.default_rng(seed)
    data = bytearray(whole)
    for _ in range(int(rng.integers(1, 5))):
        if not data:
            break
        near = len(data) if rng.random() < 0.5 else min(len(data), 128)  # headers most of all
        at = int(rng.integers(near))
        length = int(rng.integers(1, 1 + min(64, len(data))))
        kind = rng.integers(8)
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))]))
        elif kind == 2:
            data[at : at + length] = rng.bytes(length)
        elif kind == 3:
            del data[at : at + length]
        elif kind == 4:
            data[at:at] = data[at : at + length]
        elif kind == 5:
            to = int(rng.integers(len(data)))
            data[to : to + length] = data[at : at + length]
        elif kind == 6:
            number = int(rng.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, int(rng.integers(1 << 32))]))
            data[at : at + 4] = struct.pack("<I" if rng.random() < 0.5 else ">I", number)
        else:
            del data[int(rng.integers(len(data))) :]
    return bytes(data)


def outcome(data: bytes) -> str:
    """What decoding gives: a clip, or an error of ours; anything else is told by its type."""
    from cedar.operators import audio

    try:
        clip = audio.decode(most=1 << 24)(data)
    except ValueError as error:
        return "refused" if type(error) is ValueError and str(error) else f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - which are raised is what is measured
        return f"{type(error).__name__}: {error}"
    sound = isinstance(clip, np.ndarray) and clip.dtype == np.float32 and bool(np.isfinite(clip).all())
    return "decoded" if sound else f"a clip of {getattr(clip, 'dtype', type(clip))} with NaN or worse"


def timed(data: bytes) -> tuple[str, float]:
    """What decoding gives, and the seconds that it took."""
    began = time.perf_counter()
    told = outcome(data)
    return told, time.perf_counter() - began


def work(name: str, first: int, count: int, seed: int, reports: Any) -> None:
    """Decodes files ``first`` to ``count``; what is about to be decoded is told first."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # mpg123 writes what it thinks of a file
    wholes = originals(name)
    outcome(wholes[0])  # imports, which are not timed
    for number in range(first, count):
        reports.send((number, None, 0.0))
        data = mutated(wholes[number % len(wholes)], seed * 1_000_003 + number)
        told, seconds = timed(data)
        if seconds > SLOW:  # by itself, or because the machine was busy?
            seconds = min(seconds, *(timed(data)[1] for _ in range(3)))
        reports.send((number, told, seconds))
    reports.send((count, "done", 0.0))


def run(name: str, count: int, seed: int = 0) -> Tally:
    """Damaged files of one format, decoded in another process."""
    context = multiprocessing.get_context("spawn")
    tally, first = Tally(), 0
    while first < count:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(name, first, count, seed, theirs), daemon=True)
        process.start()
        theirs.close()
        first = _follow(tally, ours, first, count)
        process.join(10)
        if first < count:
            tally.died[first] = process.exitcode or 0
            first += 1
        if process.is_alive():
            process.kill()
            process.join(10)
    return tally


def _follow(tally: Tally, reports: Any, first: int, count: int) -> int:
    """Notes what a process tells; the number of the file at which it fell silent."""
    number = first
    while reports.poll(60):
        try:
            number, told, seconds = reports.recv()
        except EOFError:
            return number
        if number == count:
            return count
        if told is None:
            continue
        tally.outcomes["odd" if told not in {"refused", "decoded"} else told] += 1
        tally.slowest = max(tally.slowest, seconds)
        if seconds > SLOW:
            tally.slow.append(number)
        if told not in {"refused", "decoded"}:
            tally.odd[number] = told
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 files of each format")
    parser.add_argument("--count", type=int, default=None)
    parser.add_argument("--only", nargs="*", choices=sorted(FORMATS), default=sorted(FORMATS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    count = given.count or (300 if given.quick else 10_000)
    good = True
    print(f"{'format':16}{'decoded':>9}{'refused':>9}{'odd':>6}{'died':>6}{'over 2 s':>10}{'slowest, s':>12}")
    for name in given.only:
        tally = run(name, count, given.seed)
        good &= not (tally.died or tally.slow or tally.odd)
        told = tally.outcomes
        print(
            f"{name:16}{told['decoded']:9,}{told['refused']:9,}{told['odd']:6}{len(tally.died):6}{len(tally.slow):10}"
            f"{tally.slowest:12.3f}",
            flush=True,
        )
        for number in tally.slow:
            print(f"  file {number} took more than {SLOW:.0f} s, four times")
        for number, code in tally.died.items():
            print(f"  file {number} ended the process: exit code {code}")
        for number, why in list(tally.odd.items())[:5]:
            print(f"  file {number}: {why}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
