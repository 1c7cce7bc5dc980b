"""Bilinear resizing in NumPy, used while the kernels are being compiled; both give bit-identical results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_BITS = 22  # fractional bits of a weight, as in Pillow
_ONE = 1 << _BITS


def resize(
    source: npt.NDArray[np.uint8],
    box: tuple[np.float32, np.float32, np.float32, np.float32],
    out: npt.NDArray[np.uint8],
    antialias: bool,
    flip: bool,
) -> None:
    """Resize the part ``box`` (top, bottom, left, right) of an image into ``out``; see ``resize_into``."""
    top, bottom, left, right = box
    indices, weights = _compute_weights(source.shape[0], top, bottom, out.shape[0], antialias)
    first, stop = int(indices.min()), int(indices.max()) + 1
    lines = _weighted_sum(
        source[first:stop], 1, *_compute_weights(source.shape[1], left, right, out.shape[1], antialias)
    )
    result = _weighted_sum(lines, 0, indices - first, weights)
    out[...] = result[:, ::-1] if flip else result


def _compute_weights(
    size: int, start: np.float32, stop: np.float32, outputs: int, antialias: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return each output's input indices and weights, (outputs, inputs); indices of zero weights are arbitrary."""
    scale = float(stop - start) / outputs
    support = scale if antialias and scale > 1.0 else 1.0
    center = float(start) + (np.arange(outputs) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)[:, None]
    count = np.minimum((center + support + 0.5).astype(np.int64), size)[:, None] - first
    taps = np.arange(min(math.ceil(support) * 2 + 1, size))
    weights = np.maximum(1.0 - np.abs((taps + first - center[:, None] + 0.5) * (1.0 / support)), 0.0)
    weights[taps >= count] = 0.0
    total = np.cumsum(weights, axis=1)[:, -1:]  # adds in order, as the kernel does
    whole = (0.5 + np.where(total != 0.0, weights / np.where(total != 0.0, total, 1.0), weights) * _ONE).astype(
        np.int32
    )
    return np.minimum(taps + first, size - 1), whole


def _weighted_sum(
    pixels: npt.NDArray[np.uint8], axis: int, indices: npt.NDArray[np.int64], weights: npt.NDArray[np.int32]
) -> npt.NDArray[np.uint8]:
    """Compute weighted sums along an axis and round them to uint8."""
    shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
    total: Any = np.int32(1 << (_BITS - 1))
    for index, weight in zip(indices.T, weights.T, strict=True):
        if weight.any():
            total = total + np.take(pixels, index, axis=axis) * weight.reshape(shape)
    result: npt.NDArray[np.uint8] = np.minimum(total >> _BITS, 255).astype(np.uint8)
    return result
