"""Resampling one image: bilinear by our own kernel, the other filters by Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cedar.errors import PipelineError, user_site
from cedar.operators.image.layout import Image
from cedar.operators.image.libraries import library

Interpolation = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class Filter:
    """How images are resampled."""

    interpolation: Interpolation = "bilinear"
    antialias: bool = True


def check_filter(name: str, interpolation: str, antialias: bool) -> None:
    """Refuse what no kernel does.

    Raises:
        PipelineError: an unknown filter, or bicubic without antialiasing.
    """
    if interpolation not in get_args(Interpolation):
        raise PipelineError(
            f"{name}(interpolation={interpolation!r}): it is one of {', '.join(get_args(Interpolation))}",
            site=user_site(),
        )
    if interpolation == "bicubic" and not antialias:
        raise PipelineError(
            f"{name}(interpolation='bicubic', antialias=False) is not offered", site=user_site(), fix="antialias=True"
        )


def resized(image: Image, size: tuple[int, int], how: Filter, *, out: Image | None = None, flip: bool = False) -> Image:
    """An image of another height and width; mirrored afterwards, if asked; written to ``out`` where that is given."""
    from cedar.operators.image.resample import resize_into

    if image.dtype == np.uint8 and how.interpolation == "bilinear":
        if out is None:
            out = np.empty((*size, image.shape[2]), dtype=np.uint8)
        # Mirrored pixels run backwards: the kernel wants them side by side.
        source = image if image.strides[1] > 0 else np.ascontiguousarray(image)
        resize_into(source, None, out, antialias=how.antialias, flip=flip)
        return out
    found = _by_pillow(image, size, how)
    if flip:
        found = found[:, ::-1]
    if out is None:
        return found
    np.copyto(out, found)
    return out


def _by_pillow(image: Image, size: tuple[int, int], how: Filter) -> Image:
    pillow = library("PIL.Image", "resize")
    filters = pillow.Resampling
    method = {"nearest": filters.NEAREST, "bilinear": filters.BILINEAR, "bicubic": filters.BICUBIC}[how.interpolation]
    # Channel by channel: Pillow would multiply by the last one, as transparency.
    planes = [pillow.fromarray(np.ascontiguousarray(image[..., i])) for i in range(image.shape[2])]
    if how.interpolation != "nearest":  # Pillow 13 chooses which way to go first, others go along the rows
        planes = [plane.resize((size[1], image.shape[0]), method) for plane in planes]
    return np.stack([np.asarray(plane.resize(size[::-1], method)) for plane in planes], axis=2)
