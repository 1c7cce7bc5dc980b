"""resize: resample images to a fixed size, or so that their shorter side has a fixed length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cedar.core.errors import invalid_call
from cedar.operators.algebra import resampling
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes
from cedar.operators.image.headers import max_pixels
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import RowMoves
from cedar.operators.image.resizing import Filter, Interpolation, check_filter
from cedar.operators.image.spatial import Spatial, pair


@resampling
@dataclass(frozen=True)
class Resize(Spatial):
    """Resample images and scale their boxes: torchvision.transforms.v2.Resize, on PIL images.

    Args:
        size: (height, width), or one number for the shorter side; the longer side is scaled with it and rounded down.
        interpolation: "bilinear", "nearest" or "bicubic", computed as in Pillow.
        max_size: maximum length of the longer side, if ``size`` is one number.
        antialias: whether shrinking averages all source pixels that an output pixel covers, as Pillow always does.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain images.

    Takes uint8 images (height, width, channels), and with ``antialias`` also float32.

    Examples:
        >>> image = np.arange(0, 160, 10, dtype=np.uint8).reshape(4, 4, 1)
        >>> Resize((2, 2))(image)[:, :, 0].tolist()
        [[36, 52], [98, 114]]
    """

    size: int | tuple[int, int]
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        check_filter("resize", self.interpolation, self.antialias)
        try:
            both = pair(self.size, "size")
            object.__setattr__(self, "size", both[0] if isinstance(self.size, int | np.integer) else both)
        except (TypeError, ValueError) as error:
            raise invalid_call(f"resize: {error}") from None
        if self.max_size is not None and (isinstance(self.size, tuple) or self.max_size <= self.size):
            raise invalid_call(f"resize({self.size}, max_size={self.max_size}): max_size must be above size, a number")

    @property
    def averages(self) -> bool:
        return self.antialias and self.interpolation != "nearest"

    def shape(self, shape: tuple[int, int] | None) -> tuple[int, int] | None:
        if isinstance(self.size, tuple):
            return self.size
        if shape is None:
            return None
        height, width = self._sizes(np.array([shape], dtype=np.int64))[0].tolist()
        return height, width

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del boxes, draws
        new_sizes = self._sizes(sizes)
        limit = max_pixels()
        bad = {
            int(i): f"an image of {sizes[i, 1]} x {sizes[i, 0]} pixels "
            f"would become {new_sizes[i, 1]:,} x {new_sizes[i, 0]:,}"
            for i in np.flatnonzero(new_sizes[:, 0] * new_sizes[:, 1] > max(limit, 0))
        }
        return RowMoves(
            size=new_sizes, filter=Filter(self.interpolation, self.antialias), bad=bad,
            fix=f"give max_size=, or set CEDAR_MAX_PIXELS to allow more than {limit:,} pixels",
        )  # fmt: skip

    def _sizes(self, sizes: Sizes) -> Sizes:
        if isinstance(self.size, tuple):
            return np.broadcast_to(np.array(self.size, dtype=np.int64), sizes.shape)
        short, long = sizes.min(axis=1), sizes.max(axis=1)
        new_short = np.full(len(sizes), self.size, dtype=np.int64)
        new_long = (self.size * long / short).astype(np.int64)
        if self.max_size is not None:
            over = new_long > self.max_size
            new_short = np.where(over, (self.max_size * new_short / new_long).astype(np.int64), new_short)
            new_long = np.where(over, self.max_size, new_long)
        wide = sizes[:, 1] > sizes[:, 0]
        new_sizes = np.stack([np.where(wide, new_short, new_long), np.where(wide, new_long, new_short)], axis=1)
        at_least_one: Sizes = np.maximum(new_sizes, 1)
        return at_least_one
