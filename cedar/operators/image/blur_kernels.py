"""Gaussian blur of one channel, compiled: down the columns, along the row, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.image.blur_lanes import LANES, sum_lines
from cedar.operators.image.pixels_jit import kernel
from cedar.operators.image.pixels_lanes import address, even32

_TOP = np.float32(255)


@kernel()
def mirrored(place: Any, size: Any) -> Any:
    """The place within 0 .. size - 1 that a place outside is mirrored to, as often as needed; borders once."""
    if size == 1:
        return 0
    period = 2 * (size - 1)
    place = place % period
    return place if place < size else period - place


@kernel("void(uint8[:, ::1], float32[::1], float32[::1])")
def blur_plane(plane: Any, across: Any, down: Any) -> None:
    """Blur a channel in place by odd numbers of weights: ``across`` of the row, ``down`` of the column."""
    height, width = plane.shape
    reach, rise = len(across) // 2, len(down) // 2
    chunks = (width + LANES - 1) // LANES
    room = chunks * LANES
    slots = 2 * rise + 1
    ring = np.zeros((slots, room), np.float32)
    wide = np.zeros(room + 2 * reach, np.float32)  # a row and its mirrored borders
    line = np.empty(room, np.float32)
    rows = np.empty(slots, np.int64)
    steps = np.arange(len(across)) * np.int64(4)
    made = 0
    for y in range(height):
        while made <= min(y + rise, height - 1):
            slot = ring[made % slots]
            for x in range(width):
                slot[x] = plane[made, x]
            made += 1
        for k in range(slots):
            rows[k] = mirrored(y + k - rise, height) % slots * (room * 4)
        sum_lines(address(ring), address(rows), address(down), slots, address(wide) + reach * 4, chunks)
        for k in range(1, reach + 1):
            wide[reach - k] = wide[reach + mirrored(-k, width)]
        for k in range(reach):
            wide[reach + width + k] = wide[reach + mirrored(width + k, width)]
        sum_lines(address(wide), address(steps), address(across), len(across), address(line), chunks)
        for x in range(width):
            plane[y, x] = np.uint8(np.int32(min(even32(line[x]), _TOP)))
