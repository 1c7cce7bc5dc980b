"""Change the length of clips: crop, random crop, trim, and pad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from cedar.core.columns import OBJECT, ColumnType, TensorType
from cedar.core.errors import PipelineError
from cedar.operators.algebra import spatial
from cedar.operators.audio.clips import (
    BadClip,
    Clip,
    ClipTransform,
    as_clip,
    check_choice,
    check_count,
    check_number,
    clip_shape,
)
from cedar.operators.audio.decode import part_reader
from cedar.operators.draws import Draws


@spatial
@dataclass(frozen=True)
class Crop(ClipTransform):
    """Keep ``length`` samples from ``start`` on, or fewer if the clip ends earlier.

    Directly after ``decode``, only these samples of an integer WAV file are read. Cropping before ``resample`` is
    faster, but changes samples near the cut slightly, since the resampling filter lacks the samples past the cut.

    Args:
        length: number of samples to keep (seconds times the rate).
        start: index of the first sample to keep.

    Examples:
        >>> Crop(2, start=1)(np.float32([1, 2, 3, 4]))
        array([2., 3.], dtype=float32)
    """

    length: int
    start: int = 0

    def __post_init__(self) -> None:
        check_count("crop", "length", self.length)
        check_count("crop", "start", self.start, 0)

    def result(self, *types: Any) -> ColumnType:
        shape = clip_shape(self, types[0])
        if shape is None:
            return OBJECT
        start, stop = self.window(shape[0], None)
        return TensorType((stop - start, *shape[1:]), "float32")

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        clip = as_clip(values[0])
        start, stop = self.window(len(clip), None)
        return clip[start:stop]

    def window(self, samples: int, draw: Any) -> tuple[int, int]:
        start = min(self.start, samples)
        return start, min(samples, start + self.length)

    def part_of(self, decode: Any) -> Callable[..., Clip] | None:
        return part_reader(decode, self.window)


@spatial
@dataclass(frozen=True)
class RandomCrop(ClipTransform):
    """Keep ``length`` samples from a position that is drawn uniformly; shorter clips stay unchanged.

    Directly after ``decode``, only these samples of an integer WAV file are read. For parts of long FLAC files
    see ``decode_random``.

    Args:
        length: number of samples to keep (seconds times the rate).

    Examples:
        >>> from cedar.operators.draws import Draws
        >>> RandomCrop(2)(np.float32([1, 2, 3, 4]), draws=Draws(np.array([7], dtype=np.uint64))).shape
        (2,)
    """

    length: int
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("random_crop", "length", self.length)

    def result(self, *types: Any) -> ColumnType:
        shape = clip_shape(self, types[0])
        return OBJECT if shape is None else TensorType((min(shape[0], self.length), *shape[1:]), "float32")

    def draw_rows(self, draws: Draws) -> Sequence[Any]:
        return list(draws.uniform(1)[:, 0])

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        clip = as_clip(values[0])
        start, stop = self.window(len(clip), draw)
        return clip[start:stop]

    def window(self, samples: int, draw: Any) -> tuple[int, int]:
        length = min(samples, self.length)
        start = int(draw * (samples - length + 1))
        return start, start + length

    def describe_row(self, draw: Any, *values: Any) -> dict[str, Any]:
        return dict(zip(("start", "stop"), self.window(len(values[0]), draw), strict=True))

    def part_of(self, decode: Any) -> Callable[..., Clip] | None:
        return part_reader(decode, self.window)


@dataclass(frozen=True)
class Pad(ClipTransform):
    """Pad clips with zeros at the end to exactly ``length`` samples. The column becomes an array (rows, length).

    Args:
        length: number of samples.
        longer: "fail" rejects longer clips; "crop" keeps their first ``length`` samples.
        channels: number of channels of the clips, which makes the result (rows, length, channels); None for (samples,).

    Examples:
        >>> Pad(4)(np.float32([1, 2]))
        array([1., 2., 0., 0.], dtype=float32)
    """

    length: int
    longer: Literal["fail", "crop"] = "fail"
    channels: int | None = None

    def __post_init__(self) -> None:
        check_count("pad", "length", self.length)
        check_choice("pad", "longer", self.longer, ("fail", "crop"))
        if self.channels is not None:
            check_count("pad", "channels", self.channels)

    def result(self, *types: Any) -> ColumnType:
        shape = clip_shape(self, types[0])
        if shape is not None and shape[1:] != self.rest:
            raise PipelineError(f"audio.pad: clips of {list(shape)} need channels={shape[1] if shape[1:] else None}")
        return TensorType((self.length, *self.rest), "float32")

    @property
    def rest(self) -> tuple[int, ...]:
        return () if self.channels is None else (self.channels,)

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        clip = as_clip(values[0])
        if clip.shape[1:] != self.rest:
            channels_text = f"{clip.shape[1]} channels" if clip.ndim == 2 else "one channel"
            raise BadClip(
                f"a clip of {channels_text} in a column of {self.channels or 'one'}",
                "decode with mono=True, or give channels=",
            )
        if len(clip) > self.length and self.longer == "fail":
            fix = 'raise length, crop first, or give longer="crop"'
            raise BadClip(f"a clip of {len(clip):,} samples, more than {self.length:,}", fix)
        result = np.empty((self.length, *self.rest), np.float32) if out is None else out
        kept = min(len(clip), self.length)
        result[:kept] = clip[:kept]
        result[kept:] = 0
        return result


@dataclass(frozen=True)
class Trim(ClipTransform):
    """Remove silence at the start and end of clips. Single-channel results equal ``librosa.effects.trim``.

    The power of a frame is the mean square of its samples over all channels. Frames are centered, with zeros beyond the
    clip's ends. The result extends from the first to the last frame that is less than ``below`` dB softer than the
    loudest frame. Empty and all-zero clips become empty.

    Args:
        below: frames that are at least this many dB softer than the loudest frame count as silence.
        frame: length of a frame in samples.
        hop: samples between the centers of consecutive frames; clips are cut at multiples of this.

    Examples:
        >>> clip = np.concatenate([np.zeros(4096), np.ones(1000), np.zeros(4096)]).astype(np.float32)
        >>> Trim(frame=256, hop=64)(clip).shape
        (1216,)
    """

    below: float = 60.0
    frame: int = 2048
    hop: int = 512

    def __post_init__(self) -> None:
        check_number("trim", "below", self.below, 0, open=True)
        check_count("trim", "frame", self.frame, 2)
        check_count("trim", "hop", self.hop)

    def result(self, *types: Any) -> ColumnType:
        clip_shape(self, types[0])
        return OBJECT

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        clip = as_clip(values[0])
        powers = frame_powers(clip, self.frame, self.hop)
        loudest = powers.max(initial=0.0)
        if np.isnan(loudest) or np.isinf(loudest):
            raise BadClip("a clip with NaN or infinity has no loudness")
        if loudest == 0:
            return clip[:0]
        loud = np.flatnonzero(powers > loudest * 10 ** (-self.below / 10))
        return clip[loud[0] * self.hop : min(len(clip), (loud[-1] + 1) * self.hop)]


def frame_powers(clip: Clip, frame: int, hop: int) -> npt.NDArray[np.float64]:
    """Return the mean square of each frame centered on samples 0, hop, 2 hop, ...; float64."""
    if not len(clip):
        return np.zeros(0)
    squares = np.square(clip, dtype=np.float64)
    if clip.ndim == 2:
        squares = squares.mean(axis=1)
    if not np.isfinite(squares).all():
        return np.array([np.nan])
    padded = np.zeros(len(squares) + frame // 2 * 2)
    padded[frame // 2 : frame // 2 + len(squares)] = squares
    if len(padded) < frame:
        return np.full(1, squares.sum() / frame)
    frames = np.lib.stride_tricks.sliding_window_view(padded, frame)[::hop]
    return np.asarray(frames.mean(axis=1), dtype=np.float64)
