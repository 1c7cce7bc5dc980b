"""Change the loudness of clips: fixed gain, random gain, normalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from cedar.core.columns import OBJECT, ColumnType, TensorType
from cedar.core.errors import invalid_call
from cedar.operators.algebra import pointwise
from cedar.operators.audio.clips import (
    Clip,
    ClipTransform,
    as_clip,
    check_choice,
    check_finite,
    check_number,
    clip_shape,
)
from cedar.operators.draws import Draws

_MAX_GAIN_DB = 200.0  # larger gains are rejected as mistakes


class _SameShape(ClipTransform):
    """Base class of transforms that keep the shape of a clip."""

    def result(self, *types: Any) -> ColumnType:
        shape = clip_shape(self, types[0])
        return OBJECT if shape is None else TensorType(shape, "float32")


@pointwise
@dataclass(frozen=True)
class Gain(_SameShape):
    """Multiply a clip by 10^(db / 20) in float32. Results are not clipped.

    Args:
        db: the gain in dB, from -200 to 200; negative values make the clip softer.

    Examples:
        >>> Gain(20.0)(np.float32([0.25]))
        array([2.5], dtype=float32)
    """

    db: float

    def __post_init__(self) -> None:
        check_number("gain", "db", self.db, -_MAX_GAIN_DB, _MAX_GAIN_DB)

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        return apply_gain(as_clip(values[0]), self.db, out)


@pointwise
@dataclass(frozen=True)
class RandomGain(_SameShape):
    """Apply a gain drawn uniformly from ``low`` to ``high`` dB to each clip. Results are not clipped.

    Args:
        low: the minimum gain in dB, at least -200; negative values make the clip softer.
        high: the maximum gain in dB, at most 200.

    Examples:
        >>> from cedar.operators.draws import Draws
        >>> clip = RandomGain(-6.0, 6.0)(np.float32([0.5]), draws=Draws(np.array([7], dtype=np.uint64)))
        >>> bool(0.25 < clip[0] < 1.0)
        True
    """

    low: float
    high: float
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("random_gain", "low", self.low, -_MAX_GAIN_DB, _MAX_GAIN_DB)
        check_number("random_gain", "high", self.high, -_MAX_GAIN_DB, _MAX_GAIN_DB)
        if self.low > self.high:
            raise invalid_call(f"audio.random_gain: low={self.low} is above high={self.high}")

    def draw_rows(self, draws: Draws) -> Sequence[Any]:
        return list(self.low + draws.uniform(1)[:, 0] * (self.high - self.low))

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        return apply_gain(as_clip(values[0]), draw, out)

    def describe_row(self, draw: Any, *values: Any) -> dict[str, Any]:
        return {"db": float(draw)}


def apply_gain(clip: Clip, db: float, out: Clip | None) -> Clip:
    """Return the clip multiplied by a gain in dB."""
    result: Clip = np.multiply(clip, np.float32(10.0 ** (float(db) / 20.0)), out=out)
    return result


@dataclass(frozen=True)
class Normalize(_SameShape):
    """Scale each clip separately, to a peak of 1 or to mean 0 and standard deviation 1.

    Args:
        to: "peak" scales the largest magnitude to 1. "standard" scales to mean 0 and standard deviation 1, computed in
            float64 over all samples and channels.

    Silent clips become zeros; with "standard", so do clips whose samples are all equal. Empty clips stay empty. Clips
    with NaN or infinity fail.

    Examples:
        >>> Normalize()(np.float32([0.25, -0.5]))
        array([ 0.5, -1. ], dtype=float32)
    """

    to: Literal["peak", "standard"] = "peak"

    def __post_init__(self) -> None:
        check_choice("normalize", "to", self.to, ("peak", "standard"))

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        clip = check_finite(as_clip(values[0]))
        if not clip.size:
            return clip
        if self.to == "peak":
            peak = max(clip.max(), -clip.min())
            result: Clip = np.divide(clip, peak, out=out) if peak > 0 else np.zeros_like(clip)
            return result
        flat = np.ascontiguousarray(clip).reshape(-1)
        mean = flat.mean(dtype=np.float64)
        deviations = flat - mean
        deviation = np.sqrt(np.square(deviations).mean())
        if clip.max() == clip.min() or deviation == 0:
            return np.zeros_like(clip)
        level: Clip = (deviations / deviation).astype(np.float32).reshape(clip.shape)
        return level
