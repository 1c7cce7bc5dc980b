"""The pass over an image in NumPy, used while the kernels are being compiled. Both give bit-identical results.

This module processes whole channels; ``pixels_kernels`` processes chunks of pixels. In both, channels are float32 with
integer values 0 .. 255, and fused multiply-adds are rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cedar.operators.image import pixels_steps as steps

_F = np.float32
_RED, _GREEN, _BLUE = _F(0.2989), _F(0.587), _F(0.114)
_UNIT, _BACK, _TINY = _F(1 / 255), _F(255 + 1 - 1e-3), _F(1e-30)
_TOP, _ZERO, _ONE = _F(255), _F(0), _F(1)
_COLORED = (steps.SATURATION, steps.HUE, steps.PERMUTE, steps.GRAY, steps.GRAY_ONE)
_DROPPED_BITS, _HALFWAY = (1 << 29) - 1, 1 << 28  # mantissa bits of float64 that float32 lacks; half

Plane = npt.NDArray[Any]  # float32
Image = npt.NDArray[Any]


def apply(
    image: Image,
    out: Image,
    codes: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.float64],
    tables: list[npt.NDArray[np.float32]],
    norms: npt.NDArray[np.float32],
    channels_first: bool,
) -> None:
    """Run all steps on one image.

    Args:
        image: uint8 (height, width, channels).
        out: the array for the result: uint8, or float32 scaled to 0 .. 1 and then normalized.
        codes, numbers: the steps' codes (steps,) and parameters (steps, 2).
        tables: the weights of blurs and matrices of warps.
        norms: (count, 2, 4): means and standard deviations.
        channels_first: whether ``out`` is (channels, height, width).
    """
    planes = [image[:, :, c].astype(_F) for c in range(image.shape[2])]
    for code, (first, second) in zip(codes.tolist(), numbers.tolist(), strict=True):
        colored = code in _COLORED and len(planes) != 3
        if code != steps.NONE and not colored and not (code == steps.SPREAD and len(planes) != 1):
            planes = _step(code, first, second, planes, tables)
    for c, plane in enumerate(planes):
        target = out[c] if channels_first else out[:, :, c]
        target[...] = plane.astype(np.uint8) if out.dtype == np.uint8 else _normalize(plane, norms[:, :, c])


def _step(
    code: int, first: float, second: float, planes: list[Plane], tables: list[npt.NDArray[np.float32]]
) -> list[Plane]:
    factor, rest = _F(first), _F(1.0 - first)
    if code == steps.BRIGHTNESS:
        return [np.floor(np.minimum(plane * factor, _TOP)) for plane in planes]
    if code == steps.SATURATION:
        gray = np.floor(_gray(planes))
        return [_blend(plane, gray, factor, rest) for plane in planes]
    if code == steps.CONTRAST:
        gray = _gray(planes) if len(planes) == 3 else planes[0]
        mean = _F(int(gray.astype(np.int64).sum())) / _F(gray.size)
        return [_blend(plane, mean, factor, rest) for plane in planes]
    if code == steps.SOLARIZE:
        return [np.where(plane >= factor, _TOP - plane, plane) for plane in planes]
    if code == steps.POSTERIZE:
        return [np.floor(plane / factor) * factor for plane in planes]
    if code == steps.WARP:
        return _warp(planes, tables[int(first)].astype(np.float64), int(second))
    if code in (steps.BLUR, steps.SHARPEN):
        blurs = code == steps.BLUR
        return [_blur(p, tables[int(first)], tables[int(second)]) if blurs else _sharpen(p, rest) for p in planes]
    if code in (steps.AUTOCONTRAST, steps.EQUALIZE):
        return [(_autocontrast if code == steps.AUTOCONTRAST else _equalize)(plane) for plane in planes]
    if code == steps.HUE:
        return _shift_hue(planes, factor)
    if code in (steps.GRAY, steps.GRAY_ONE):
        return [np.floor(_gray(planes))] * (1 if code == steps.GRAY_ONE else len(planes))
    if code == steps.SPREAD:
        return planes * 3
    return [planes[int(first) >> 2 * c & 3] for c in range(3)]  # PERMUTE


def _fma(x: Any, y: Any, z: Any) -> Plane:
    """Return x * y + z in float32, rounded once.

    The product of two float32 is exact in float64. Rounding the sum to float64 and then to float32 equals one rounding,
    unless the float64 is exactly between two float32. In that case, the rounding error of the sum decides.
    """
    product = np.multiply(x, y, dtype=np.float64)
    total = np.asarray(product + z)
    result = total.astype(_F)
    between = (total.view(np.int64) & _DROPPED_BITS) == _HALFWAY
    if between.any():
        wide, first = total[between], np.broadcast_to(product, total.shape)[between]
        second = np.broadcast_to(np.asarray(z, dtype=np.float64), total.shape)[between]
        part = wide - first
        lost = (first - (wide - part)) + (second - part)
        result[between] = np.where(lost == 0, wide, np.nextafter(wide, np.where(lost > 0, np.inf, -np.inf))).astype(_F)
    return result


def _blend(plane: Plane, other: Any, factor: np.float32, rest: np.float32) -> Plane:
    result: Plane = np.floor(np.clip(_fma(other, rest, plane * factor), _ZERO, _TOP))
    return result


def _gray(planes: list[Plane]) -> Plane:
    red, green, blue = planes
    return _fma(blue, _BLUE, _fma(green, _GREEN, red * _RED))


def _shift_hue(planes: list[Plane], shift: np.float32) -> list[Plane]:
    """Shift the hue; see ``pixels_points.shift_hue``."""
    r, g, b = (plane * _UNIT for plane in planes)
    high, low = np.maximum(np.maximum(r, g), b), np.minimum(np.minimum(r, g), b)
    span = high - low
    saturation, divisor = span / np.maximum(high, _TINY), np.maximum(span, _TINY)
    is_red, is_green = high == r, high == g
    before = np.where(is_red, b, np.where(is_green, r, g))
    after = np.where(is_red, g, np.where(is_green, b, r))
    start = np.where(is_red, _ZERO, np.where(is_green, _F(2), _F(4)))
    hue = ((high - before) / divisor + start) - (high - after) / divisor
    hue = hue * _F(1 / 6) + _ONE
    hue = hue - np.floor(hue) + shift
    hue = (hue - np.floor(hue)) * _F(6)
    sector = np.floor(hue)
    part = hue - sector
    sector = np.where(sector == _F(6), _ZERO, sector)
    mixed, pale = saturation * part, _ONE - saturation
    odd = sector.astype(np.int32) & 1 != 0
    top = np.floor(high * _BACK)
    middle = np.floor(np.where(odd, _ONE - mixed, mixed + pale) * high * _BACK)
    bottom = np.floor(pale * high * _BACK)
    near_red, near_green, near_blue = (np.abs(sector - _F(place)) for place in (2.5, 1.5, 3.5))
    return [
        np.where(near_red > _F(2), top, np.where(near_red > _ONE, middle, bottom)),
        np.where(near_green < _ONE, top, np.where(near_green < _F(2), middle, bottom)),
        np.where(near_blue < _ONE, top, np.where(near_blue < _F(2), middle, bottom)),
    ]


def _autocontrast(plane: Plane) -> Plane:
    low, high = plane.min(), plane.max()
    if low == high:
        return plane
    result: Plane = np.floor(np.clip((plane - low) / ((high - low) * _UNIT), _ZERO, _TOP))
    return result


def _equalize(plane: Plane) -> Plane:
    values = plane.astype(np.int64)
    counts = np.bincount(values.ravel(), minlength=256)
    width = int(values.size - counts[np.flatnonzero(counts)[-1]]) // 255
    if not width:
        return plane
    table: Plane = np.minimum((np.cumsum(counts) - counts + width // 2) // width, 255).astype(_F)
    table[0] = 0
    result: Plane = table[values]
    return result


def _blur(plane: Plane, across: npt.NDArray[np.float32], down: npt.NDArray[np.float32]) -> Plane:
    """Blur a channel along columns, then along rows; borders are mirrored."""
    reach, rise = len(across) // 2, len(down) // 2
    height, width = plane.shape
    tall = np.pad(plane, ((rise, rise), (0, 0)), mode="reflect")
    columns = np.zeros_like(plane)
    for k, weight in enumerate(down):
        columns = _fma(tall[k : k + height], weight, columns)
    wide = np.pad(columns, ((0, 0), (reach, reach)), mode="reflect")
    rows = np.zeros_like(plane)
    for k, weight in enumerate(across):
        rows = _fma(wide[:, k : k + width], weight, rows)
    return np.minimum(np.rint(rows), _TOP)


def _sharpen(plane: Plane, rest: np.float32) -> Plane:
    if min(plane.shape) < 3:
        return plane
    values, result = plane.astype(np.int64), plane.copy()
    near = np.lib.stride_tricks.sliding_window_view(values, (3, 3)).sum(axis=(2, 3)) + 4 * values[1:-1, 1:-1]
    inner = plane[1:-1, 1:-1]
    mean = ((2 * near + 13) // 26).astype(_F)
    result[1:-1, 1:-1] = np.floor(np.clip(_fma(mean - inner, rest, inner), _ZERO, _TOP))
    return result


def _warp(planes: list[Plane], table: npt.NDArray[np.float64], mode: int) -> list[Plane]:
    """Resample channels at the positions given by a matrix; see ``pixels_steps.WARP``."""
    height, width = planes[0].shape
    y, x = np.mgrid[:height, :width] + 0.5
    a, b, c, d, e, f, g, h = table[:8]
    with np.errstate(all="ignore"):
        depth = g * x + h * y + 1.0
        across, down = (a * x + b * y + c) / depth - 0.5, (d * x + e * y + f) / depth - 0.5
        near = (across > -1) & (across < width) & (down > -1) & (down < height)
    across, down = np.where(near, across, -9.0), np.where(near, down, -9.0)
    pick = np.rint if mode == 0 else np.floor
    left, top = pick(across).astype(np.int64), pick(down).astype(np.int64)
    right, low = across - left, down - top
    warped = []
    for plane, fill in zip(planes, table[8:], strict=False):
        total, covered = np.zeros(plane.shape), np.zeros(plane.shape)
        for i, j in ((0, 0),) if mode == 0 else ((0, 0), (0, 1), (1, 0), (1, 1)):
            inside = (top + i >= 0) & (top + i < height) & (left + j >= 0) & (left + j < width)
            weight = (right if j else 1.0 - right) * (low if i else 1.0 - low) if mode else np.ones(plane.shape)
            weight = np.where(inside, weight, 0.0)
            covered += weight
            total += weight * plane[np.where(inside, top + i, 0), np.where(inside, left + j, 0)]
        if mode == 2:
            total = (total - fill) * covered + fill
        total = np.where(near if mode else covered > 0, np.rint(total), np.rint(fill))
        warped.append(total.astype(_F))
    return warped


def _normalize(plane: Plane, norms: npt.NDArray[np.float32]) -> Plane:
    """Scale a plane to 0 .. 1, and normalize it."""
    result: Plane = plane * _UNIT
    with np.errstate(all="ignore"):  # overflow gives infinity, as in the compiled pass
        for mean, std in norms:
            result = (result - mean) / std
    return result
