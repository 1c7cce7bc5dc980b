"""Compiled bilinear resizing with Pillow's arithmetic: weights, sums along rows, and sums along columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.image.pixels_lanes import address, pointer
from cedar.operators.image.resample_lanes import BITS, GROUP, LINE, weigh_lines, weigh_pixels
from cedar.operators.jit import kernel, numba

_ONE = 1 << BITS
_carray = numba().carray


@kernel("Tuple((int64[:, ::1], int32[:, ::1]))(int64, float32, float32, int64, boolean, boolean)")
def compute_weights(size: Any, start: Any, stop: Any, outputs: Any, antialias: Any, flip: Any) -> Any:
    """Return for each output (first, count) of its inputs, and their weights; outputs cover start .. stop."""
    scale = np.float64(stop - start) / outputs
    support = scale if antialias and scale > 1.0 else 1.0
    bounds = np.empty((outputs, 2), np.int64)
    weights = np.empty((outputs, min(int(np.ceil(support)) * 2 + 1, size)), np.int32)
    shrink = 1.0 / support
    for i in range(outputs):
        center = np.float64(start) + (i + 0.5) * scale
        first = max(int(center - support + 0.5), 0)
        count = min(int(center + support + 0.5), size) - first
        total = 0.0
        for k in range(count):
            total += max(1.0 - abs((k + first - center + 0.5) * shrink), 0.0)
        index = outputs - 1 - i if flip else i
        used, zeros = 0, 0
        for k in range(count):
            weight = max(1.0 - abs((k + first - center + 0.5) * shrink), 0.0)
            weight_bits = int(0.5 + (weight / total if total != 0.0 else weight) * _ONE)
            if weight_bits == 0 and used == 0:  # skip leading zero weights
                zeros += 1
                continue
            weights[index, k - zeros] = weight_bits
            if weight_bits != 0:
                used = k - zeros + 1
        bounds[index, 0] = first + zeros
        bounds[index, 1] = used
    # Pad weights with 0 to the same count for all outputs, since processors predict loops of constant length better.
    max_count = 0
    for i in range(outputs):
        max_count = max(max_count, bounds[i, 1])
    for i in range(outputs):
        used = bounds[i, 1]
        shift = max(bounds[i, 0] + max_count - size, 0)
        for k in range(max_count - 1, -1, -1):
            weights[i, k] = weights[i, k - shift] if shift <= k < used + shift else 0
        bounds[i, 0] -= shift
        bounds[i, 1] = max_count
    return bounds, weights


@kernel("void(int64, int64, UniTuple(int64, 3), float32, float32, float32, float32, boolean, boolean, uint8[:, ::1])")
def resize(
    source: Any, stride: Any, shape: Any, top: Any, bottom: Any, left: Any, right: Any, antialias: Any, flip: Any,
    target: Any,
) -> None:  # fmt: skip
    """Resize a part of the image (height, width, channels) at address ``source`` into ``target`` (rows, values)."""
    height, width, channels = shape
    rows, length = target.shape
    columns = length // channels
    ys, yw = compute_weights(height, top, bottom, rows, antialias, False)
    xs, xw = compute_weights(width, left, right, columns, antialias, flip)
    lefts = xs[:, 0] * channels  # for each output column, the index of its first input in a row
    taps = xs[0, 1]
    chunks = (length + LINE - 1) // LINE
    pitch = (chunks + 1) * LINE
    slots = (yw.shape[1] + 2 * GROUP) // GROUP * GROUP  # a multiple of GROUP, so that groups never wrap around
    ring = np.empty((slots, pitch), np.uint8)
    line = np.empty(pitch, np.uint8)
    # Copy the rows of the last group and add four bytes, since four bytes are read per pixel.
    tail = (height - 1) // GROUP * GROUP
    ends = np.zeros((GROUP, width * channels + 4), np.uint8)
    for y in range(tail, height):
        line_there = _carray(pointer(source + y * stride), (width * channels,), np.uint8)
        for x in range(width * channels):
            ends[y - tail, x] = line_there[x]
    rows_done = 0
    for y in range(rows):
        base = address(ring)  # inside the loop, so that numba keeps ``ring`` alive
        first, count = ys[y, 0], ys[y, 1]
        rows_done = max(rows_done, first // GROUP * GROUP)
        while rows_done < first + count:
            if rows_done < tail:
                begin, row_stride = source + rows_done * stride, stride
            else:
                begin, row_stride = address(ends), width * channels + 4
            for c in range((channels - 1) // 4 * 4, -1, -4):  # later iterations overwrite bytes past a pixel
                weigh_pixels(
                    begin + c, row_stride, base + rows_done % slots * pitch + c, pitch, channels, columns,
                    address(lefts), taps, address(xw), np.int64(xw.shape[1] * 4),
                )  # fmt: skip
            rows_done += GROUP
        weights = address(yw) + y * yw.shape[1] * 4
        weigh_lines(base, pitch, slots, first % slots, count, weights, address(line), chunks)
        for i in range(length):
            target[y, i] = line[i]


@kernel("void(int64[::1], int64, int64, int64[:, ::1], boolean, boolean[::1], int64[::1], uint8[:, :, ::1])")
def resize_all(
    addresses: Any, stride: Any, channels: Any, parts: Any, antialias: Any, flips: Any, places: Any, targets: Any
) -> None:
    """Resize a part (top, left, height, width) of each image; write it to ``targets`` at its index in ``places``."""
    for i in range(len(addresses)):
        top, left, height, width = parts[i, 0], parts[i, 1], parts[i, 2], parts[i, 3]
        resize(
            addresses[i] + top * stride + left * channels, stride, (height, width, channels), np.float32(0),
            np.float32(height), np.float32(0), np.float32(width), antialias, flips[i], targets[places[i]],
        )  # fmt: skip
