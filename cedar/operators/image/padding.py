"""pad and expand: enlarge images by adding pixels around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from cedar.core.errors import PipelineError, invalid_call
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes
from cedar.operators.image.headers import max_pixels
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import PadMode, RowMoves
from cedar.operators.image.spatial import Spatial, check_probability, check_range, require_draws, tuple_of

# These operators are not marked spatial, since added pixels do not come from the image: brighten(pad(x)) differs
# from pad(brighten(x)).


@dataclass(frozen=True)
class Pad(Spatial):
    """Add pixels around each image, and shift its boxes: torchvision.transforms.v2.Pad.

    Args:
        padding: number of pixels for all sides, (left and right, top and bottom), or (left, top, right, bottom).
        fill: value of added pixels, or one per channel.
        mode: "constant" adds ``fill``; "edge" repeats the outermost pixels; "reflect" mirrors without repeating the
            outermost pixels, "symmetric" mirrors and repeats them.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain images.

    Boxes are supported only with mode "constant", as in torchvision.

    Examples:
        >>> image = np.array([[[1], [2]]], dtype=np.uint8)
        >>> Pad((1, 0), fill=9)(image)[:, :, 0].tolist()
        [[9, 1, 2, 9]]
    """

    padding: int | tuple[int, int] | tuple[int, int, int, int]
    fill: float | tuple[float, ...] = 0
    mode: PadMode = "constant"

    def __post_init__(self) -> None:
        numbers = (self.padding,) if isinstance(self.padding, int | np.integer) else tuple_of(self.padding)
        if len(numbers) not in (1, 2, 4) or not all(isinstance(v, int | np.integer) and v >= 0 for v in numbers):
            raise invalid_call(
                f"pad({self.padding!r}): must be 1, 2 or 4 integers of at least 0", fix="to cut pixels off, use crop"
            )
        if self.mode not in get_args(PadMode):
            raise invalid_call(f"pad(mode={self.mode!r}): must be one of {', '.join(get_args(PadMode))}")
        object.__setattr__(self, "padding", tuple(int(v) for v in numbers))
        object.__setattr__(self, "fill", fill_values("pad", self.fill))

    def shape(self, shape: tuple[int, int] | None) -> tuple[int, int] | None:
        left, top, right, bottom = self._sides()
        return None if shape is None else (shape[0] + top + bottom, shape[1] + left + right)

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del draws
        left, top, right, bottom = self._sides()
        pad = np.broadcast_to(np.array([top, left, bottom, right], dtype=np.int64), (len(sizes), 4))
        if boxes is not None and self.mode != "constant":
            raise PipelineError(f"pad(mode={self.mode!r}) does not support boxes", fix="use mode='constant'")
        return RowMoves(pad=pad, fill=self.fill, mode=self.mode)  # type: ignore[arg-type]

    def _sides(self) -> tuple[int, ...]:
        padding: tuple[int, ...] = self.padding  # type: ignore[assignment]
        return padding * (4 // len(padding))


@dataclass(frozen=True)
class Expand(Spatial):
    """With probability ``p``, put an image at a random place on a larger canvas: torchvision's RandomZoomOut, from SSD.

    Both sides are enlarged by the same factor, drawn uniformly from ``side_range``; boxes are shifted.

    Args:
        fill: value of added pixels, or one per channel.
        side_range: (min, max) of the factor; min is at least 1.
        p: probability that an image is changed, 0 .. 1.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain images.

    Examples:
        >>> image = np.ones((2, 2, 3), dtype=np.uint8)
        >>> expand = Expand(side_range=(3.0, 3.0), p=1.0)
        >>> made = expand(image, draws=Draws(np.array([1], dtype=np.uint64)))
        >>> made.shape, int(made.sum())
        ((6, 6, 3), 12)
    """

    fill: float | tuple[float, ...] = 0
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "side_range", check_range("expand", "side_range", self.side_range, 1.0))
        object.__setattr__(self, "fill", fill_values("expand", self.fill))
        check_probability("expand", "p", self.p)

    def shape(self, shape: tuple[int, int] | None) -> None:
        del shape

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del boxes
        numbers = require_draws(draws).uniform(4)
        low, high = self.side_range
        canvas = (sizes * (low + numbers[:, 1:2] * (high - low))).astype(np.int64)
        before = ((canvas - sizes) * numbers[:, 2:]).astype(np.int64)
        pad = np.concatenate([before, canvas - sizes - before], axis=1)
        pad[numbers[:, 0] >= self.p] = 0
        area = (sizes + pad[:, :2] + pad[:, 2:]).prod(axis=1)
        limit = max_pixels()
        bad = {int(i): f"the canvas would have {area[i]:,} pixels" for i in np.flatnonzero(area > limit)}
        return RowMoves(pad=pad, fill=self.fill, bad=bad, fix=f"set CEDAR_MAX_PIXELS to allow more than {limit:,}")  # type: ignore[arg-type]


def fill_values(name: str, fill: float | Sequence[float], parameter: str = "fill") -> tuple[float, ...]:
    """Return fill values as a tuple of one value for all channels, or of one value per channel.

    Raises:
        PipelineError: the value is not a number or 1 to 4 numbers.
    """
    values = (fill,) if isinstance(fill, int | float | np.number) else tuple_of(fill)
    if not 1 <= len(values) <= 4 or not all(isinstance(v, int | float | np.number) for v in values):
        raise invalid_call(f"{name}({parameter}={fill!r}): must be one number, or one per channel")
    return tuple(v.item() if isinstance(v, np.number) else v for v in values)
