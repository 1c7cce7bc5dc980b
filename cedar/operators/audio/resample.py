"""Resampling, by soxr: the library that librosa uses, and torchaudio's users reach for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cedar.core.columns import OBJECT, UNKNOWN, ColumnType
from cedar.core.errors import PipelineError
from cedar.core.libraries import library
from cedar.operators.algebra import resampling
from cedar.operators.audio.clips import BadClip, Clip, ClipTransform, as_clip, check_choice, check_count, clip_type
from cedar.operators.audio.libraries import require
from cedar.operators.audio.opened import most_samples, within

QUALITIES = ("QQ", "LQ", "MQ", "HQ", "VHQ")


@resampling
@dataclass(frozen=True)
class Resample(ClipTransform):
    """A clip at another sampling rate, by soxr's band-limited interpolation.

    Reads the clips, and the rate of each from a second column unless ``source`` says it. Object columns come out, since
    lengths change.

    Args:
        rate: in Hz, of the result.
        source: in Hz, of all clips; None if a column has it.
        quality: soxr's: "HQ" (20 bits) is what librosa uses; "VHQ" (28 bits), "MQ" (16), "LQ", and "QQ" (cubic).
        most: samples of all channels that may come out, as for ``decode``.

    A clip of no samples stays so. Its length becomes samples x rate / source, rounded.

    Examples:
        >>> clip = np.sin(np.arange(48000, dtype=np.float32) / 100)
        >>> Resample(16000, source=48000)(clip).shape, Resample(16000)(clip, 48000).shape
        ((16000,), (16000,))
    """

    rate: int
    source: int | None = None
    quality: str = "HQ"
    most: int | None = None
    arity: ClassVar[int | None] = None
    outputs: ClassVar[int | None] = 1

    def __post_init__(self) -> None:
        require("resample", "soxr")
        check_count("resample", "rate", self.rate)
        if self.source is not None:
            check_count("resample", "source", self.source)
        check_quality("resample", self.quality)
        if self.most is None:
            object.__setattr__(self, "most", most_samples())
        check_count("resample", "most", self.most)

    def result(self, *types: Any) -> ColumnType:
        if len(types) != (1 if self.source is not None else 2):
            wants = "the clips" if self.source is not None else "the clips and their rates, or source="
            raise PipelineError(f"audio.resample reads {wants}, not {len(types)} columns", fix="name them in map")
        clip_type(self, types[0])
        if len(types) == 2 and types[1] != UNKNOWN and not _whole(types[1]):
            raise self.unfit(types[1], "rates as integers")
        return OBJECT

    def one(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        clip = as_clip(values[0])
        source = self.source if self.source is not None else values[1]
        if source is None or source < 1:
            raise BadClip(f"a sampling rate of {source} Hz", "fill or drop such rows")
        assert self.most is not None
        return resampled(clip, int(source), self.rate, self.quality, self.most)


def resampled(clip: Clip, source: int, rate: int, quality: str, most: int) -> Clip:
    """A clip at another rate; the clip itself where the rate is the same.

    Raises:
        BadClip: more than ``most`` samples would come out, as of a damaged header that says 1 Hz.
    """
    if source == rate or not len(clip):
        return clip
    within(round(len(clip) * rate / source), clip.size // len(clip), most)
    made: Clip = library("soxr", "audio", "audio").resample(np.ascontiguousarray(clip), source, rate, quality)
    return made


def check_quality(name: str, quality: Any) -> None:
    """Refuse what is not a quality of soxr's."""
    check_choice(name, "quality", quality, QUALITIES)


def _whole(kind: Any) -> bool:
    import pyarrow.types as pt

    return not isinstance(kind, type(OBJECT)) and hasattr(kind, "id") and bool(pt.is_integer(kind))
