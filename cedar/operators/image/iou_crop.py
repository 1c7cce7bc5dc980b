"""iou_crop and sanitize_boxes: crops that keep enough of some box, and boxes that are worth keeping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cedar.columns import Column, ColumnType, Index, type_of
from cedar.errors import PipelineError, user_site
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes, Mask, box_column, box_rows, check_boxes, kept_entries, thinned
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import Moves, full
from cedar.operators.image.spatial import Spatial, check_range, drawn
from cedar.operators.transform import BadValues, Transform

Numbers = npt.NDArray[np.float64]

ROUNDS = 50  # of drawing an overlap; each fails with small probability, but nothing may run for ever
_TOGETHER = 1024  # boxes


@dataclass(frozen=True)
class IouCrop(Spatial):
    """A random part of each image that holds enough of some box: torchvision's RandomIoUCrop, the crop of SSD.

    Reads images and boxes, and if there are more columns (labels), lists with an entry for each box. An overlap is
    drawn; from 1 on the image stays as it is. Else parts are drawn, each side by itself, until one holds the centre of
    a box with which its intersection over union is at least the overlap; after ``trials`` another overlap is drawn.
    Boxes whose centres lie outside the part go, and their labels with them (torchvision leaves them there, empty,
    until SanitizeBoundingBoxes); the others are clamped to the part. An image without boxes stays as it is.

    Args:
        min_scale: the smallest share of a side.
        max_scale: the largest.
        min_aspect_ratio: the smallest width : height of a part.
        max_aspect_ratio: the largest.
        overlaps: to draw from; None: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: parts to try before another overlap is drawn.

    Raises:
        PipelineError: arguments that do not fit, or columns of other types.

    The method is that of "SSD: Single Shot MultiBox Detector" (Liu et al., ECCV 2016, arXiv 1512.02325).

    Example:
        >>> image, boxes = np.zeros((40, 60, 3), dtype=np.uint8), np.array([[5, 5, 50, 30]], dtype=np.float32)
        >>> part, inside = IouCrop()(image, boxes, draws=Draws(np.array([2], dtype=np.uint64)))
        >>> part.ndim, inside.shape
        (3, (1, 4))
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    overlaps: tuple[float, ...] | None = None
    trials: int = 40
    random: ClassVar[bool] = True
    drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("iou_crop", "min_scale and max_scale", (self.min_scale, self.max_scale), 0.0)
        check_range("iou_crop", "aspect ratios", (self.min_aspect_ratio, self.max_aspect_ratio), 0.0)
        overlaps = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if self.overlaps is None else tuple(self.overlaps)
        if not overlaps or self.trials < 1 or self.max_scale > 1:
            raise PipelineError(
                f"iou_crop(max_scale={self.max_scale}, overlaps={self.overlaps!r}, trials={self.trials}): "
                "a scale of at most 1, an overlap and a trial at least",
                site=user_site(),
            )
        object.__setattr__(self, "overlaps", overlaps)

    def shape(self, shape: tuple[int, int] | None) -> None:
        del shape

    def result(self, *types: Any) -> ColumnType | tuple[ColumnType, ...]:
        if len(types) < 2:
            raise PipelineError("iou_crop reads images and boxes", fix='map(iou_crop(), "image", "boxes")')
        return super().result(*types)

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> Moves:
        assert boxes is not None
        cut = full(sizes)
        kept: list[Mask | None] = [None] * len(sizes)
        for rows in _groups([len(own) for own in boxes]):
            self._draw(rows, sizes, boxes, drawn(draws), cut, kept)
        return Moves(cut=cut, kept=kept)

    def _draw(
        self, rows: Index, sizes: Sizes, boxes: Sequence[Boxes], draws: Draws, cut: Sizes, kept: list[Mask | None]
    ) -> None:
        """Set the parts of some rows, and which of their boxes stay: all rows together, a round after the other."""
        overlaps = np.array(self.overlaps, dtype=np.float64)
        each = 1 + 4 * self.trials
        for turn in range(ROUNDS):
            numbers = draws.take(rows).uniform(each, first=turn * each)
            least = overlaps[(numbers[:, 0] * len(overlaps)).astype(np.int64)]
            crops = least < 1  # the others stay as they are
            rows, numbers, least = rows[crops], numbers[crops], least[crops]
            if not len(rows):
                return
            parts = self._parts(sizes[rows], numbers[:, 1:].reshape(len(rows), -1, 4))
            counts = np.array([len(boxes[row]) for row in rows])
            starts = np.cumsum(counts) - counts
            fits, inside = _fitting(parts, counts, np.concatenate([boxes[row] for row in rows]), least)
            good = np.logical_or.reduceat(fits, starts, axis=0)
            first, found = good.argmax(axis=1), good.any(axis=1)
            for i in np.flatnonzero(found).tolist():
                cut[rows[i]] = parts[i, first[i], :4]
                kept[rows[i]] = inside[starts[i] : starts[i] + counts[i], first[i]]
            rows = rows[~found]
            if not len(rows):
                return

    def _parts(self, sizes: Sizes, numbers: Numbers) -> Sizes:
        """Drawn parts, int64 (rows, trials, 5): top, left, height, width, and whether width : height is allowed."""
        height, width = sizes[:, :1], sizes[:, 1:]
        span = self.max_scale - self.min_scale
        wide = (width * (self.min_scale + span * numbers[..., 0])).astype(np.int64)
        tall = (height * (self.min_scale + span * numbers[..., 1])).astype(np.int64)
        left = ((width - wide) * numbers[..., 2]).astype(np.int64)
        top = ((height - tall) * numbers[..., 3]).astype(np.int64)
        ratio = wide / np.maximum(tall, 1)
        good = (wide > 0) & (tall > 0) & (ratio >= self.min_aspect_ratio) & (ratio <= self.max_aspect_ratio)
        return np.stack([top, left, tall, wide, good], axis=-1)


def _groups(counts: Sequence[int]) -> Iterator[Index]:
    """The rows that have boxes, so many at a time that what is worked out of all their boxes stays small."""
    rows = np.flatnonzero(counts)
    ends = np.cumsum(np.array(counts, dtype=np.int64)[rows]) // _TOGETHER
    yield from (group for group in np.split(rows, np.flatnonzero(np.diff(ends)) + 1) if len(group))


def _fitting(parts: Sizes, counts: Index, boxes: Boxes, least: Numbers) -> tuple[Mask, Mask]:
    """For each box and each part of its row: whether the part will do for it, and whether it holds the box's centre.

    Args:
        parts: as ``IouCrop._parts`` makes them.
        counts: of the boxes of each row.
        boxes: of all rows.
        least: the overlap of each row.
    """
    top, left, tall, wide, good = np.moveaxis(np.repeat(parts, counts, axis=0), 2, 0)
    right, bottom = left + wide, top + tall
    x, y = (boxes[:, 0::2].sum(axis=1) / 2)[:, None], (boxes[:, 1::2].sum(axis=1) / 2)[:, None]
    inside = (left < x) & (x < right) & (top < y) & (y < bottom)
    x0, y0, x1, y1 = (edge.astype(np.float32) for edge in (left, top, right, bottom))
    from_x, from_y, to_x, to_y = boxes.T[:, :, None]
    across = np.maximum(np.minimum(x1, to_x) - np.maximum(x0, from_x), 0)
    shared = across * np.maximum(np.minimum(y1, to_y) - np.maximum(y0, from_y), 0)
    union = (x1 - x0) * (y1 - y0) + (to_x - from_x) * (to_y - from_y) - shared
    overlaps = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    enough = overlaps >= np.repeat(least.astype(np.float32), counts)[:, None]
    return inside & enough & (good != 0), inside


@dataclass(frozen=True)
class SanitizeBoxes(Transform):
    """Drop boxes that are too small, and their labels: torchvision.transforms.v2.SanitizeBoundingBoxes.

    Reads boxes, and if there are more columns (labels), lists with an entry for each box. Put it after the last
    spatial operator; boxes outside the image were clamped to it by then.

    Args:
        min_size: the smallest width and height, in pixels.
        min_area: the smallest area, in pixels.

    Raises:
        PipelineError: columns of other types.

    Example:
        >>> boxes = np.array([[0, 0, 4, 4], [2, 2, 2, 3]], dtype=np.float32)
        >>> SanitizeBoxes()(boxes, [7, 8])[1]
        [7]
    """

    min_size: float = 1.0
    min_area: float = 1.0
    arity: ClassVar[int | None] = None
    outputs: ClassVar[int | None] = None

    def result(self, *types: Any) -> ColumnType | tuple[ColumnType, ...]:
        check_boxes(self, types)
        made = tuple(thinned(kind) for kind in types)
        return made if len(made) > 1 else made[0]

    def columns(self, *columns: Any, **draws: Any) -> Column | tuple[Column, ...]:
        del draws
        rows, bad = box_rows(columns[0])
        kept: list[Mask | None] = [self._kept(boxes) for boxes in rows]
        made = [box_column([boxes[mask] for boxes, mask in zip(rows, kept, strict=True)], thinned(type_of(columns[0])))]
        for column in columns[1:]:
            entries, odd = kept_entries(column, kept)
            made.append(entries)
            bad = odd | bad
        if bad:
            raise BadValues(bad, "give each image an array of shape (boxes, 4), and an entry for each box")
        return tuple(made) if len(made) > 1 else made[0]

    def _kept(self, boxes: Boxes) -> Mask:
        width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        good = (width >= self.min_size) & (height >= self.min_size) & (width * height >= self.min_area)
        return good & (boxes >= 0).all(axis=1)
