"""Decode FLAC with dr_flac from the library miniaudio, which is 1.7 times as fast as libFLAC; samples are identical.

dr_flac reads the bytes in place, releases the GIL, and detects frames with a wrong checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cedar.core.packages import library
from cedar.operators.audio.clips import BadClip, Clip
from cedar.operators.audio.opened import AudioFile

_MAX_FRAME_SAMPLES = 65535  # maximum samples in a frame; frames have more than eight bytes


@dataclass(frozen=True)
class Flac(AudioFile):
    """A FLAC file; ``frames`` is the number of samples per channel in the header."""

    data: memoryview

    exact_parts = False  # reading a part does not detect damage elsewhere in the file
    stores_integers = True

    def read(self, start: int, stop: int) -> Clip:
        out = np.empty((stop - start, self.channels), np.float32)
        if not out.size:
            return out
        ffi, lib = _native()
        with _stream(self.data) as stream:
            if start and not lib.ma_dr_flac_seek_to_pcm_frame(stream, start):
                raise BadClip(f"FLAC: sample {start:,} cannot be found: truncated or damaged")
            got = lib.ma_dr_flac_read_pcm_frames_f32(stream, stop - start, ffi.from_buffer("float *", out))
        if got != stop - start:
            raise BadClip(f"FLAC: truncated or damaged after {start + got:,} of {self.frames:,} samples")
        return out


def open_flac(data: memoryview) -> Flac | None:
    """Open a FLAC file; return None if its header does not state the length.

    Raises:
        BadClip: the data is not a FLAC file, or the header has more samples than a file of this size can contain.
    """
    with _stream(data) as stream:
        frames, rate, channels = int(stream.totalPCMFrameCount), int(stream.sampleRate), int(stream.channels)
    if not frames:
        return None
    if not rate or not channels:
        raise BadClip(f"FLAC: {channels} channels at {rate} Hz: damaged")
    if frames > _MAX_FRAME_SAMPLES * (len(data) // 8):
        raise BadClip(f"FLAC: the header claims {frames:,} samples in {len(data):,} bytes: damaged")
    return Flac(frames, rate, channels, data)


@contextmanager
def _stream(data: memoryview) -> Iterator[Any]:
    ffi, lib = _native()
    buffer = ffi.from_buffer(data)
    stream = lib.ma_dr_flac_open_memory(buffer, len(data), ffi.NULL)
    if not stream:
        raise BadClip("FLAC: the header cannot be read: truncated or damaged")
    try:
        yield stream
    finally:
        lib.ma_dr_flac_close(stream)


def _native() -> tuple[Any, Any]:
    module = library("miniaudio", "audio", "audio")
    return module.ffi, module.lib
