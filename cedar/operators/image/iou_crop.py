"""iou_crop: random crops with a minimum overlap with some box. sanitize_boxes: removal of tiny boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cedar.core.columns import Column, ColumnType, Index, type_of
from cedar.core.errors import PipelineError, invalid_call
from cedar.operators.draws import Draws
from cedar.operators.image import iou_plain
from cedar.operators.image.boxes import (
    Boxes,
    Mask,
    boxes_to_column,
    check_boxes,
    keep_entries,
    parse_boxes,
    type_after_removal,
)
from cedar.operators.image.kernels import compiled
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import RowMoves, whole_images
from cedar.operators.image.spatial import Spatial, check_range, require_draws, tuple_of
from cedar.operators.transform import BadValues, Transform

ROUNDS = 50  # maximum number of overlaps to draw per image, so that the search ends
_ROWS_PER_CALL = 1024  # rows per call of the kernel


@dataclass(frozen=True)
class IouCrop(Spatial):
    """Crop each image at random so that it overlaps some box enough: torchvision's RandomIoUCrop, the crop of SSD.

    Reads images, boxes, and optionally columns of lists with one entry per box (labels). For each image, a minimum
    overlap is drawn. If it is 1 or more, the image stays unchanged. Otherwise, random parts are drawn until one has at
    least this intersection over union with a box and contains its center. After ``trials`` parts, another overlap is
    drawn. Boxes with centers outside the part are dropped with their labels (torchvision makes them empty and drops
    them in SanitizeBoundingBoxes); other boxes are clamped to the part. Images without boxes stay unchanged.

    Args:
        min_scale: minimum side of the part, as a fraction of the image's side.
        max_scale: maximum side of the part, as a fraction of the image's side.
        min_aspect_ratio: minimum width / height of a part.
        max_aspect_ratio: maximum width / height of a part.
        overlaps: the minimum overlaps to draw from; None means 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: number of parts to draw before another overlap is drawn.

    Raises:
        PipelineError: an argument is invalid, or a column has the wrong type.

    The method is from "SSD: Single Shot MultiBox Detector" (Liu et al., ECCV 2016, arXiv 1512.02325).

    Examples:
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
        overlaps = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if self.overlaps is None else tuple_of(self.overlaps)
        numbers = all(isinstance(v, int | float | np.number) for v in overlaps)
        if not overlaps or not numbers or self.trials < 1 or self.max_scale > 1:
            raise invalid_call(
                f"iou_crop(max_scale={self.max_scale}, overlaps={self.overlaps!r}, trials={self.trials}): "
                "max_scale must be at most 1, overlaps a nonempty sequence, and trials at least 1"
            )
        object.__setattr__(self, "overlaps", overlaps)

    def shape(self, shape: tuple[int, int] | None) -> None:
        del shape

    def result(self, *types: Any) -> ColumnType | tuple[ColumnType, ...]:
        if len(types) < 2:
            raise PipelineError("iou_crop reads images and boxes", fix='map(iou_crop(), "image", "boxes")')
        return super().result(*types)

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        assert boxes is not None
        cut = whole_images(sizes)
        kept: list[Mask | None] = [None] * len(sizes)
        rows = np.flatnonzero([len(own) for own in boxes])
        for first in range(0, len(rows), _ROWS_PER_CALL):
            self._draw(rows[first : first + _ROWS_PER_CALL], sizes, boxes, require_draws(draws), cut, kept)
        return RowMoves(cut=cut, kept=kept)

    def _draw(
        self, rows: Index, sizes: Sizes, boxes: Sequence[Boxes], draws: Draws, cut: Sizes, kept: list[Mask | None]
    ) -> None:
        """Draw parts for some rows; write them to ``cut``, and the masks of the boxes to keep to ``kept``."""
        try_parts = (compiled("iou") or iou_plain).try_parts
        overlaps = np.array(self.overlaps, dtype=np.float64)
        draws_per_round = 1 + 4 * self.trials
        limits = tuple(
            map(float, (self.min_scale, self.max_scale - self.min_scale, self.min_aspect_ratio, self.max_aspect_ratio))
        )
        for round_number in range(ROUNDS):
            numbers = draws.take(rows).uniform(draws_per_round, first=round_number * draws_per_round)
            min_overlaps = overlaps[(numbers[:, 0] * len(overlaps)).astype(np.int64)]
            crops = min_overlaps < 1  # images of other rows stay unchanged
            rows, numbers, min_overlaps = rows[crops], numbers[crops], min_overlaps[crops]
            if not len(rows):
                return
            counts = np.array([len(boxes[row]) for row in rows], dtype=np.int64)
            starts = np.concatenate([[0], np.cumsum(counts)])
            parts, succeeded = np.empty((len(rows), 4), dtype=np.int64), np.empty(len(rows), dtype=bool)
            inside = np.empty(starts[-1], dtype=bool)
            all_boxes = np.concatenate([boxes[row] for row in rows])
            try_parts(
                sizes[rows], np.ascontiguousarray(numbers[:, 1:]), min_overlaps.astype(np.float32), all_boxes, starts,
                limits, parts, succeeded, inside,
            )  # fmt: skip
            cut[rows[succeeded]] = parts[succeeded]
            for i in np.flatnonzero(succeeded).tolist():
                kept[rows[i]] = inside[starts[i] : starts[i + 1]]
            rows = rows[~succeeded]
            if not len(rows):
                return


@dataclass(frozen=True)
class SanitizeBoxes(Transform):
    """Drop boxes that are too small, and their labels: torchvision.transforms.v2.SanitizeBoundingBoxes.

    Reads boxes, and optionally columns of lists with one entry per box (labels). Use it after the last spatial
    operator, when boxes outside the image have been clamped to it.

    Args:
        min_size: minimum width and height of a box in pixels.
        min_area: minimum area of a box in square pixels.

    Raises:
        PipelineError: a column has the wrong type.

    Examples:
        >>> boxes = np.array([[0, 0, 4, 4], [2, 2, 2, 3]], dtype=np.float32)
        >>> SanitizeBoxes()(boxes, [7, 8])[1]
        [7]
    """

    min_size: float = 1.0
    min_area: float = 1.0
    arity: ClassVar[int | None] = None
    outputs: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        for parameter in ("min_size", "min_area"):
            value = getattr(self, parameter)
            if not isinstance(value, int | float | np.number) or not value >= 0:
                raise invalid_call(f"sanitize_boxes({parameter}={value!r}): must be a number of at least 0")

    def result(self, *types: Any) -> ColumnType | tuple[ColumnType, ...]:
        check_boxes(self, types, moves=False)
        result_type = tuple(type_after_removal(kind) for kind in types)
        return result_type if len(result_type) > 1 else result_type[0]

    def columns(self, *columns: Any, **draws: Any) -> Column | tuple[Column, ...]:
        del draws
        rows, bad = parse_boxes(columns[0])
        kept: list[Mask | None] = [self._kept(boxes) for boxes in rows]
        results = [
            boxes_to_column(
                [boxes[mask] for boxes, mask in zip(rows, kept, strict=True)], type_after_removal(type_of(columns[0]))
            )
        ]
        for column in columns[1:]:
            entries, mismatched = keep_entries(column, kept)
            results.append(entries)
            bad = mismatched | bad
        if bad:
            raise BadValues(bad, "give each image an array of shape (boxes, 4), and one entry per box")
        return tuple(results) if len(results) > 1 else results[0]

    def _kept(self, boxes: Boxes) -> Mask:
        width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        good = (width >= self.min_size) & (height >= self.min_size) & (width * height >= self.min_area)
        return good & (boxes >= 0).all(axis=1)
