"""Blocks of equal images of which each is resampled once: one call of the kernel for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cedar.operators.image.kernels import compiled
from cedar.operators.image.layout import Image, Sizes
from cedar.operators.image.moves import Mask, Moves, full
from cedar.operators.image.resizing import Filter


def resample_all(images: Image, plan: Sequence[Moves], rows: Sequence[int], out: Image) -> bool:
    """Make what a run of moves asks for of some rows of a tensor, where that is a part of each, resampled.

    Args:
        images: (rows, height, width, channels).
        rows: those that are wanted.
        out: uint8 (rows, height, width, channels), contiguous: where the results go.

    Returns:
        False, and nothing was done, where more or something else is asked, or the kernel is still compiled.
    """
    found = _one_resampling(plan, np.broadcast_to(np.array(images.shape[1:3], dtype=np.int64), (len(images), 2)))
    if found is None or found[2].interpolation != "bilinear" or images.dtype != np.uint8:
        return False
    width, channels = images.shape[2:]
    apart, stride, across, along = images.strides
    if not channels or along != 1 or across != channels or stride < max(width * channels, 4):
        return False
    kernels = compiled("resample")
    if kernels is None:
        return False
    parts, mirrored, how = found
    wanted = np.array(rows, dtype=np.int64)
    first = images.__array_interface__["data"][0] + wanted * apart
    kernels.resize_all(
        first, stride, channels, parts[wanted], how.antialias, mirrored[wanted], wanted, out.reshape(*out.shape[:2], -1)
    )
    return True


def _one_resampling(plan: Sequence[Moves], sizes: Sizes) -> tuple[Sizes, Mask, Filter] | None:
    """The part of each image (top, left, height, width), whether the result is mirrored, and how it is resampled.

    None: images are mirrored before, or pixels are added, or nothing or more than that is resampled.
    """
    parts, mirrored, how = full(sizes), np.zeros(len(sizes), dtype=np.bool_), None
    for moves in plan:
        if moves.pad is not None or (how is not None and not moves.flips_only):
            return None
        if moves.cut is not None:
            parts = np.concatenate([parts[:, :2] + moves.cut[:, :2], moves.cut[:, 2:]], axis=1)
        if moves.flip is not None:
            if how is None and moves.flip.any():
                return None
            mirrored = mirrored ^ moves.flip
        if moves.size is not None:
            how = moves.filter
    return None if how is None else (parts, mirrored, how)
