"""random_crop and random_resized_crop: cut a random part out of each image, and resample it to a fixed size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cedar.operators.algebra import resampling
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes
from cedar.operators.image.crop import Fill, cut_or_pad
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import RowMoves
from cedar.operators.image.padding import fill_values
from cedar.operators.image.resizing import Filter, Interpolation, check_filter
from cedar.operators.image.spatial import FixedSize, check_range, mark_spatial, require_draws
from cedar.operators.take import whole

TRIES = 10


@dataclass(frozen=True)
class RandomCrop(FixedSize):
    """Pad each image, then keep a part of a fixed size at a random position: torchvision.transforms.v2.RandomCrop.

    Boxes are shifted and clamped to the part. Images that are too small in spite of the padding fail.

    Args:
        size: (height, width) of the part, or one number for both.
        padding: number of pixels to add on each side before cropping. Without padding, the optimizer may move the crop
            before pointwise operators.
        fill: value of added pixels, or one per channel.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain images.

    Examples:
        >>> image = np.ones((32, 32, 3), dtype=np.uint8)
        >>> RandomCrop(32, padding=4)(image, draws=Draws(np.array([5], dtype=np.uint64))).shape
        (32, 32, 3)
    """

    size: int | tuple[int, int]
    padding: int = 0
    fill: Fill = 0
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.set_size("random_crop")
        object.__setattr__(self, "padding", whole(self.padding, "random_crop(padding)", least=0))
        object.__setattr__(self, "fill", fill_values("random_crop", 0 if self.fill is None else self.fill))
        if not self.padding:
            mark_spatial(self)

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del boxes
        height, width = self.shape(None)
        surplus = sizes + (2 * self.padding - np.array([height, width]))
        positions = np.floor(require_draws(draws).uniform(2) * (np.maximum(surplus, 0) + 1)).astype(np.int64)
        bad = {
            int(i): f"an image of {sizes[i, 1]} x {sizes[i, 0]} pixels is too small for a part of {width} x {height}"
            for i in np.flatnonzero((surplus < 0).any(axis=1))
        }
        moves = cut_or_pad(sizes, positions - self.padding, (height, width), self.fill)
        return replace(moves, bad=bad, fix="resize images first, or give more padding=")


@resampling
@dataclass(frozen=True)
class RandomResizedCrop(FixedSize):
    """Crop a random part of each image and resample it: torchvision.transforms.v2.RandomResizedCrop for PIL images.

    The part's fraction of the area, the logarithm of its width / height, and its position are drawn uniformly. The
    result is the first of ten draws that fits into the image, or else the largest centered part with an allowed ratio.

    Args:
        size: (height, width) of the result, or one number for both.
        scale: (min, max) fraction of the image's area.
        ratio: (min, max) of width / height.
        interpolation: "bilinear", "nearest" or "bicubic", computed as in Pillow.
        antialias: whether shrinking averages all source pixels that an output pixel covers, as Pillow always does.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain images.

    Examples:
        >>> image = np.zeros((40, 60, 3), dtype=np.uint8)
        >>> crop = RandomResizedCrop(8)
        >>> crop(image, draws=Draws(np.array([5], dtype=np.uint64))).shape
        (8, 8, 3)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_filter("random_resized_crop", self.interpolation, self.antialias)
        self.set_size("random_resized_crop")
        object.__setattr__(self, "scale", check_range("random_resized_crop", "scale", self.scale, 0.0))
        object.__setattr__(self, "ratio", check_range("random_resized_crop", "ratio", self.ratio, 1e-6))

    @property
    def averages(self) -> bool:
        return self.antialias and self.interpolation != "nearest"

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del boxes
        target_sizes = np.broadcast_to(np.array(self.size, dtype=np.int64), sizes.shape)
        return RowMoves(
            cut=self._draw_parts(sizes, require_draws(draws)),
            size=target_sizes,
            filter=Filter(self.interpolation, self.antialias),
        )

    def _draw_parts(self, sizes: Sizes, draws: Draws) -> Sizes:
        """Return the part of each image, int64 (rows, 4): top, left, height, width."""
        cuts, misfits = random_parts(sizes, draws, self.scale, self.ratio)
        if misfits.any():
            cuts[misfits] = self._largest_centered(sizes[misfits])
        return cuts

    def _largest_centered(self, sizes: Sizes) -> Sizes:
        """Return each image's largest centered part with the allowed ratio that is closest to the image's ratio."""
        height, width = sizes[:, 0], sizes[:, 1]
        ratio = width / height
        flat, steep = ratio > self.ratio[1], ratio < self.ratio[0]
        tall = np.where(steep, np.rint(width / self.ratio[0]).astype(np.int64), height)
        wide = np.where(flat, np.rint(height * self.ratio[1]).astype(np.int64), width)
        tall, wide = np.maximum(tall, 1), np.maximum(wide, 1)
        return np.stack([(height - tall) // 2, (width - wide) // 2, tall, wide], axis=1)


def random_parts(
    sizes: Sizes, draws: Draws, scale: Sequence[float], ratio: Sequence[float], *, larger: int = 0, first: int = 0
) -> tuple[Sizes, npt.NDArray[np.bool_]]:
    """Draw a part of each image: a random fraction of its area, with a random width / height and position.

    Args:
        scale: (min, max) fraction of the area.
        ratio: (min, max) of width / height; the logarithm of the ratio is drawn uniformly.
        larger: number of pixels by which the image must exceed the part on both axes.
        first: index of the first random number to use.

    Returns:
        int64 (rows, 4) with top, left, height, width; and a mask of the rows for which none of ten parts fits.
    """
    numbers = draws.uniform(4 * TRIES, first).reshape(len(sizes), TRIES, 4)
    height, width = sizes[:, :1], sizes[:, 1:]
    area = height * width * (scale[0] + (scale[1] - scale[0]) * numbers[..., 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = np.exp(low + (high - low) * numbers[..., 1])
    wide = np.rint(np.sqrt(area * ratios)).astype(np.int64)
    tall = np.rint(np.sqrt(area / ratios)).astype(np.int64)
    fits = (wide > 0) & (wide + larger <= width) & (tall > 0) & (tall + larger <= height)
    chosen = np.arange(len(sizes)), fits.argmax(axis=1)
    tall, wide = tall[chosen], wide[chosen]
    corners = numbers[chosen][:, 2:] * (sizes - np.stack([tall, wide], axis=1) + 1)
    cuts = np.concatenate([np.floor(corners).astype(np.int64), tall[:, None], wide[:, None]], axis=1)
    return cuts, np.asarray(~fits.any(axis=1))
