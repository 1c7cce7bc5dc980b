"""Mel spectrograms of clips, linear or logarithmic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cedar.core.columns import OBJECT, ColumnType, TensorType
from cedar.core.errors import invalid_call
from cedar.operators import native
from cedar.operators.audio import mel_plain
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
from cedar.operators.audio.fft_plan import plan
from cedar.operators.audio.libraries import require_libraries


@dataclass(frozen=True)
class LogMel(ClipTransform):
    """Compute the logarithmic mel spectrogram of a clip: float32 (n_mels, frames) or (channels, n_mels, frames).

    Equals ``torchaudio.transforms.MelSpectrogram``, followed by ``AmplitudeToDB`` for log="db" or log(x + floor) for
    log="ln". Frames are multiplied by a periodic Hann window and Fourier transformed; magnitudes to the power of
    ``power`` are summed with triangular weights on the mel scale. The relative error is about 1e-5, due to float32.
    Clips of equal length, for example after ``pad``, give one array of (rows, n_mels, frames).

    Args:
        rate: sampling rate of the clips in Hz.
        n_fft: length of a frame in samples.
        hop_length: samples between the starts of consecutive frames; by default half a window.
        win_length: length of the window in samples, centered in the frame; by default ``n_fft``.
        n_mels: number of mel bands.
        f_min, f_max: frequency range of the bands in Hz; by default from 0 to half the rate.
        power: exponent of the magnitudes: 2 or 1.
        log: "db" for 10 log10 of powers or 20 log10 of magnitudes, "ln" for the natural logarithm, None for none.
        floor: for "db", the minimum (``amin``), by default 1e-10; for "ln", the number to add first, by default 1e-6.
        top_db: for "db", clamp values to at least the clip's maximum minus ``top_db``; None disables this.
        mel_scale: "htk" (torchaudio's default) or "slaney" (librosa's default).
        norm: None, or "slaney" for triangles of area 1 (librosa's default).
        center: True centers frames on samples 0, hop, 2 hop, ... and reflects the clip at its ends; an even n_fft gives
            1 + samples // hop frames. False uses only frames within the clip, 1 + (samples - n_fft) // hop.

    Silent clips give the logarithm of ``floor``. Clips with NaN or infinity fail, and so do clips that are shorter than
    a frame or, with ``center``, have at most n_fft // 2 samples and are too short to reflect.

    Examples:
        >>> clip = np.sin(np.arange(16000, dtype=np.float32) * 0.4)
        >>> spectrogram = LogMel(rate=16000, n_fft=400, hop_length=160, n_mels=80)(clip)
        >>> spectrogram.shape, int(spectrogram[:, 50].argmax())
        ((80, 101), 28)
    """

    rate: int = 16000
    n_fft: int = 400
    hop_length: int | None = None
    win_length: int | None = None
    n_mels: int = 80
    f_min: float = 0.0
    f_max: float | None = None
    power: Literal[1, 2] = 2
    log: Literal["db", "ln"] | None = "db"
    floor: float | None = None
    top_db: float | None = None
    mel_scale: Scale = "htk"
    norm: Literal["slaney"] | None = None
    center: bool = True

    def __post_init__(self) -> None:
        require_libraries("log_mel", "numba")
        for parameter in ("rate", "n_fft", "n_mels"):
            check_count("log_mel", parameter, getattr(self, parameter), 2 if parameter == "n_fft" else 1)
        for parameter in ("hop_length", "win_length"):
            if getattr(self, parameter) is not None:
                check_count("log_mel", parameter, getattr(self, parameter))
        if self.window_length > self.n_fft:
            raise invalid_call(f"audio.log_mel: win_length={self.win_length} is above n_fft={self.n_fft}")
        check_number("log_mel", "f_min", self.f_min, 0, self.top, open=False)
        check_number("log_mel", "f_max", self.top, self.f_min, self.rate / 2, open=True)
        check_choice("log_mel", "power", int(self.power) if self.power in {1, 2} else self.power, (1, 2))
        check_choice("log_mel", "log", self.log, ("db", "ln", None))
        if self.floor is not None:
            check_number("log_mel", "floor", self.floor, 0, open=True)
        if self.top_db is not None:
            check_number("log_mel", "top_db", self.top_db, 0)
            if self.log != "db":
                raise invalid_call('audio.log_mel: top_db needs log="db"', fix="leave it out")
        check_choice("log_mel", "mel_scale", self.mel_scale, ("htk", "slaney"))
        check_choice("log_mel", "norm", self.norm, ("slaney", None))
        check_choice("log_mel", "center", self.center, (True, False))

    @property
    def top(self) -> float:
        return self.rate / 2 if self.f_max is None else self.f_max

    @property
    def window_length(self) -> int:
        return self.n_fft if self.win_length is None else self.win_length

    @property
    def hop(self) -> int:
        return max(1, self.window_length // 2) if self.hop_length is None else self.hop_length

    def frames(self, samples: int) -> int:
        """Return how many frames a clip of ``samples`` samples has; 0 if the clip is too short."""
        if self.center:
            return 1 + (samples - self.n_fft % 2) // self.hop if samples > self.n_fft // 2 else 0
        return 1 + (samples - self.n_fft) // self.hop if samples >= self.n_fft else 0

    def result(self, *types: Any) -> ColumnType:
        shape = clip_shape(self, types[0])
        if shape is None:
            return OBJECT
        return TensorType((*shape[1:], self.n_mels, self.frames(shape[0])), "float32")

    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Clip:
        clip = as_clip(values[0])
        frames = self.frames(len(clip))
        if not frames:
            shortest = self.n_fft // 2 + 1 if self.center else self.n_fft
            raise BadClip(
                f"a clip of {len(clip):,} samples is too short: {shortest:,} are needed", "pad it, or drop such rows"
            )
        result = out if out is not None else np.empty((*clip.shape[1:], self.n_mels, frames), np.float32)
        if clip.ndim == 1:
            self._spectrogram(clip, result)
        else:
            for channel in range(clip.shape[1]):
                self._spectrogram(clip[:, channel], result[channel])
        total = float(result.sum(dtype=np.float64))
        if not np.isfinite(total):
            raise BadClip("a clip with NaN, infinity or values beyond float32's has no spectrum")
        return self._logarithm(result)

    def _spectrogram(self, clip: Clip, out: Clip) -> None:
        n = self.n_fft
        window, turns = _window(n, self.window_length)
        stages = plan(n if n % 2 else n // 2)
        filters = bands(n, self.rate, self.n_mels, self.f_min, self.top, self.mel_scale, self.norm)
        begin = -(n // 2) if self.center else 0
        compiled = native.kernels("cedar.operators.audio.mel_kernels", "mel_spectrogram")
        (compiled or mel_plain).mel_spectrogram(
            np.require(clip, requirements=["C", "W"]), begin, self.hop, window, stages.radices, stages.twiddles,
            stages.starts, turns, filters.rows, filters.weights, self.power == 1, out,
        )  # fmt: skip

    def _logarithm(self, spectrogram: Clip) -> Clip:
        if self.log is None:
            return spectrogram
        if self.log == "ln":
            spectrogram += np.float32(1e-6 if self.floor is None else self.floor)
            return np.log(spectrogram, out=spectrogram)
        np.maximum(spectrogram, np.float32(1e-10 if self.floor is None else self.floor), out=spectrogram)
        np.log(spectrogram, out=spectrogram)
        spectrogram *= np.float32((10 if self.power == 2 else 20) / np.log(10))
        if self.top_db is not None:
            np.maximum(spectrogram, spectrogram.max() - np.float32(self.top_db), out=spectrogram)
        return spectrogram


@lru_cache(maxsize=32)
def _window(n: int, length: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the periodic Hann window, centered in a frame of ``n`` samples, and exp(-2 pi i k / n) for each bin k."""
    window = np.zeros(n, np.float32)
    margin = (n - length) // 2
    window[margin : margin + length] = hann(length)
    turns = np.exp(-2j * np.pi * np.arange(n // 2 + 1) / n)
    return window, np.stack([turns.real, turns.imag], axis=1).astype(np.float32)


def hann(length: int) -> npt.NDArray[np.float64]:
    """Return the periodic Hann window of ``length`` samples."""
    return np.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length))


# ---- filters ---------------------------------------------------------------------------------------------------------


Scale = Literal["htk", "slaney"]
Floats = npt.NDArray[np.float64]

_STEP = 200.0 / 3  # Hz per mel on Slaney's scale below the corner frequency
_CORNER = 1000.0
_LOG_STEP = np.log(6.4) / 27.0  # above the corner: logarithm of the frequency ratio per mel


def to_mel(hertz: Any, scale: Scale) -> Floats:
    """Convert frequencies from Hz to mel.

    "htk" is 2595 log10(1 + f / 700) (O'Shaughnessy, Speech Communication, 1987; HTK). "slaney" is linear to 1 kHz and
    logarithmic above (Slaney, Auditory Toolbox, 1998).

    Examples:
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
    """Convert frequencies from mel to Hz; the inverse of ``to_mel``."""
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
    """Return mel filters, float64[n_mels, n_fft // 2 + 1]: triangles of height 1 with corners equidistant in mel.

    With norm "slaney", each triangle is divided by half its width in Hz, so that its area is 1.

    Examples:
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
    """The mel filters by frequency bin. A bin is between two adjacent corners, so it contributes to at most two bands.

    Args:
        rows: int64[bins]: the first of the two bands of each bin, counted from 1.
        weights: float32[bins, 2]: the bin's weight in that band and in the next one.
    """

    rows: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


@lru_cache(maxsize=32)
def bands(
    n_fft: int, rate: float, n_mels: int, f_min: float, f_max: float, scale: Scale, norm: Literal["slaney"] | None
) -> Bands:
    """Return the filters of ``mel_filters`` by frequency bin."""
    filters = mel_filters(n_fft, rate, n_mels, f_min, f_max, scale, norm)
    rows = np.zeros(filters.shape[1], dtype=np.int64)
    weights = np.zeros((filters.shape[1], 2), dtype=np.float32)
    for k in range(filters.shape[1]):
        nonzero = np.flatnonzero(filters[:, k])
        if len(nonzero):
            rows[k] = min(int(nonzero[0]) + 1, n_mels)
            for band in nonzero.tolist():
                weights[k, band + 1 - rows[k]] = filters[band, k]
    return Bands(rows, weights)
