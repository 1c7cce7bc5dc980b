"""sharpness: make images sharper or softer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cedar.core.errors import invalid_call
from cedar.operators.algebra import resampling
from cedar.operators.draws import Draws
from cedar.operators.image.layout import Sizes
from cedar.operators.image.pixel_transform import PixelTransform, rows_applied, set_random
from cedar.operators.image.pixels_steps import SHARPEN, Steps, one_step
from cedar.operators.image.spatial import check_probability


@resampling
@dataclass(frozen=True)
class Sharpness(PixelTransform):
    """Make an image sharper or softer: torchvision.transforms.v2.RandomAdjustSharpness.

    Takes uint8 images (height, width, 1 or 3). Inner pixels become value * factor + mean * (1 - factor), rounded down,
    where mean is that of 3 x 3 pixels with the center counted five times. Images with a side below 3 stay unchanged.

    Args:
        sharpness_factor: a number of at least 0: 0 softens to the mean, 1 changes nothing, 2 sharpens.
        p: probability that a row is changed.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain such images.

    Examples:
        >>> image = np.array([[[0], [0], [0]], [[0], [13], [0]], [[0], [0], [0]]], dtype=np.uint8)
        >>> int(Sharpness(0, p=1.0)(image)[1, 1, 0]), int(Sharpness(2, p=1.0)(image)[1, 1, 0])
        (5, 21)
    """

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("sharpness", "p", self.p)
        factor = self.sharpness_factor
        if not isinstance(factor, int | float | np.number) or not 0 <= factor < np.inf:
            raise invalid_call(f"sharpness(sharpness_factor={factor!r}): must be a number of at least 0")
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), SHARPEN, self.sharpness_factor, rows_applied(draws, self.p))
