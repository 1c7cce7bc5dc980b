"""crop and center_crop: cut a part at a fixed position out of each image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cedar.core.errors import invalid_call
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import RowMoves
from cedar.operators.image.padding import fill_values
from cedar.operators.image.spatial import FixedSize, Spatial, mark_spatial

Fill = float | tuple[float, ...] | None


@dataclass(frozen=True)
class Crop(Spatial):
    """Cut a part out of each image; boxes are shifted and clamped to the part: torchvision's functional.crop.

    Args:
        top: first row of the part; may be negative with ``fill``.
        left: first column of the part; may be negative with ``fill``.
        height: number of rows.
        width: number of columns.
        fill: value of pixels outside the image, or one per channel (torchvision uses 0). With None, images that do not
            contain the whole part fail, and the optimizer may move the crop before pointwise operators.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain images.

    Examples:
        >>> image = np.arange(1, 10, dtype=np.uint8).reshape(3, 3, 1)
        >>> Crop(1, 1, 2, 2)(image)[:, :, 0].tolist(), Crop(1, 1, 2, 3, fill=0)(image)[:, :, 0].tolist()
        ([[5, 6], [8, 9]], [[5, 6, 0], [8, 9, 0]])
    """

    top: int
    left: int
    height: int
    width: int
    fill: Fill = None

    def __post_init__(self) -> None:
        integers = all(
            isinstance(v, int | np.integer) and not isinstance(v, bool)
            for v in (self.top, self.left, self.height, self.width)
        )
        if not integers or self.height < 1 or self.width < 1:
            raise invalid_call(
                f"crop({self.top!r}, {self.left!r}, {self.height!r}, {self.width!r}): "
                "four integers, height and width above 0"
            )
        _prepare_fill(self, "crop")

    def shape(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        del shape
        return self.height, self.width

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del boxes, draws
        corner = np.array([[self.top, self.left]], dtype=np.int64)
        return cut_or_pad(sizes, corner, (self.height, self.width), self.fill)


@dataclass(frozen=True)
class CenterCrop(FixedSize):
    """Keep the center of each image; boxes are shifted and clamped to it: torchvision.transforms.v2.CenterCrop.

    Args:
        size: (height, width), or one number for both.
        fill: value of pixels added on both sides of smaller images, or one per channel. With None, smaller images
            fail, and the optimizer may move the crop before pointwise operators.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain images.

    Examples:
        >>> image = np.arange(1, 10, dtype=np.uint8).reshape(3, 3, 1)
        >>> CenterCrop(1)(image)[:, :, 0].tolist(), CenterCrop((1, 5))(image)[:, :, 0].tolist()
        ([[5]], [[0, 4, 5, 6, 0]])
    """

    size: int | tuple[int, int]
    fill: Fill = 0

    def __post_init__(self) -> None:
        self.set_size("center_crop")
        _prepare_fill(self, "center_crop")

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del boxes, draws
        size = np.array(self.size, dtype=np.int64)
        # As in torchvision, round half of the missing pixels down, and half of the surplus pixels to even.
        pad_before = np.maximum(size - sizes, 0) // 2
        surplus = np.maximum(sizes, size) - size
        corner = np.rint(surplus / 2).astype(np.int64) - pad_before
        return cut_or_pad(sizes, corner, self.shape(None), self.fill)


def _prepare_fill(crop: Any, name: str) -> None:
    """Mark crops without fill as spatial. With fill, brighten(crop(x)) would differ from crop(brighten(x))."""
    if crop.fill is None:
        mark_spatial(crop)
    else:
        object.__setattr__(crop, "fill", fill_values(name, crop.fill))


def cut_or_pad(sizes: Sizes, corner: Sizes, size: tuple[int, int], fill: Any) -> RowMoves:
    """Return moves that cut parts of equal size, with corners (top, left), and pad parts that exceed their image."""
    corner = np.broadcast_to(corner, sizes.shape)
    start = np.clip(corner, 0, sizes)
    stop = np.maximum(np.clip(corner + np.array(size, dtype=np.int64), 0, sizes), start)
    pad_before = np.minimum(np.maximum(-corner, 0), size)
    cut = np.concatenate([start, stop - start], axis=1)
    pad = np.concatenate([pad_before, np.array(size, dtype=np.int64) - pad_before - (stop - start)], axis=1)
    if fill is not None:
        return RowMoves(cut=cut, pad=pad if pad.any() else None, fill=fill, corner=corner)
    bad = {
        int(i): f"an image of {sizes[i, 1]} x {sizes[i, 0]} pixels does not hold a part of {size[1]} x {size[0]} "
        f"from column {corner[i, 1]}, row {corner[i, 0]}"
        for i in np.flatnonzero(pad.any(axis=1))
    }
    return RowMoves(cut=cut, bad=bad, fix="resize images first, or give fill=0 to pad them", corner=corner)
