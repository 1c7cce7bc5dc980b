"""Resample one image: with cedar's kernel for uint8 images and bilinear filters, otherwise with Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from cedar.core.errors import invalid_call
from cedar.core.packages import library
from cedar.operators.image.layout import Image
from cedar.operators.image.resample import resize_into

Interpolation = Literal["nearest", "bilinear", "bicubic"]
Box: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True)
class Filter:
    """The filter for resampling images."""

    interpolation: Interpolation = "bilinear"
    antialias: bool = True


def check_filter(name: str, interpolation: str, antialias: bool) -> None:
    """Check that a filter is supported.

    Raises:
        PipelineError: the filter is unknown, or bicubic without antialiasing.
    """
    if interpolation not in get_args(Interpolation):
        raise invalid_call(
            f"{name}(interpolation={interpolation!r}): must be one of {', '.join(get_args(Interpolation))}"
        )
    if interpolation == "bicubic" and not antialias:
        raise invalid_call(f"{name}(interpolation='bicubic', antialias=False) is not supported", fix="antialias=True")


def resized(
    image: Image,
    size: tuple[int, int],
    how: Filter,
    *,
    box: Box | None = None,
    out: Image | None = None,
    flip: bool = False,
) -> Image:
    """Resample an image, or its part ``box`` (top, left, height, width; may be fractional), to a height and width.
    With ``flip``, mirror the result left to right. If ``out`` is given, write the result to it.
    """
    if image.dtype == np.uint8 and how.interpolation == "bilinear":
        if out is None:
            out = np.empty((*size, image.shape[2]), dtype=np.uint8)
        # A mirrored view has negative strides, but the kernel needs contiguous pixels.
        source = image if image.strides[1] > 0 else np.ascontiguousarray(image)
        resize_into(source, box, out, antialias=how.antialias, flip=flip)
        return out
    resampled = _by_pillow(image, size, how, box or (0, 0, *image.shape[:2]))
    if flip:
        resampled = resampled[:, ::-1]
    if out is None:
        return resampled
    np.copyto(out, resampled)
    return out


def _by_pillow(image: Image, size: tuple[int, int], how: Filter, box: Box) -> Image:
    pillow = library("PIL.Image", "images", "resize")
    filters = pillow.Resampling
    method = {"nearest": filters.NEAREST, "bilinear": filters.BILINEAR, "bicubic": filters.BICUBIC}[how.interpolation]
    # Resize each channel separately, since Pillow would treat the last channel as alpha and premultiply by it.
    planes = [pillow.fromarray(np.ascontiguousarray(image[..., i])) for i in range(image.shape[2])]
    top, left, tall, wide = box
    if how.interpolation != "nearest":  # Pillow 13 may start with columns; force rows first
        height = image.shape[0]
        planes = [plane.resize((size[1], height), method, (left, 0, left + wide, height)) for plane in planes]
        left, wide = 0, size[1]
    part = (left, top, left + wide, top + tall)
    return np.stack([np.asarray(plane.resize(size[::-1], method, part)) for plane in planes], axis=2)
