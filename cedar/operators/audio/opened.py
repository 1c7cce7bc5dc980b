"""What a decoder knows of a file before it decodes, and the limit of what it may ask for."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

from cedar.core.errors import PipelineError, user_site
from cedar.operators.audio.clips import BadClip, Clip

DEFAULT_MOST = 1 << 28  # samples of all channels: 1 GiB of float32
_VARIABLE = "CEDAR_MAX_SAMPLES"


@dataclass(frozen=True)
class AudioFile(ABC):
    """A file whose header has been read.

    Args:
        frames: samples per channel.
        rate: in Hz.
    """

    frames: int
    rate: int
    channels: int

    @property
    @abstractmethod
    def parts(self) -> bool:
        """Whether a part can be read with no regard to the rest, damage included."""

    @property
    def whole_numbers(self) -> bool:
        """Whether samples are stored as such, so that none can be NaN."""
        return False

    @abstractmethod
    def read(self, start: int, stop: int) -> Clip:
        """float32[stop - start, channels]: the frames from ``start`` to ``stop``, within the file.

        Raises:
            BadClip: they cannot be decoded.
        """


def most_samples() -> int:
    """The limit: 2^28 samples, or what the environment variable CEDAR_MAX_SAMPLES says.

    Raises:
        PipelineError: it holds no integer above 0.
    """
    text = os.environ.get(_VARIABLE)
    if text is None:
        return DEFAULT_MOST
    if not text.strip().isdecimal() or not int(text):
        raise PipelineError(f"{_VARIABLE}={text!r}: an integer above 0 is expected", site=user_site())
    return int(text)


def within(frames: int, channels: int, most: int) -> None:
    """Refuse what asks for more than a limit.

    Raises:
        BadClip: so.
    """
    if frames * channels > most:
        raise BadClip(
            f"{frames:,} samples of {channels} channels are more than the limit of {most:,}",
            f"if you trust the file, raise the limit before the pipeline is built: {_VARIABLE}={frames * channels}; "
            "or take a part: decode(start=, duration=)",
        )
