"""horizontal_flip and vertical_flip: mirror images at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cedar.operators.algebra import spatial
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import RowMoves
from cedar.operators.image.spatial import Spatial, check_probability, require_draws


@spatial
@dataclass(frozen=True)
class HorizontalFlip(Spatial):
    """Mirror an image and its boxes left to right with probability ``p``: torchvision's RandomHorizontalFlip.

    Args:
        p: probability that an image is mirrored, 0 .. 1.

    Raises:
        PipelineError: ``p`` is invalid, or the column does not contain images.

    Examples:
        >>> import numpy as np
        >>> image = np.array([[[1], [2], [3]]], dtype=np.uint8)
        >>> HorizontalFlip(p=1.0)(image, draws=Draws(np.zeros(1, dtype=np.uint64)))[:, :, 0].tolist()
        [[3, 2, 1]]
    """

    p: float = 0.5
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_probability("horizontal_flip", "p", self.p)

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del sizes, boxes
        return RowMoves(flip=require_draws(draws).uniform(1)[:, 0] < self.p)


@spatial
@dataclass(frozen=True)
class VerticalFlip(Spatial):
    """Mirror an image and its boxes top to bottom with probability ``p``: torchvision's RandomVerticalFlip.

    Args:
        p: probability that an image is mirrored, 0 .. 1.

    Raises:
        PipelineError: ``p`` is invalid, or the column does not contain images.

    Examples:
        >>> import numpy as np
        >>> image = np.array([[[1]], [[2]], [[3]]], dtype=np.uint8)
        >>> VerticalFlip(p=1.0)(image, draws=Draws(np.zeros(1, dtype=np.uint64)))[:, 0, 0].tolist()
        [3, 2, 1]
    """

    p: float = 0.5
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_probability("vertical_flip", "p", self.p)

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del sizes, boxes
        return RowMoves(flip_vertical=require_draws(draws).uniform(1)[:, 0] < self.p)
