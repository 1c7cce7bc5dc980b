"""Read uncompressed WAV files from memory without copying the file.

Format: Microsoft and IBM, Multimedia Programming Interface and Data Specifications 1.0 (1991), with
WAVE_FORMAT_EXTENSIBLE.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from cedar.operators.audio.clips import BadClip, Clip
from cedar.operators.audio.opened import AudioFile

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # a subformat's GUID after the format number
_UNKNOWN_SIZE = 0xFFFFFFFF  # size in files whose writer streamed them and did not know it
_SAMPLE_TYPES = {(_PCM, 8): "u1", (_PCM, 16): "<i2", (_PCM, 24): "i3", (_PCM, 32): "<i4"} | {
    (_FLOAT, 32): "<f4", (_FLOAT, 64): "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class Wav(AudioFile):
    """A WAV file. ``kind`` is the sample type: "u1", "<i2", "i3" (24 bits), "<i4", "<f4" or "<f8"."""

    data: memoryview
    kind: str

    @property
    def exact_parts(self) -> bool:
        """True for integers, since only NaN and infinite samples can reveal damage after the header."""
        return self.stores_integers

    @property
    def stores_integers(self) -> bool:
        return self.kind not in {"<f4", "<f8"}

    def read(self, start: int, stop: int) -> Clip:
        width = int(self.kind[-1]) * self.channels
        raw = self.data[start * width : stop * width]
        samples = _to_float32(raw, self.kind)
        return samples.reshape(stop - start, self.channels)


def open_wav(data: memoryview) -> Wav | None:
    """Parse the headers of a WAV file; return None if its samples are compressed.

    Raises:
        BadClip: the file is truncated or damaged.
    """
    form: tuple[int, ...] | None = None
    offset = 12
    while offset + 8 <= len(data):
        name, size = bytes(data[offset : offset + 4]), int.from_bytes(data[offset + 4 : offset + 8], "little")
        offset += 8
        if name == b"fmt ":
            form = _parse_format(data[offset : offset + min(size, 40)])
            if form[:2] not in {(f, b) for f, b in _SAMPLE_TYPES}:
                return None
        if name == b"data":
            if form is None:
                raise BadClip("WAV: the data chunk comes before the format chunk: damaged")
            return _open_samples(data, offset, size, form)
        offset += size + size % 2
    raise BadClip("WAV: it has no data chunk: truncated or damaged")


def _parse_format(chunk: memoryview) -> tuple[int, ...]:
    """Return the format number, bits per sample, rate, channels and bytes per frame."""
    if len(chunk) < 16:
        raise BadClip("WAV: the format chunk is cut off: truncated or damaged")
    number, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", chunk)
    if number == _EXTENSIBLE:
        if len(chunk) < 40:
            raise BadClip("WAV: the extensible format chunk is cut off: truncated or damaged")
        number = int.from_bytes(chunk[24:26], "little") if bytes(chunk[26:40]) == _GUID_TAIL else _EXTENSIBLE
    return number, bits, rate, channels, align


def _open_samples(data: memoryview, offset: int, size: int, form: tuple[int, ...]) -> Wav:
    number, bits, rate, channels, align = form
    if not channels or not rate:
        raise BadClip(f"WAV: {channels} channels at {rate} Hz: damaged")
    if align != channels * bits // 8:
        raise BadClip(f"WAV: {align} bytes for {channels} samples of {bits} bits: damaged")
    available = len(data) - offset
    if size == _UNKNOWN_SIZE:
        size = available - available % align
    if size > available:
        raise BadClip(f"WAV: the header claims {size:,} bytes of samples, the file holds {available:,}: truncated")
    if size % align:
        raise BadClip(f"WAV: {size:,} bytes of samples are not a multiple of {align}, the bytes per frame: damaged")
    return Wav(size // align, rate, channels, data[offset : offset + size], _SAMPLE_TYPES[number, bits])


def _to_float32(raw: memoryview, kind: str) -> Clip:
    """Return samples as float32; integers are divided by a power of two to lie in [-1, 1)."""
    if kind == "<i2":
        result: Clip = np.multiply(np.frombuffer(raw, kind), np.float32(2**-15), dtype=np.float32)
        return result
    if kind == "u1":
        return (np.frombuffer(raw, kind).astype(np.float32) - np.float32(128)) * np.float32(2**-7)
    if kind == "i3":
        widened = np.zeros((len(raw) // 3, 4), np.uint8)
        widened[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return widened.view("<i4")[:, 0].astype(np.float32) * np.float32(2**-31)
    if kind == "<i4":
        return np.frombuffer(raw, kind).astype(np.float32) * np.float32(2**-31)
    return np.frombuffer(raw, kind).astype(np.float32)  # large doubles become inf, which the caller rejects
