"""Compiled Gaussian blur of one channel: columns first, then rows, with one rounding at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.image.blur_lanes import LANES, ROWS, sum_across, sum_down
from cedar.operators.image.pixels_lanes import address, even32
from cedar.operators.jit import kernel

_TOP = np.float32(255)


@kernel()
def mirror_index(index: Any, size: Any) -> Any:
    """Map an index to 0 .. size - 1 by mirroring at the borders as often as needed, without repeating border pixels."""
    if 0 <= index < size:
        return index
    if size == 1:
        return 0
    period = 2 * (size - 1)
    index = index % period
    return index if index < size else period - index


@kernel("void(uint8[:, ::1], float32[::1], float32[::1])")
def blur_plane(plane: Any, across: Any, down: Any) -> None:  # noqa: C901 - numba compiles it as one function
    """Blur a channel in place; ``across`` and ``down`` are the weights along rows and columns, odd in number."""
    height, width = plane.shape
    reach, rise = len(across) // 2, len(down) // 2
    chunks = (width + LANES - 1) // LANES
    row_length = chunks * LANES
    slots = 2 * rise + ROWS
    ring = np.zeros((slots, row_length), np.float32)
    wide = np.zeros((ROWS, row_length + 2 * reach), np.float32)  # rows, extended by their mirrored borders
    done = np.empty((ROWS, row_length), np.float32)
    offsets = np.empty(slots, np.int64)
    weights = np.zeros(len(down) + 2 * (ROWS - 1), np.float32)  # zeros for the lines that a row does not use
    for k in range(len(down)):  # numba would need seconds to compile a slice assignment
        weights[ROWS - 1 + k] = down[k]
    before, behind = np.empty(reach, np.int64), np.empty(reach, np.int64)
    for k in range(reach):
        before[k] = reach + mirror_index(k - reach, width)
        behind[k] = reach + mirror_index(width + k, width)
    lines_read = 0
    for y in range(0, height, ROWS):
        while lines_read <= min(y + ROWS - 1 + rise, height - 1):
            slot = ring[lines_read % slots]
            for x in range(width):
                slot[x] = plane[lines_read, x]
            lines_read += 1
        for k in range(slots):
            offsets[k] = mirror_index(y + k - rise, height) % slots * (row_length * 4)
        first, pitch = address(weights) + (ROWS - 1) * 4, (row_length + 2 * reach) * 4
        sum_down(address(ring), address(offsets), first, slots, address(wide) + reach * 4, pitch, chunks)
        for row in range(ROWS):
            line = wide[row]
            for k in range(reach):
                line[k] = line[before[k]]
            for k in range(reach):
                line[reach + width + k] = line[behind[k]]
        for row in range(0, ROWS, 2):
            begin, target = address(wide) + row * pitch, address(done) + row * row_length * 4
            sum_across(begin, pitch, address(across), len(across), target, row_length * 4, chunks)
        for row in range(min(ROWS, height - y)):
            line = done[row]
            for x in range(width):
                plane[y + row, x] = np.uint8(np.int32(min(even32(line[x]), _TOP)))
