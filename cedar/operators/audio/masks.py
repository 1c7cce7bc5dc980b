"""SpecAugment: mask times and frequencies of spectrograms (Park et al., Interspeech 2019, arXiv 1904.08779)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cedar.core.columns import OBJECT, ColumnType, TensorType
from cedar.operators.audio.clips import Clip, ClipTransform, as_clip, check_count, check_number, clip_shape
from cedar.operators.draws import Draws


class _Mask(ClipTransform):
    """Base class: sets random ranges along one axis of a spectrogram to a constant value."""

    random: ClassVar[bool] = True
    axis: ClassVar[int]
    width: int
    count: int
    value: float

    def result(self, *types: Any) -> ColumnType:
        shape = clip_shape(self, types[0], (2, 3))
        return OBJECT if shape is None else TensorType(shape, "float32")

    def draw_rows(self, draws: Draws) -> Sequence[Any]:
        return list(draws.uniform(2 * self.count).reshape(-1, self.count, 2))

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        spectrogram = as_clip(values[0], (2, 3))
        if out is None:
            result = spectrogram.copy()
        else:
            result = out
            result[:] = spectrogram
        across = np.moveaxis(result, self.axis, 0)
        for start, stop in self.stretches(draw, len(across)):
            across[start:stop] = self.value
        return result

    def stretches(self, draw: Any, size: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each mask along an axis of length ``size``."""
        longest = self.max_width(size)
        widths = [int(first * (longest + 1)) for first, _ in draw]
        starts = [int(second * (size - width + 1)) for (_, second), width in zip(draw, widths, strict=True)]
        return [(start, start + width) for start, width in zip(starts, widths, strict=True)]

    def describe_row(self, draw: Any, *values: Any) -> dict[str, Any]:
        return {"masks": self.stretches(draw, values[0].shape[self.axis])}

    def max_width(self, size: int) -> int:
        """Return the maximum length of a mask along an axis of length ``size``."""
        return min(self.width, size)


@dataclass(frozen=True)
class TimeMask(_Mask):
    """Mask random ranges of frames of a spectrogram (..., bands, frames).

    The width of each mask is drawn uniformly from 0 to ``width`` frames, then the position. Masks may overlap.

    Args:
        width: maximum number of frames per mask.
        count: number of masks.
        share: maximum width of a mask as a fraction of all frames.
        value: the value written into masked frames.

    Examples:
        >>> from cedar.operators.draws import Draws
        >>> masked = TimeMask(3)(np.ones((2, 8), np.float32), draws=Draws(np.array([5], dtype=np.uint64)))
        >>> masked.shape, bool((masked[0] == masked[1]).all()), bool((masked[0] == 0).sum() <= 3)
        ((2, 8), True, True)
    """

    width: int
    count: int = 1
    share: float = 1.0
    value: float = 0.0
    axis: ClassVar[int] = -1

    def __post_init__(self) -> None:
        _check("time_mask", self)
        check_number("time_mask", "share", self.share, 0, 1)

    def max_width(self, size: int) -> int:
        return min(self.width, int(size * self.share))


@dataclass(frozen=True)
class FrequencyMask(_Mask):
    """Mask random ranges of bands of a spectrogram (..., bands, frames).

    The width of each mask is drawn uniformly from 0 to ``width`` bands, then the position. Masks may overlap.

    Args:
        width: maximum number of bands per mask.
        count: number of masks.
        value: the value written into masked bands.

    Examples:
        >>> from cedar.operators.draws import Draws
        >>> masked = FrequencyMask(3)(np.ones((8, 2), np.float32), draws=Draws(np.array([5], dtype=np.uint64)))
        >>> bool((masked[:, 0] == masked[:, 1]).all())
        True
    """

    width: int
    count: int = 1
    value: float = 0.0
    axis: ClassVar[int] = -2

    def __post_init__(self) -> None:
        _check("frequency_mask", self)


def _check(name: str, mask: _Mask) -> None:
    check_count(name, "width", mask.width, 0)
    check_count(name, "count", mask.count)
    check_number(name, "value", mask.value, float(np.finfo(np.float32).min))
