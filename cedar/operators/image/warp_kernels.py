"""Compiled steps that combine different pixels: warping all channels by a matrix, and sharpening one channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.image.pixels_lanes import floor32, fma32
from cedar.operators.jit import kernel

_ZERO, _TOP = np.float32(0), np.float32(255)


@kernel("void(uint8[:, ::1], int64, int64, int64, float32[::1], int64)")
def warp_planes(planes: Any, channels: Any, height: Any, width: Any, table: Any, mode: Any) -> None:
    """Compute each pixel of all channels from the source position that a matrix gives; see ``pixels_steps.WARP``.

    All arithmetic on the float32 coefficients is in float64, so that ``pixels_plain`` rounds in the same way.
    """
    source = planes[:channels, : height * width].copy()
    a, b, c = np.float64(table[0]), np.float64(table[1]), np.float64(table[2])
    d, e, f = np.float64(table[3]), np.float64(table[4]), np.float64(table[5])
    g, h = np.float64(table[6]), np.float64(table[7])
    fills = table[8:12].astype(np.float64)
    for row in range(height):
        y = row + 0.5
        for column in range(width):
            x, pixel = column + 0.5, row * width + column
            depth = g * x + h * y + 1.0
            across, down = (a * x + b * y + c) / depth - 0.5, (d * x + e * y + f) / depth - 0.5
            if not (-1.0 < across < width and -1.0 < down < height):
                for k in range(channels):
                    planes[k, pixel] = np.uint8(np.rint(fills[k]))
                continue
            if mode == 0:
                left, top = int(np.rint(across)), int(np.rint(down))
                inside = 0 <= left < width and 0 <= top < height
                for k in range(channels):
                    planes[k, pixel] = source[k, top * width + left] if inside else np.uint8(np.rint(fills[k]))
                continue
            left, top = int(np.floor(across)), int(np.floor(down))
            right, low = across - left, down - top
            for k in range(channels):
                total, covered = 0.0, 0.0
                for corner in range(4):
                    i, j = top + corner // 2, left + corner % 2
                    if 0 <= i < height and 0 <= j < width:
                        weight = (right if corner % 2 else 1.0 - right) * (low if corner // 2 else 1.0 - low)
                        covered += weight
                        total += weight * source[k, i * width + j]
                if mode == 2:
                    total = (total - fills[k]) * covered + fills[k]
                planes[k, pixel] = np.uint8(np.rint(total))


@kernel("void(uint8[:, ::1], float32)")
def sharpen_plane(plane: Any, rest: Any) -> None:
    """Blend each inner pixel with the mean of its 3 x 3 pixels (the center counts five times), weighted by ``rest``."""
    height, width = plane.shape
    source = plane.copy()
    for y in range(1, height - 1):
        for x in range(1, width - 1):
            total = 4 * np.int64(source[y, x])
            for i in range(y - 1, y + 2):
                for j in range(x - 1, x + 2):
                    total += np.int64(source[i, j])
            value = np.float32(source[y, x])
            mean = np.float32((2 * total + 13) // 26)  # rounds to nearest; a multiple of 1/13 is never halfway
            plane[y, x] = np.uint8(np.int32(floor32(max(min(fma32(mean - value, rest, value), _TOP), _ZERO))))
