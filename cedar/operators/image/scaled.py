"""Scaled decoding: an image that shrinks by 2 or more is decoded at 1/2, 1/4 or 1/8 of its sides.

A JPEG decoder makes blocks of 4 x 4, 2 x 2 or 1 x 1 pixels out of those of 8 x 8 for a fraction of the time. Values
differ a little from those of the whole image resampled, so it happens with ``exact=False`` alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cedar.operators.image.layout import Image
from cedar.operators.image.moves import Steps
from cedar.operators.image.resizing import resized
from cedar.operators.image.room import Room, new_image

FACTORS = (8, 4, 2)


def shrinks(steps: Steps, height: int, width: int) -> int:
    """To 1/2, 1/4 or 1/8 of which sides an image may be decoded: no smaller than its part is resampled to. Else 1.

    Without antialias an output is of the four nearest pixels alone, and a smaller image has others.
    """
    found = steps.resampling(height, width)
    if found is None:
        return 1
    at, (_, _, tall, wide), _ = found
    move = steps.moves[at]
    size = move.row(steps.row).size
    assert size is not None
    if not move.filter.antialias or move.filter.interpolation == "nearest":
        return 1
    return next((by for by in FACTORS if by * size[0] <= tall and by * size[1] <= wide), 1)


@dataclass(frozen=True)
class Scaled:
    """The moves of one row, ready to be applied to its image decoded at ``1 / by`` of its sides.

    Args:
        size: height and width that the image has by right.
        start: where in the decoded image it begins: above 0 where a side that is no multiple was turned around.
    """

    steps: Steps
    by: int
    size: tuple[int, int]
    start: tuple[float, float] = (0.0, 0.0)

    def apply(self, image: Image, out: Image | None = None, canvas: Room = new_image) -> Image:
        """See ``Steps.apply``."""
        found = self.steps.resampling(*self.size)
        assert found is not None
        at, (top, left, tall, wide), mirrored = found
        move = self.steps.moves[at]
        size = move.row(self.steps.row).size
        assert size is not None
        # Cut first: what lies outside the part does not show at its border.
        y, tall_at = self._cut(top, tall, 0, image.shape[0])
        x, wide_at = self._cut(left, wide, 1, image.shape[1])
        box = (y[0], x[0], y[1], x[1])
        flips = self.steps.flips_behind(at)
        part = image[tall_at, wide_at]
        if flips is not None:
            return resized(part, size, move.filter, box=box, out=out, flip=flips != mirrored)
        return self.steps.behind(at).apply(resized(part, size, move.filter, box=box, flip=mirrored), out, canvas)

    def _cut(self, begin: int, length: int, axis: int, there: int) -> tuple[tuple[float, float], slice]:
        """Along one axis: the part within the pixels that it touches, and which those are."""
        first = begin / self.by + self.start[axis]
        last = min(first + length / self.by, float(there))
        low = math.floor(first)
        return (first - low, last - first), slice(low, math.ceil(last))
