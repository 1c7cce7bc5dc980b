"""photometric_distort: the color changes used to train the SSD detector."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np

from cedar.operators.draws import Draws
from cedar.operators.image.color_jitter import check_factors, check_shifts
from cedar.operators.image.layout import Sizes
from cedar.operators.image.pixel_transform import PixelTransform, pair
from cedar.operators.image.pixels_steps import BRIGHTNESS, CONTRAST, HUE, NONE, PERMUTE, SATURATION, Steps
from cedar.operators.image.spatial import check_probability, require_draws

_ORDERS = np.array([sum(place << 2 * c for c, place in enumerate(order)) for order in permutations(range(3))])


@dataclass(frozen=True)
class PhotometricDistort(PixelTransform):
    """Distort colors as SSD does (Liu et al., 2016, arXiv 1512.02325): torchvision's v2.RandomPhotometricDistort.

    Changes brightness, contrast, saturation and hue as ``color_jitter`` does, then permutes the channels; each of the
    five changes has probability ``p``. With probability 1/2, contrast is changed after hue.

    Takes uint8 images (height, width, 1 or 3). With one channel, only brightness and contrast change.

    Args:
        brightness: (min, max) of the factor, which is drawn uniformly; min is at least 0.
        contrast: (min, max) of the factor, as for brightness.
        saturation: (min, max) of the factor, as for brightness.
        hue: (min, max) of the shift, which is drawn uniformly, in fractions of the color circle, -0.5 .. 0.5.
        p: probability of each of the five changes.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain such images.

    Examples:
        >>> image = np.array([[[200, 100, 50]]], dtype=np.uint8)
        >>> PhotometricDistort(p=0.0)(image, draws=Draws(np.array([5], dtype=np.uint64)))[0, 0].tolist()
        [200, 100, 50]
    """

    brightness: tuple[float, float] = (0.875, 1.125)
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: tuple[float, float] = (-0.05, 0.05)
    p: float = 0.5
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_probability("photometric_distort", "p", self.p)
        for name in ("brightness", "contrast", "saturation"):
            ends = pair("photometric_distort", name, getattr(self, name))
            object.__setattr__(self, name, check_factors("photometric_distort", name, ends))
        hue = pair("photometric_distort", "hue", self.hue)
        object.__setattr__(self, "hue", check_shifts("photometric_distort", hue))

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        # Draws per row: for four changes whether and how much, whether contrast is early, whether and how to permute.
        uniform = require_draws(draws).uniform(11)
        ranges = [self.brightness, self.contrast, self.saturation, self.hue]
        low, high = np.array(ranges).T
        amounts = low + (high - low) * uniform[:, 4:8]
        on = uniform[:, :4] < self.p
        early = uniform[:, 8] < 0.5
        orders = _ORDERS[(uniform[:, 10] * len(_ORDERS)).astype(np.int64)]
        parts = [
            (BRIGHTNESS, on[:, 0], amounts[:, 0]),
            (CONTRAST, on[:, 1] & early, amounts[:, 1]),
            (SATURATION, on[:, 2], amounts[:, 2]),
            (HUE, on[:, 3], amounts[:, 3]),
            (CONTRAST, on[:, 1] & ~early, amounts[:, 1]),
            (PERMUTE, uniform[:, 9] < self.p, orders),
        ]
        numbers = np.zeros((len(sizes), len(parts), 2))
        numbers[:, :, 0] = np.stack([amount for _, _, amount in parts], axis=1)
        return Steps(np.stack([np.where(applied, code, NONE) for code, applied, _ in parts], axis=1), numbers)
