"""Log-mel spectrograms of recordings of different rates and lengths, with SpecAugment, for a classifier of sounds."""

import tempfile

import numpy as np
import soundfile

import cedar
from cedar.operators import audio

folder = tempfile.mkdtemp()
for n in range(12):
    rate = (8_000, 44_100)[n % 2]
    time = np.arange(rate * (1 + n % 3)) / rate
    soundfile.write(
        f"{folder}/{('low', 'high')[n % 2]}-{n}.wav", 0.3 * np.sin(2 * np.pi * 300 * 4 ** (n % 2) * time), rate
    )

batches = (
    cedar.read_files(f"{folder}/*.wav")
    .with_columns(label=cedar.col("path").str.contains("high"))
    .map(audio.decode(rate=16_000, mono=True), "bytes", into="clip")
    .map(audio.pad(2 * 16_000, longer="crop"), "clip")
    .map(audio.log_mel(rate=16_000, n_fft=400, hop_length=160, n_mels=64), "clip", into="mel")
    .map(audio.frequency_mask(8, value=-100.0), "mel")
    .select("mel", "label")
    .shuffle(seed=1)
    .batch(4)
)
loudest: dict[bool, list[int]] = {True: [], False: []}
for batch in batches.loader():
    assert batch["mel"].shape == (4, 64, 201)
    for mel, label in zip(batch["mel"], batch["label"], strict=True):
        loudest[bool(label)].append(int(mel.mean(axis=1).argmax()))
print(loudest)
assert min(loudest[True]) > max(loudest[False])
