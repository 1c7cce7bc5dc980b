"""Compiled conversions between interleaved pixels (uint8 or float32) and one float32 row per channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.jit import kernel


@kernel()
def read_pixels(source: Any, channels: Any, planes: Any, n: Any) -> None:
    """Split ``n`` interleaved pixels into one row per channel."""
    if channels == 3:
        red, green, blue = planes[0], planes[1], planes[2]
        for i in range(n):
            red[i] = source[3 * i]
            green[i] = source[3 * i + 1]
            blue[i] = source[3 * i + 2]
    else:
        for c in range(channels):
            plane = planes[c]
            for i in range(n):
                plane[i] = source[channels * i + c]


@kernel()
def read_plane(source: Any, plane: Any, n: Any) -> None:
    for i in range(n):
        plane[i] = source[i]


@kernel()
def write_plane(plane: Any, target: Any, n: Any) -> None:
    for i in range(n):
        target[i] = np.uint8(np.int32(plane[i]))


@kernel()
def write_floats(plane: Any, target: Any, n: Any) -> None:
    for i in range(n):
        target[i] = plane[i]


@kernel()
def write_pixels(planes: Any, channels: Any, target: Any, n: Any) -> None:
    """Interleave channels as uint8; the inverse of ``read_pixels``."""
    if channels == 3:
        red, green, blue = planes[0], planes[1], planes[2]
        for i in range(n):
            target[3 * i] = np.uint8(np.int32(red[i]))
            target[3 * i + 1] = np.uint8(np.int32(green[i]))
            target[3 * i + 2] = np.uint8(np.int32(blue[i]))
    else:
        for c in range(channels):
            plane = planes[c]
            for i in range(n):
                target[channels * i + c] = np.uint8(np.int32(plane[i]))


@kernel()
def write_float_pixels(planes: Any, channels: Any, target: Any, n: Any) -> None:
    """Interleave channels as float32."""
    if channels == 3:
        red, green, blue = planes[0], planes[1], planes[2]
        for i in range(n):
            target[3 * i] = red[i]
            target[3 * i + 1] = green[i]
            target[3 * i + 2] = blue[i]
    else:
        for c in range(channels):
            plane = planes[c]
            for i in range(n):
                target[channels * i + c] = plane[i]
