"""Change the speed of clips without changing their pitch.

The method is the phase vocoder: Flanagan and Golden, Bell System Technical Journal, 1966.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cedar.core.columns import OBJECT, ColumnType
from cedar.core.errors import invalid_call
from cedar.operators.audio.clips import (
    Clip,
    ClipTransform,
    apply_per_channel,
    as_clip,
    check_count,
    check_finite,
    check_number,
    clip_shape,
)
from cedar.operators.audio.log_mel import hann
from cedar.operators.draws import Draws

Spectrum = npt.NDArray[np.complex64]


@dataclass(frozen=True)
class TimeStretch(ClipTransform):
    """Make a clip ``speed`` times as fast at the same pitch. The new length is samples / speed, rounded.

    Uses the phase vocoder of ``librosa.effects.time_stretch``, which interpolates the magnitudes of two adjacent frames
    and advances the phase by the difference of their phases. At speed 1, the clip stays unchanged.

    Args:
        speed: factor from 0.01 to 100; above 1, the clip becomes shorter.
        n_fft: length of a frame in samples.
        hop_length: samples between consecutive frames; by default a quarter of ``n_fft``.

    An empty clip stays empty; clips with NaN or infinity fail.

    Examples:
        >>> TimeStretch(2.0)(np.sin(np.arange(16000, dtype=np.float32) * 0.1)).shape
        (8000,)
    """

    speed: float
    n_fft: int = 2048
    hop_length: int | None = None

    def __post_init__(self) -> None:
        check_number("time_stretch", "speed", self.speed, 0.01, 100)
        _check_frames("time_stretch", self)

    def result(self, *types: Any) -> ColumnType:
        clip_shape(self, types[0])
        return OBJECT

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        return stretch_clip(as_clip(values[0]), self.speed, self.n_fft, self.hop_length)


@dataclass(frozen=True)
class RandomTimeStretch(ClipTransform):
    """Change the speed of each clip by a factor drawn uniformly from ``low`` to ``high``, at the same pitch.

    Args:
        low, high: range of the factor, within 0.01 to 100; see ``speed`` of ``time_stretch``.
        n_fft, hop_length: as for ``time_stretch``.

    Examples:
        >>> from cedar.operators.draws import Draws
        >>> draws = Draws(np.array([5], dtype=np.uint64))
        >>> bool(500 <= len(RandomTimeStretch(0.5, 2.0)(np.zeros(1000, np.float32), draws=draws)) <= 2000)
        True
    """

    low: float
    high: float
    n_fft: int = 2048
    hop_length: int | None = None
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("random_time_stretch", "low", self.low, 0.01, 100)
        check_number("random_time_stretch", "high", self.high, 0.01, 100)
        if self.low > self.high:
            raise invalid_call(f"audio.random_time_stretch: low={self.low} is above high={self.high}")
        _check_frames("random_time_stretch", self)

    def result(self, *types: Any) -> ColumnType:
        clip_shape(self, types[0])
        return OBJECT

    def draw_rows(self, draws: Draws) -> Sequence[Any]:
        return list(self.low + draws.uniform(1)[:, 0] * (self.high - self.low))

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        return stretch_clip(as_clip(values[0]), draw, self.n_fft, self.hop_length)

    def describe_row(self, draw: Any, *values: Any) -> dict[str, Any]:
        return {"speed": float(draw)}


def _check_frames(name: str, transform: TimeStretch | RandomTimeStretch) -> None:
    check_count(name, "n_fft", transform.n_fft, 4)
    if transform.hop_length is not None:
        check_count(name, "hop_length", transform.hop_length)
        if transform.hop_length > transform.n_fft // 2:
            raise invalid_call(
                f"audio.{name}: hop_length={transform.hop_length} is above half of n_fft={transform.n_fft}",
                fix="choose hop_length of at most n_fft // 2",
            )


def stretch_clip(clip: Clip, speed: float, n_fft: int, hop_length: int | None) -> Clip:
    """Return a clip that is ``speed`` times as fast.

    Raises:
        BadClip: the clip holds NaN or infinity.
    """
    check_finite(clip)
    if speed == 1 or not len(clip):
        return clip
    hop = hop_length or max(1, n_fft // 4)
    length = round(len(clip) / speed)
    return apply_per_channel(
        lambda channel: synthesis(vocoder(analysis(channel, n_fft, hop), speed, hop), n_fft, hop, length), clip
    )


def analysis(clip: Clip, n_fft: int, hop: int) -> Spectrum:
    """Return the spectra of frames centered on samples 0, hop, ... of a zero-padded clip: complex64[frames, bins]."""
    padded = np.zeros(len(clip) + n_fft, np.float32)
    padded[n_fft // 2 : n_fft // 2 + len(clip)] = clip
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop]
    return np.fft.rfft(frames * hann(n_fft).astype(np.float32)).astype(np.complex64, copy=False)


def vocoder(spectrum: Spectrum, speed: float, hop: int) -> Spectrum:
    """Return spectra interpolated at the frame positions 0, speed, 2 * speed, ..."""
    positions = np.arange(0, len(spectrum), speed)
    lower = positions.astype(np.int64)
    fraction = (positions - lower).astype(np.float32)[:, None]
    last = np.zeros((2, spectrum.shape[1]), np.complex64)
    spectrum = np.concatenate([spectrum, last])
    sizes, phases = np.abs(spectrum), np.angle(spectrum).astype(np.float64)
    bins = spectrum.shape[1]
    expected = np.linspace(0, np.pi * hop, bins)
    advance = phases[lower + 1] - phases[lower] - expected
    advance -= 2 * np.pi * np.round(advance / (2 * np.pi))
    steps = np.concatenate([phases[:1], (expected + advance)[:-1]])
    turned = np.cumsum(steps, axis=0)
    size = (1 - fraction) * sizes[lower] + fraction * sizes[lower + 1]
    return (size * np.exp(1j * turned)).astype(np.complex64)


def synthesis(spectrum: Spectrum, n_fft: int, hop: int, length: int) -> Clip:
    """Convert spectra to a clip: overlap-add, then division by the sum of the squared windows."""
    window = hann(n_fft)
    frames = np.fft.irfft(spectrum, n_fft).astype(np.float64) * window
    total = np.zeros(hop * (len(frames) - 1) + n_fft)
    weight = np.zeros_like(total)
    for number, frame in enumerate(frames):
        total[number * hop : number * hop + n_fft] += frame
        weight[number * hop : number * hop + n_fft] += window * window
    covered = weight > np.finfo(np.float32).tiny
    total[covered] /= weight[covered]
    clip = np.zeros(length, np.float32)
    part = total[n_fft // 2 : n_fft // 2 + length]
    clip[: len(part)] = part
    return clip
