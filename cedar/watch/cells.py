"""Render values for table cells: images as thumbnails, sound as a waveform, other values as a short string."""

from __future__ import annotations

import base64
import io
import reprlib
from typing import Any

import numpy as np
import numpy.typing as npt

from cedar.core.printable import escape

_HIGH, _WIDE = 128, 256  # max size of a thumbnail in pixels
_MIN_SHOWN = 64  # pixels; smaller thumbnails are enlarged by an integer factor, at most to this size
_MAX_SAMPLED = 512  # max pixels per side to compute a thumbnail from; larger images are subsampled
_MIN_IMAGE_SIDE = 8  # min pixels per side of a gray image; smaller arrays are probably boxes or points
_MAX_ASPECT = 50  # max aspect ratio of an image
_MIN_SAMPLES = 64  # min samples of an audio clip; fewer are shown as numbers
_WAVEFORM_SIZE = (160, 48)  # size of a waveform in pixels
_MAX_LETTERS = 80

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _MAX_LETTERS
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = 6


def text(value: Any) -> str:
    """Return a value as one line of text.

    Examples:
        >>> text(1 / 3), text(np.zeros((40, 60, 3), np.uint8)), text(b"1234")
        ('0.333333', 'uint8 (40, 60, 3)', '4 bytes')
    """
    if isinstance(value, np.ndarray) and value.ndim and value.dtype != object:
        return f"{value.dtype} {value.shape}" + (f" {value.tolist()}" if value.size <= _MIN_IMAGE_SIDE else "")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value):,} bytes"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    return _cut(value if isinstance(value, str) else _SHORT.repr(value))


def _cut(words: str) -> str:
    line = " ".join(words[: 4 * _MAX_LETTERS].split())
    return line if len(line) <= _MAX_LETTERS and len(words) <= 4 * _MAX_LETTERS else line[: _MAX_LETTERS - 3] + "..."


def markup(name: str, value: Any) -> str:
    """Return a value as HTML: a thumbnail, a waveform, or escaped text."""
    pixels = _pixels(value)
    if pixels is not None:
        return _thumbnail(name, value, pixels)
    samples = _samples(value)
    return _waveform(name, samples) if samples is not None else escape(text(value))


# ---- images ----------------------------------------------------------------------------------------------------------


def _pixels(value: Any) -> npt.NDArray[Any] | None:
    """Return an image as an array, (height, width) or (height, width, 1, 3 or 4); None if the value is not an image."""
    if not isinstance(value, np.ndarray) or not value.size or value.dtype.kind not in "uifb":
        return None
    if value.ndim == 3 and (value.dtype == np.uint8 or value.dtype.kind == "f"):
        if value.shape[2] in (1, 3, 4):
            return value
        return value.transpose(1, 2, 0) if value.shape[0] in (1, 3, 4) else None
    if value.ndim == 2 and min(value.shape) >= _MIN_IMAGE_SIDE and max(value.shape) <= _MAX_ASPECT * min(value.shape):
        return value
    return None


def _thumbnail(name: str, value: npt.NDArray[Any], pixels: npt.NDArray[Any]) -> str:
    caption = text(value)
    if value.dtype.kind == "f":
        caption += f", {_range_text(value)}"
    try:
        from PIL import Image
    except ImportError:
        return f"{escape(caption)} (no thumbnail: pip install pillow)"
    down, right = (max(1, side // _MAX_SAMPLED) for side in pixels.shape[:2])
    levels = _levels(pixels[::down, ::right])
    image = Image.fromarray(levels[:, :, 0] if levels.ndim == 3 and levels.shape[2] == 1 else levels)
    image.thumbnail((_WIDE, _HIGH))
    file = io.BytesIO()
    image.save(file, format="PNG")
    data = base64.b64encode(file.getvalue()).decode()
    scale = max(1, _MIN_SHOWN // max(image.size))
    return (
        f'<img src="data:image/png;base64,{data}" width="{scale * image.width}" height="{scale * image.height}" '
        f'alt="{escape(name)}: an image, {escape(caption)}"><small>{escape(caption)}</small>'
    )


def _levels(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Convert to bytes. Floats from 0 to 1 are multiplied by 255; other numbers are scaled from minimum to maximum."""
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    numbers = pixels.astype(np.float64)
    finite = np.isfinite(numbers)
    low, high = (float(end(numbers[finite])) if finite.any() else 0.0 for end in (np.min, np.max))
    if pixels.dtype.kind in "fb" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    share = (np.where(finite, numbers, low) - low) / ((high - low) or 1.0)
    return np.ascontiguousarray(np.rint(255 * share).astype(np.uint8))


def _range_text(numbers: npt.NDArray[Any]) -> str:
    finite = numbers[np.isfinite(numbers)]
    return f"{finite.min():.3g} to {finite.max():.3g}" if finite.size else "no finite number"


# ---- sound -----------------------------------------------------------------------------------------------------------


def _samples(value: Any) -> npt.NDArray[Any] | None:
    """Return an audio clip's samples, averaged over channels; None if the value is not an audio clip."""
    if isinstance(value, list) and len(value) >= _MIN_SAMPLES and all(type(number) is float for number in value):
        return np.array(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.ndim or len(value) < _MIN_SAMPLES:
        return None
    if value.ndim == 2 and 0 < value.shape[1] < _MIN_IMAGE_SIDE:
        return np.asarray(value.mean(axis=1))
    return value if value.ndim == 1 else None


def _waveform(name: str, samples: npt.NDArray[Any]) -> str:
    """Return the waveform as SVG, drawn from the minimum and maximum of each part of the clip."""
    wide, high = _WAVEFORM_SIZE
    caption = f"{len(samples):,} samples, {_range_text(samples)}"
    numbers = np.nan_to_num(samples.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    parts = np.linspace(0, len(numbers), min(wide, len(numbers)) + 1).astype(np.int64)[:-1]
    reach = float(np.abs(numbers).max()) or 1.0
    ends = [end.reduceat(numbers, parts) for end in (np.maximum, np.minimum)]
    at = np.arange(len(parts)) * wide / len(parts)
    corners = [*zip(at, ends[0], strict=True), *zip(at[::-1], ends[1][::-1], strict=True)]
    points = " ".join(f"{x:.1f},{high / 2 - y / reach * (high / 2 - 1):.1f}" for x, y in corners)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(name)}: a waveform, {caption}" '
        f'width="{wide}" height="{high}"><polygon points="{points}" fill="#1d4ed8" stroke="#1d4ed8"/></svg>'
        f"<small>{caption}</small>"
    )
