"""Decode Ogg Vorbis and Opus, MP3, AIFF, CAF, AU and compressed WAV with libsndfile.

libsndfile also decodes FLAC if miniaudio is not installed or the header does not have the length.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cedar.core.packages import library
from cedar.operators.audio.clips import BadClip, Clip
from cedar.operators.audio.opened import AudioFile

_BLOCK = 1 << 16  # frames
_FORMATS = frozenset(
    {"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "MPEG", "AIFF", "CAF", "AU"}
)  # cedar does not accept the other formats of libsndfile


@dataclass(frozen=True)
class SoundFile(AudioFile):
    """A file that libsndfile reads.

    Args:
        format: libsndfile's name of the format: "OGG", "MP3", ...
        exact_seek: whether decoding from the middle of the file gives identical samples, as with lossless formats.
    """

    data: memoryview
    format: str
    exact_seek: bool

    exact_parts = False

    def read(self, start: int, stop: int) -> Clip:
        with _opened(self.data) as file:
            if self.exact_seek:
                if start:
                    file.seek(start)
                return self._read_blocks(file, start, stop)
            return self._read_blocks(file, 0, stop)[start:]

    def _read_blocks(self, file: Any, start: int, stop: int) -> Clip:
        """Read frames in blocks, so that an incorrect length in the header does not cause a huge allocation."""
        blocks, remaining = [], stop - start
        while remaining:
            block = file.read(min(remaining, _BLOCK), dtype="float32", always_2d=True)
            if not len(block):
                break
            blocks.append(block)
            remaining -= len(block)
        if remaining and self.format != "MP3":  # the length of MP3 files is an estimate
            raise BadClip(f"{self.format}: truncated or damaged after {stop - remaining:,} of {self.frames:,} samples")
        return np.concatenate(blocks) if blocks else np.zeros((0, self.channels), np.float32)


def open_file(data: memoryview) -> SoundFile:
    """Open a file of any accepted format that libsndfile reads.

    Raises:
        BadClip: the file is damaged or of another format.
    """
    with _opened(data) as file:
        if file.format not in _FORMATS:
            raise BadClip(f"{file.format} is not a supported format", "give WAV, FLAC, Ogg, MP3, AIFF, CAF or AU")
        lossless = file.format in {"FLAC", "AIFF", "CAF", "AU"} and file.subtype.startswith(("PCM", "FLOAT", "DOUBLE"))
        frames, rate, channels = int(file.frames), int(file.samplerate), int(file.channels)
        name, exact_seek = file.format, lossless and file.seekable()
    if frames < 0 or rate < 1 or channels < 1:
        raise BadClip(f"{name}: {frames} samples of {channels} channels at {rate} Hz: damaged")
    return SoundFile(frames, rate, channels, data, name, exact_seek)


class _ClampedBytes(io.BytesIO):
    """A file in memory that clamps offsets from damaged headers, since libsndfile's callbacks must not raise."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell()}.get(whence, self.getbuffer().nbytes)
        return super().seek(min(max(0, origin + offset), 1 << 62))


@contextmanager
def _opened(data: memoryview) -> Iterator[Any]:
    soundfile = library("soundfile", "audio", "audio")
    try:
        with soundfile.SoundFile(_ClampedBytes(data)) as file:
            yield file
    except (soundfile.SoundFileError, ValueError, TypeError, OSError) as error:
        raise BadClip(f"libsndfile: {str(error).rstrip('.')}: truncated or damaged") from error
