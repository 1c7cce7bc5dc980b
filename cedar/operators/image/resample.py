"""Bilinear resizing, bit-identical to Pillow, used by resize and random_resized_crop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cedar.operators.image import resample_plain
from cedar.operators.image.kernels import compiled
from cedar.operators.native import slow_path_lock

Pixels = npt.NDArray[np.uint8]


def resize_into(
    source: Pixels,
    box: tuple[float, float, float, float] | None,
    out: Pixels,
    *,
    antialias: bool = True,
    flip: bool = False,
) -> None:
    """Resize a part of an image into ``out``.

    The result equals ``PIL.Image.resize(size, BILINEAR, box)`` bit for bit. Weights have 22 bits; columns are resized
    first and rounded to uint8, then rows. (Pillow 13 starts with rows if the height shrinks much more than the width.)
    As in Pillow, pixels just outside the box contribute to its border. To exclude them, crop first without a copy:
    ``resize_into(image[top:bottom, left:right], None, out)``.

    Args:
        source: uint8 (height, width, channels) with any strides; copied only if the pixels of a row are not contiguous.
        box: (top, left, height, width) of the part in pixels, possibly fractional; None for the whole image.
        out: the array for the result: uint8 (height, width, channels), contiguous.
        antialias: whether shrinking averages all source pixels that an output pixel covers. False uses only the nearest
            four pixels, with pixel centers at halves, as torch's ``interpolate(..., align_corners=False)``.
        flip: whether to mirror the result left to right, which takes no extra time.

    Raises:
        ValueError: the shapes or the box are invalid.

    Examples:
        >>> image = np.arange(0, 160, 10, dtype=np.uint8).reshape(4, 4, 1)
        >>> half = np.empty((2, 2, 1), dtype=np.uint8)
        >>> resize_into(image, None, half, flip=True)
        >>> half[:, :, 0].tolist()
        [[52, 36], [114, 98]]
    """
    height, width, channels = source.shape
    rows, columns, wanted = out.shape
    top, left, tall, wide = box if box is not None else (0, 0, height, width)
    if channels != wanted or not channels or not height or not width:
        raise ValueError(f"an image of shape {source.shape} cannot be resized to shape {out.shape}")
    if source.dtype != np.uint8 or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise ValueError(f"resize_into takes uint8 images and a contiguous out, not {source.dtype} to {out.dtype}")
    if not (top >= 0 and left >= 0 and tall > 0 and wide > 0 and top + tall <= height and left + wide <= width):
        raise ValueError(f"the box {(top, left, tall, wide)} is not within an image of {height} x {width}")
    if not rows or not columns:
        return
    stop, end = np.float32(top + tall), np.float32(left + wide)  # as in Pillow, the box is float32
    kernels = compiled("resample")
    if kernels is None:
        with slow_path_lock:
            resample_plain.resize(source, (np.float32(top), stop, np.float32(left), end), out, antialias, flip)
        return
    stride, across, along = source.strides
    if along != 1 or across != channels or (stride < max(width * channels, 4) and height > 1):
        padded_rows = np.zeros((height, width * channels + 4), dtype=np.uint8)
        padded_rows[:, :-4] = source.reshape(height, width * channels)
        source, stride = padded_rows[:, :-4].reshape(source.shape), padded_rows.strides[0]
    kernels.resize(
        source.__array_interface__["data"][0], stride, source.shape, np.float32(top), stop, np.float32(left), end,
        antialias, flip, out.reshape(rows, columns * channels),
    )  # fmt: skip
