"""The search of iou_crop in Python, used while the kernels are being compiled; both find the same parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_ZERO = np.float32(0)


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
    """Find the first valid part for each row; see ``iou_kernels.try_parts``."""
    smallest, span, narrow, broad = limits
    for row, (height, width) in enumerate(sizes.tolist()):
        own_boxes = slice(starts[row], starts[row + 1])
        succeeded[row] = False
        for across, along, x, y in numbers[row].reshape(-1, 4).tolist():
            wide, tall = int(width * (smallest + span * across)), int(height * (smallest + span * along))
            left, top = int((width - wide) * x), int((height - tall) * y)
            if wide <= 0 or tall <= 0 or not narrow <= wide / tall <= broad:
                continue
            overlaps, inside[own_boxes] = _overlaps((top, left, tall, wide), boxes[own_boxes])
            if (overlaps >= min_overlaps[row]).any():
                parts[row], succeeded[row] = (top, left, tall, wide), True
                break


def _overlaps(
    part: tuple[int, int, int, int], boxes: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the IoU of the part with each box whose center is in the part, and a mask of these boxes."""
    top, left, tall, wide = part
    centers = (boxes[:, :2] + boxes[:, 2:]) / np.float32(2)
    low, high = np.array([left, top]), np.array([left + wide, top + tall])
    inside = np.all((low < centers) & (centers < high), axis=1)
    corner, end = low.astype(np.float32), high.astype(np.float32)
    centered = boxes[inside]
    shared = np.maximum(np.minimum(end, centered[:, 2:]) - np.maximum(corner, centered[:, :2]), _ZERO).prod(axis=1)
    sides = centered[:, 2:] - centered[:, :2]
    union = (end - corner).prod() + sides.prod(axis=1) - shared
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(union > _ZERO, shared / union, _ZERO), inside
