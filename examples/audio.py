"""Audio clips of different lengths to padded batches, decoded with the standard library in a function of our own.

python examples/audio.py folder/of/wav/files
"""

import io
import sys
import wave

import numpy as np
import numpy.typing as npt

import cedar

RATE = 48_000  # samples per second


def decode(data: bytes) -> list[float]:
    """A mono 16-bit clip as samples between -1 and 1, every sixth of them: 8,000 a second."""
    with wave.open(io.BytesIO(data)) as clip:
        if clip.getframerate() != RATE or clip.getnchannels() != 1 or clip.getsampwidth() != 2:
            raise ValueError(f"expected mono, 16 bits, {RATE} Hz, got {clip.getparams()}")
        samples: npt.NDArray[np.int16] = np.frombuffer(clip.readframes(clip.getnframes()), dtype="<i2")
    return (samples[::6] / 32768).tolist()  # type: ignore[no-any-return]


def pipeline(folder: str, batch: int = 3) -> cedar.Pipeline:
    """Batches of `path`, `samples` (batch, longest) padded with silence, and `length`, samples without it."""
    return (
        cedar.read_files(f"{folder}/*.wav")
        .map(decode, "bytes", into="samples")
        .map(len, "samples", into="length", dtype="int64")
        .drop("bytes")
        .batch(batch, last="keep")
        .pad("samples")
    )


def main(folder: str) -> None:
    with pipeline(folder).loader(format="numpy") as loader:
        for batch in loader:
            print(f"batch {batch['samples'].shape}")
            for path, samples, length in zip(batch["path"], batch["samples"], batch["length"], strict=True):
                loudness = 20 * np.log10(np.sqrt(np.mean(np.square(samples[:length]))) + 1e-9)
                print(f"  {path.rsplit('/', 1)[-1]:<18} {length * 6 / RATE:>5.2f} s {loudness:>7.1f} dB")


if __name__ == "__main__":
    main(sys.argv[1])
