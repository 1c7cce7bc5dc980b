"""solarize, invert, posterize, autocontrast and equalize: map values by a fixed rule or by the image's histogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cedar.core.errors import invalid_call
from cedar.operators.algebra import pointwise
from cedar.operators.draws import Draws
from cedar.operators.image.layout import Sizes
from cedar.operators.image.pixel_transform import PixelTransform, rows_applied, set_random
from cedar.operators.image.pixels_steps import AUTOCONTRAST, EQUALIZE, NONE, POSTERIZE, SOLARIZE, Steps, one_step
from cedar.operators.image.spatial import check_probability


@pointwise
@dataclass(frozen=True)
class Solarize(PixelTransform):
    """Invert values of at least ``threshold``: torchvision.transforms.v2.RandomSolarize.

    Takes uint8 images (height, width, channels) with any number of channels.

    Args:
        threshold: the smallest value to invert, at most 255.
        p: probability that a row is changed.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain uint8 images.

    Examples:
        >>> Solarize(128, p=1.0)(np.array([[[0], [127], [128], [255]]], dtype=np.uint8))[0, :, 0].tolist()
        [0, 127, 127, 0]
    """

    threshold: float
    p: float = 0.5
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_probability("solarize", "p", self.p)
        if not isinstance(self.threshold, int | float | np.number) or not self.threshold <= 255:
            raise invalid_call(f"solarize(threshold={self.threshold!r}): must be a number of at most 255")
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), SOLARIZE, self.threshold, rows_applied(draws, self.p))


@pointwise
@dataclass(frozen=True)
class Invert(PixelTransform):
    """Replace each value by 255 - value: torchvision.transforms.v2.RandomInvert.

    Takes uint8 images (height, width, channels) with any number of channels.

    Args:
        p: probability that a row is changed.

    Raises:
        PipelineError: ``p`` is invalid, or the column does not contain uint8 images.

    Examples:
        >>> Invert(p=1.0)(np.array([[[0], [127], [255]]], dtype=np.uint8))[0, :, 0].tolist()
        [255, 128, 0]
    """

    p: float = 0.5
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_probability("invert", "p", self.p)
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), SOLARIZE, 0.0, rows_applied(draws, self.p))


@pointwise
@dataclass(frozen=True)
class Posterize(PixelTransform):
    """Keep the highest ``bits`` bits of each value: torchvision.transforms.v2.RandomPosterize.

    Takes uint8 images (height, width, channels) with any number of channels.

    Args:
        bits: number of bits to keep, 0 .. 8.
        p: probability that a row is changed.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain uint8 images.

    Examples:
        >>> Posterize(2, p=1.0)(np.array([[[63], [64], [255]]], dtype=np.uint8))[0, :, 0].tolist()
        [0, 64, 192]
    """

    bits: int
    p: float = 0.5
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_probability("posterize", "p", self.p)
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            raise invalid_call(f"posterize(bits={self.bits!r}): must be an integer from 0 to 8")
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(
            len(sizes), POSTERIZE if self.bits < 8 else NONE, 2.0 ** (8 - self.bits), rows_applied(draws, self.p)
        )


@dataclass(frozen=True)
class Autocontrast(PixelTransform):
    """Stretch each channel to 0 .. 255: torchvision.transforms.v2.RandomAutocontrast.

    Takes uint8 images (height, width, 1 or 3). Values become (value - min) / ((max - min) / 255) in float32, rounded
    down. A channel of equal values stays unchanged.

    Args:
        p: probability that a row is changed.

    Raises:
        PipelineError: ``p`` is invalid, or the column does not contain such images.

    Examples:
        >>> Autocontrast(p=1.0)(np.array([[[50], [60], [100]]], dtype=np.uint8))[0, :, 0].tolist()
        [0, 50, 254]
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("autocontrast", "p", self.p)
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), AUTOCONTRAST, applied=rows_applied(draws, self.p))


@dataclass(frozen=True)
class Equalize(PixelTransform):
    """Equalize the histogram of each channel: torchvision.transforms.v2.RandomEqualize, which equals Pillow's equalize.

    Takes uint8 images (height, width, channels) with any number of channels.

    Args:
        p: probability that a row is changed.

    Raises:
        PipelineError: ``p`` is invalid, or the column does not contain uint8 images.

    Examples:
        >>> image = np.repeat(np.array([10, 20, 30], dtype=np.uint8), 255).reshape(1, -1, 1)
        >>> np.unique(Equalize(p=1.0)(image)).tolist()
        [0, 128, 255]
    """

    p: float = 0.5
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_probability("equalize", "p", self.p)
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), EQUALIZE, applied=rows_applied(draws, self.p))
