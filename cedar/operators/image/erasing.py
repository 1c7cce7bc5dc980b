"""erasing: overwrite a random part of an image with one color."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes
from cedar.operators.image.layout import Sizes
from cedar.operators.image.moves import RowMoves
from cedar.operators.image.padding import fill_values
from cedar.operators.image.random_crop import random_parts
from cedar.operators.image.spatial import Spatial, check_probability, check_range, require_draws


@dataclass(frozen=True)
class Erasing(Spatial):
    """Erase a random part of an image, with probability ``p``: torchvision.transforms.v2.RandomErasing.

    Takes uint8 images, or float32 images; after ``normalize``, the value 0 is the mean color. Boxes stay unchanged. An
    image stays unchanged if none of ten random parts is smaller than the image on both sides.

    Args:
        p: probability that an image is changed, 0 .. 1.
        scale: (min, max) fraction of the image's area.
        ratio: (min, max) of the part's height / width; the logarithm of the ratio is drawn uniformly.
        value: value of erased pixels: one number, or one per channel.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain images.

    Examples:
        >>> import numpy as np
        >>> image = np.ones((20, 20, 3), dtype=np.float32)
        >>> erase = Erasing(p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0))
        >>> float(erase(image, draws=Draws(np.array([1], dtype=np.uint64))).mean())
        0.75
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, ...] = 0
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_probability("erasing", "p", self.p)
        for name, low, high in (("scale", 0.0, 1.0), ("ratio", 1e-6, float("inf"))):
            object.__setattr__(self, name, check_range("erasing", name, getattr(self, name), low, high))
        object.__setattr__(self, "value", fill_values("erasing", self.value, "value"))

    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        del boxes
        low, high = self.ratio
        parts, none = random_parts(sizes, require_draws(draws), self.scale, (1 / high, 1 / low), larger=1, first=1)
        parts[none | (require_draws(draws).uniform(1)[:, 0] >= self.p)] = 0
        return RowMoves(erase=parts, fill=self.value)  # type: ignore[arg-type]
