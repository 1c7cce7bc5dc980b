"""The mel scale, and triangular filters on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Scale = Literal["htk", "slaney"]
Floats = npt.NDArray[np.float64]

_STEP = 200.0 / 3  # Hz per mel of Slaney's scale, below the corner
_CORNER = 1000.0
_LOG_STEP = np.log(6.4) / 27.0  # per mel, above it


def to_mel(hertz: Any, scale: Scale) -> Floats:
    """Frequencies in mel.

    "htk" is 2595 log10(1 + f / 700) (O'Shaughnessy, Speech Communication, 1987; HTK). "slaney" is linear to 1 kHz and
    logarithmic above (Slaney, Auditory Toolbox, 1998).

    Example:
        >>> to_mel([0, 700, 1000], "slaney").round(9).tolist()
        [0.0, 10.5, 15.0]
    """
    hertz = np.asarray(hertz, dtype=np.float64)
    mel: Floats
    if scale == "htk":
        mel = 2595.0 * np.log10(1.0 + hertz / 700.0)
    else:
        above = _CORNER / _STEP + np.log(np.maximum(hertz, _CORNER) / _CORNER) / _LOG_STEP
        mel = np.where(hertz < _CORNER, hertz / _STEP, above)
    return mel


def to_hertz(mel: Any, scale: Scale) -> Floats:
    """The inverse of ``to_mel``."""
    mel = np.asarray(mel, dtype=np.float64)
    hertz: Floats
    if scale == "htk":
        hertz = 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    else:
        corner = _CORNER / _STEP
        above = _CORNER * np.exp(_LOG_STEP * (np.maximum(mel, corner) - corner))
        hertz = np.where(mel < corner, mel * _STEP, above)
    return hertz


def mel_filters(
    n_fft: int, rate: float, n_mels: int, f_min: float, f_max: float, scale: Scale, norm: Literal["slaney"] | None
) -> Floats:
    """float64[n_mels, n_fft // 2 + 1]: triangles of height 1 whose corners are equally spaced in mel.

    With norm "slaney" each is divided by half its width in Hz, so that its area is 1.

    Example:
        >>> mel_filters(8, 8, 2, 0, 4, "htk", None).round(2)
        array([[0.  , 0.75, 0.5 , 0.  , 0.  ],
               [0.  , 0.  , 0.5 , 0.75, 0.  ]])
    """
    bins = np.arange(n_fft // 2 + 1) * (rate / n_fft)
    corners = to_hertz(np.linspace(to_mel(f_min, scale), to_mel(f_max, scale), n_mels + 2), scale)
    widths = np.diff(corners)[:, None]
    rising = (bins - corners[:-2, None]) / widths[:-1]
    falling = (corners[2:, None] - bins) / widths[1:]
    filters = np.maximum(0.0, np.minimum(rising, falling))
    if norm == "slaney":
        filters *= (2.0 / (corners[2:] - corners[:-2]))[:, None]
    return np.asarray(filters)


@dataclass(frozen=True, eq=False)
class Bands:
    """Filters by bin: a bin lies between two corners, so it belongs to two bands at most.

    Args:
        low: the first bin of any weight; ``high`` is past the last one.
        rows: int64[bins]: the first band of a bin, counted from 1.
        weights: float32[bins, 2]: the weight in that band and in the next.
    """

    low: int
    high: int
    rows: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


@lru_cache(maxsize=32)
def bands(
    n_fft: int, rate: float, n_mels: int, f_min: float, f_max: float, scale: Scale, norm: Literal["slaney"] | None
) -> Bands:
    """The filters of ``mel_filters``, by bin."""
    filters = mel_filters(n_fft, rate, n_mels, f_min, f_max, scale, norm)
    rows = np.zeros(filters.shape[1], dtype=np.int64)
    weights = np.zeros((filters.shape[1], 2), dtype=np.float32)
    for k in range(filters.shape[1]):
        held = np.flatnonzero(filters[:, k])
        if len(held):
            rows[k] = min(int(held[0]) + 1, n_mels)
            for band in held.tolist():
                weights[k, band + 1 - rows[k]] = filters[band, k]
    used = np.flatnonzero(weights.any(axis=1))
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    return Bands(low, high, rows, weights)
