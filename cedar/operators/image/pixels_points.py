"""Compiled operators on single pixels; each changes a chunk of the channels of an image in place.

Channels are float32 rows with the integer values 0 .. 255 of a uint8 image. Every operator rounds and clamps as if it
ran separately, so that no conversion between operators is needed. The arithmetic is that of torchvision.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.image.pixels_lanes import floor32, fma32
from cedar.operators.jit import kernel

_F = np.float32
_RED, _GREEN, _BLUE = _F(0.2989), _F(0.587), _F(0.114)
_ZERO, _ONE, _TWO, _FOUR, _SIX, _TOP = _F(0), _F(1), _F(2), _F(4), _F(6), _F(255)
_SIXTH, _UNIT, _BACK, _TINY = _F(1 / 6), _F(1 / 255), _F(255 + 1 - 1e-3), _F(1e-30)
_TO_RED, _TO_GREEN, _TO_BLUE = _F(2.5), _F(1.5), _F(3.5)


@kernel()
def brighten(plane: Any, n: Any, factor: Any) -> None:
    """Multiply by a factor of at least 0, clamp to 255 and round down."""
    for i in range(n):
        plane[i] = floor32(min(plane[i] * factor, _TOP))


@kernel()
def blend(plane: Any, n: Any, other: Any, factor: Any, rest: Any) -> None:
    """Replace each value by value * ``factor`` + ``other`` * ``rest``."""
    for i in range(n):
        plane[i] = floor32(max(min(fma32(other, rest, plane[i] * factor), _TOP), _ZERO))


@kernel()
def saturate(planes: Any, n: Any, factor: Any, rest: Any) -> None:
    """Replace each channel by channel * ``factor`` + gray * ``rest``, where gray is the pixel's gray value."""
    red, green, blue = planes[0], planes[1], planes[2]
    for i in range(n):
        r, g, b = red[i], green[i], blue[i]
        gray = floor32(fma32(b, _BLUE, fma32(g, _GREEN, r * _RED)))
        red[i] = floor32(max(min(fma32(gray, rest, r * factor), _TOP), _ZERO))
        green[i] = floor32(max(min(fma32(gray, rest, g * factor), _TOP), _ZERO))
        blue[i] = floor32(max(min(fma32(gray, rest, b * factor), _TOP), _ZERO))


@kernel()
def shift_hue(planes: Any, n: Any, shift: Any) -> None:
    """Add ``shift``, a fraction of the color circle, to the hue in HSV.

    ``before`` and ``after`` are the channels next to the largest channel on the color circle. In the conversion back to
    RGB, a channel's distance from the hue's sector decides whether it is the largest, middle or smallest channel.
    """
    red, green, blue = planes[0], planes[1], planes[2]
    for i in range(n):
        r, g, b = red[i] * _UNIT, green[i] * _UNIT, blue[i] * _UNIT
        high, low = max(r, g, b), min(r, g, b)
        span = high - low
        saturation = span / max(high, _TINY)
        divisor = max(span, _TINY)
        is_red, is_green = high == r, high == g
        before = b if is_red else (r if is_green else g)
        after = g if is_red else (b if is_green else r)
        start = _ZERO if is_red else (_TWO if is_green else _FOUR)
        hue = ((high - before) / divisor + start) - (high - after) / divisor
        hue = hue * _SIXTH + _ONE
        hue = hue - floor32(hue) + shift
        hue = (hue - floor32(hue)) * _SIX
        sector = floor32(hue)
        part = hue - sector
        sector = _ZERO if sector == _SIX else sector
        mixed, pale = saturation * part, _ONE - saturation
        odd = (np.int32(sector) & np.int32(1)) != np.int32(0)
        top = floor32(high * _BACK)
        middle = floor32(((_ONE - mixed) if odd else (mixed + pale)) * high * _BACK)
        bottom = floor32(pale * high * _BACK)
        near_red, near_green, near_blue = abs(sector - _TO_RED), abs(sector - _TO_GREEN), abs(sector - _TO_BLUE)
        red[i] = top if near_red > _TWO else (middle if near_red > _ONE else bottom)
        green[i] = top if near_green < _ONE else (middle if near_green < _TWO else bottom)
        blue[i] = top if near_blue < _ONE else (middle if near_blue < _TWO else bottom)


@kernel()
def gray(planes: Any, n: Any) -> None:
    """Replace the first channel by the gray value, a weighted sum of the three channels."""
    red, green, blue = planes[0], planes[1], planes[2]
    for i in range(n):
        red[i] = floor32(fma32(blue[i], _BLUE, fma32(green[i], _GREEN, red[i] * _RED)))


@kernel()
def gray_sum(planes: Any, n: Any) -> Any:
    """Return the sum of the gray values of all pixels."""
    red, green, blue = planes[0], planes[1], planes[2]
    total: Any = 0
    for i in range(n):
        total += np.int32(fma32(blue[i], _BLUE, fma32(green[i], _GREEN, red[i] * _RED)))
    return total


@kernel()
def solarize(plane: Any, n: Any, threshold: Any) -> None:
    """Invert values of at least ``threshold``."""
    for i in range(n):
        value = plane[i]
        plane[i] = _TOP - value if value >= threshold else value


@kernel()
def posterize(plane: Any, n: Any, step: Any) -> None:
    """Round down to a multiple of ``step``, a power of two."""
    for i in range(n):
        plane[i] = floor32(plane[i] / step) * step


@kernel()
def stretch(plane: Any, n: Any, low: Any, scale: Any) -> None:
    """Subtract ``low`` and divide by ``scale``; clamp to 0 .. 255 and round down."""
    for i in range(n):
        plane[i] = floor32(max(min((plane[i] - low) / scale, _TOP), _ZERO))


@kernel()
def look_up(plane: Any, n: Any, table: Any) -> None:
    for i in range(n):
        plane[i] = table[np.int32(plane[i])]


@kernel()
def to_unit(plane: Any, target: Any, n: Any) -> None:
    """Scale values from 0 .. 255 to 0 .. 1; write to ``target``."""
    for i in range(n):
        target[i] = plane[i] * _UNIT


@kernel()
def standardize(plane: Any, n: Any, mean: Any, std: Any) -> None:
    for i in range(n):
        plane[i] = (plane[i] - mean) / std


@kernel()
def unit_standardize(plane: Any, target: Any, n: Any, mean: Any, std: Any) -> None:
    """Scale to 0 .. 1 and normalize; write to ``target``."""
    for i in range(n):
        target[i] = (plane[i] * _UNIT - mean) / std


@kernel()
def unit_standardize_fast(plane: Any, target: Any, n: Any, mean: Any, std: Any, inverse: Any) -> None:
    """Compute ``unit_standardize`` with Markstein's division by an inverse (IBM J. Res. Dev. 34, 1990)."""
    for i in range(n):
        value = plane[i] * _UNIT - mean
        near = value * inverse
        target[i] = fma32(fma32(-near, std, value), inverse, near)


@kernel()
def inverse_of(mean: Any, std: Any) -> Any:
    """Return 1 / std if Markstein's division is exact for all 256 pixel values, else 0."""
    inverse = _ONE / std
    for i in range(256):
        value = np.float32(i) * _UNIT - mean
        near = value * inverse
        if fma32(fma32(-near, std, value), inverse, near) != value / std:
            return _ZERO
    return inverse
