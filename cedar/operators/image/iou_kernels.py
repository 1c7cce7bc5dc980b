"""The compiled search of iou_crop, which stops at the first valid part of each row, usually after a few trials."""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.operators.jit import kernel


@kernel("boolean(int64, int64, int64, int64, float32[:, ::1], float32, boolean[::1])")
def overlaps_enough(top: Any, left: Any, tall: Any, wide: Any, boxes: Any, min_overlap: Any, inside: Any) -> Any:
    """Return whether some box with its center in the part has an IoU of at least ``min_overlap``; write ``inside``."""
    bottom, right = top + tall, left + wide
    enough = False
    for i in range(len(boxes)):
        from_x, from_y, to_x, to_y = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]
        x, y = (from_x + to_x) / np.float32(2), (from_y + to_y) / np.float32(2)
        inside[i] = left < x < right and top < y < bottom
        if not inside[i]:
            continue
        x0, y0, x1, y1 = np.float32(left), np.float32(top), np.float32(right), np.float32(bottom)
        across = max(min(x1, to_x) - max(x0, from_x), np.float32(0))
        shared = across * max(min(y1, to_y) - max(y0, from_y), np.float32(0))
        union = (x1 - x0) * (y1 - y0) + (to_x - from_x) * (to_y - from_y) - shared
        overlap = shared / union if union > np.float32(0) else np.float32(0)
        enough = enough or overlap >= min_overlap
    return enough


@kernel(
    "void(int64[:, ::1], float64[:, ::1], float32[::1], float32[:, ::1], int64[::1], UniTuple(float64, 4),"
    " int64[:, ::1], boolean[::1], boolean[::1])"
)
def try_parts(
    sizes: Any,
    numbers: Any,
    min_overlaps: Any,
    boxes: Any,
    starts: Any,
    limits: Any,
    parts: Any,
    succeeded: Any,
    inside: Any,
) -> None:
    """Find the first valid part for each row; every trial uses four random numbers.

    Args:
        sizes: (rows, 2): height and width of each image.
        numbers: (rows, 4 * trials): uniform random numbers from 0 to 1.
        min_overlaps: (rows,): minimum intersection over union with some box.
        boxes: (boxes, 4): left, top, right, bottom of all boxes, row by row.
        starts: (rows + 1,): index of each row's first box, and the total number of boxes.
        limits: minimum scale, maximum minus minimum scale, minimum and maximum width / height.
        parts: output, (rows, 4): top, left, height, width.
        succeeded: output, (rows,): whether a part was found.
        inside: output, (boxes,): whether the box's center is in the part.
    """
    smallest, span, narrow, broad = limits
    for row in range(len(sizes)):
        height, width = sizes[row, 0], sizes[row, 1]
        begin, end = starts[row], starts[row + 1]
        succeeded[row] = False
        for k in range(0, numbers.shape[1], 4):
            wide: Any = np.int64(width * (smallest + span * numbers[row, k]))
            tall: Any = np.int64(height * (smallest + span * numbers[row, k + 1]))
            left = np.int64((width - wide) * numbers[row, k + 2])
            top = np.int64((height - tall) * numbers[row, k + 3])
            ratio: Any = wide / max(tall, 1)
            if wide <= 0 or tall <= 0 or ratio < narrow or ratio > broad:
                continue
            if overlaps_enough(top, left, tall, wide, boxes[begin:end], min_overlaps[row], inside[begin:end]):
                parts[row, 0], parts[row, 1], parts[row, 2], parts[row, 3] = top, left, tall, wide
                succeeded[row] = True
                break
