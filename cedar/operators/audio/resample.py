"""Resample clips with soxr, the library that librosa uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cedar.core.columns import OBJECT, UNKNOWN, ColumnType
from cedar.core.errors import PipelineError
from cedar.core.packages import library
from cedar.operators.algebra import resampling
from cedar.operators.audio.clips import BadClip, Clip, ClipTransform, as_clip, check_choice, check_count, clip_shape
from cedar.operators.audio.libraries import require_libraries
from cedar.operators.audio.opened import check_sample_limit, max_samples

QUALITIES = ("QQ", "LQ", "MQ", "HQ", "VHQ")


@resampling
@dataclass(frozen=True)
class Resample(ClipTransform):
    """Resample clips to another sampling rate by soxr's band-limited interpolation.

    Without ``source``, a second column has the rate of each clip. The result is an object column, since lengths may
    differ.

    Args:
        rate: sampling rate of the result in Hz.
        source: sampling rate of all clips in Hz; None to read it from the second column.
        quality: soxr's quality: "VHQ" (28 bits), "HQ" (20, librosa's default), "MQ" (16), "LQ", or "QQ" (cubic).
        most: maximum number of samples of a resampled clip, over all channels, as for ``decode``.

    The new length is samples * rate / source, rounded. An empty clip stays empty.

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
        require_libraries("resample", "soxr")
        check_count("resample", "rate", self.rate)
        if self.source is not None:
            check_count("resample", "source", self.source)
        check_quality("resample", self.quality)
        if self.most is None:
            object.__setattr__(self, "most", max_samples())
        check_count("resample", "most", self.most)

    def result(self, *types: Any) -> ColumnType:
        if len(types) != (1 if self.source is not None else 2):
            wants = "the clips" if self.source is not None else "the clips and their rates, or source="
            raise PipelineError(f"audio.resample reads {wants}, not {len(types)} columns", fix="name them in map")
        clip_shape(self, types[0])
        if len(types) == 2 and types[1] != UNKNOWN and not _whole(types[1]):
            raise self.unfit(types[1], "rates as integers")
        return OBJECT

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        clip = as_clip(values[0])
        source = self.source if self.source is not None else values[1]
        if source is None or source < 1:
            raise BadClip(f"a sampling rate of {source} Hz", "fill or drop such rows")
        assert self.most is not None
        return resample_clip(clip, int(source), self.rate, self.quality, self.most)


def resample_clip(clip: Clip, source: int, rate: int, quality: str, most: int) -> Clip:
    """Resample a clip; return it unchanged if the rates are equal.

    Raises:
        BadClip: the result would exceed ``most`` samples, for example if a damaged header has a rate of 1 Hz.
    """
    if source == rate or not len(clip):
        return clip
    check_sample_limit(round(len(clip) * rate / source), clip.size // len(clip), most)
    result: Clip = library("soxr", "audio", "audio").resample(np.ascontiguousarray(clip), source, rate, quality)
    return result


def check_quality(name: str, quality: Any) -> None:
    """Check that ``quality`` is one of soxr's qualities; raise PipelineError otherwise."""
    check_choice(name, "quality", quality, QUALITIES)


def _whole(kind: Any) -> bool:
    import pyarrow.types as pt

    return not isinstance(kind, type(OBJECT)) and hasattr(kind, "id") and bool(pt.is_integer(kind))
