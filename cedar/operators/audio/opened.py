"""The base class for audio files whose header has been read, and the limit on samples per file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

from cedar.core.errors import invalid_call
from cedar.operators.audio.clips import BadClip, Clip

DEFAULT_MAX_SAMPLES = 1 << 28  # samples of all channels: 1 GiB of float32
_VARIABLE = "CEDAR_MAX_SAMPLES"


@dataclass(frozen=True)
class AudioFile(ABC):
    """An audio file whose header has been read.

    Args:
        frames: number of samples per channel.
        rate: sampling rate in Hz.
    """

    frames: int
    rate: int
    channels: int

    @property
    @abstractmethod
    def exact_parts(self) -> bool:
        """Whether reading a part has the same result and errors as reading the whole file and then cutting it."""

    @property
    def stores_integers(self) -> bool:
        """Whether samples are stored as integers, so that they cannot be NaN."""
        return False

    @abstractmethod
    def read(self, start: int, stop: int) -> Clip:
        """Decode frames ``start`` to ``stop``, which must be within the file, to float32[stop - start, channels].

        Raises:
            BadClip: the frames cannot be decoded.
        """


def max_samples() -> int:
    """Return the maximum number of samples per file: the environment variable CEDAR_MAX_SAMPLES, or 2^28.

    Raises:
        PipelineError: the variable is not an integer above 0.
    """
    text = os.environ.get(_VARIABLE)
    if text is None:
        return DEFAULT_MAX_SAMPLES
    if not text.strip().isdecimal() or not int(text):
        raise invalid_call(f"{_VARIABLE}={text!r}: an integer above 0 is expected")
    return int(text)


def check_sample_limit(frames: int, channels: int, limit: int) -> None:
    """Check that ``frames`` frames of ``channels`` channels have at most ``limit`` samples.

    Raises:
        BadClip: there are more samples.
    """
    if frames * channels > limit:
        raise BadClip(
            f"{frames:,} samples of {channels} channels are more than the limit of {limit:,}",
            f"if you trust the file, raise the limit before the pipeline is built: {_VARIABLE}={frames * channels}; "
            "or take a part: decode(start=, duration=)",
        )
