"""iou_crop and sanitize_boxes: crops that keep enough of some box, and boxes that are worth keeping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cedar.columns import Column, ColumnType, type_of
from cedar.errors import PipelineError, user_site
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes, Mask, box_column, box_rows, check_boxes, kept_entries, thinned
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import Moves
from cedar.operators.image.spatial import Spatial, check_range, drawn
from cedar.operators.transform import BadValues, Transform

ROUNDS = 50  # of drawing an overlap; each fails with small probability, but nothing may run for ever


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
        draws = drawn(draws)
        cut = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        kept: list[Mask | None] = [None] * len(sizes)
        for i in range(len(sizes)):
            if len(boxes[i]):
                found = self._part(int(sizes[i, 0]), int(sizes[i, 1]), boxes[i], draws.take(np.array([i])))
                if found is not None:
                    cut[i], kept[i] = found
        return Moves(cut=cut, kept=kept)

    def _part(self, height: int, width: int, boxes: Boxes, draws: Draws) -> tuple[Sizes, Mask] | None:
        """Top, left, height and width, and which boxes stay; None: the image stays as it is."""
        overlaps: tuple[float, ...] = self.overlaps  # type: ignore[assignment]
        each = 1 + 4 * self.trials
        for turn in range(ROUNDS):
            numbers = draws.uniform(each, first=turn * each)[0]
            overlap = overlaps[int(numbers[0] * len(overlaps))]
            if overlap >= 1:
                return None
            found = self._first(height, width, boxes, overlap, numbers[1:].reshape(-1, 4))
            if found is not None:
                return found
        return None

    def _first(self, height: int, width: int, boxes: Boxes, overlap: float, numbers: Any) -> tuple[Sizes, Mask] | None:
        """The first of some drawn parts that will do."""
        span = self.max_scale - self.min_scale
        wide = (width * (self.min_scale + span * numbers[:, 0])).astype(np.int64)
        tall = (height * (self.min_scale + span * numbers[:, 1])).astype(np.int64)
        left = ((width - wide) * numbers[:, 2]).astype(np.int64)
        top = ((height - tall) * numbers[:, 3]).astype(np.int64)
        ratio = wide / np.maximum(tall, 1)
        good = (wide > 0) & (tall > 0) & (ratio >= self.min_aspect_ratio) & (ratio <= self.max_aspect_ratio)
        right, bottom = left + wide, top + tall
        x, y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
        inside = (left[:, None] < x) & (x < right[:, None]) & (top[:, None] < y) & (y < bottom[:, None])
        parts = np.stack([left, top, right, bottom], axis=1).astype(np.float32)
        good &= (inside & (overlaps_of(parts, boxes) >= np.float32(overlap))).any(axis=1)
        if not good.any():
            return None
        i = int(good.argmax())
        return np.array([top[i], left[i], tall[i], wide[i]], dtype=np.int64), inside[i]


def overlaps_of(parts: Boxes, boxes: Boxes) -> Any:
    """Intersection over union of each part with each box: float32 (parts, boxes)."""
    low, high = np.maximum(parts[:, None, :2], boxes[:, :2]), np.minimum(parts[:, None, 2:], boxes[:, 2:])
    sides = np.maximum(high - low, 0)
    shared = sides[..., 0] * sides[..., 1]
    union = _area(parts)[:, None] + _area(boxes) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _area(boxes: Boxes) -> Any:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


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
