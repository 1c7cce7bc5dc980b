"""solarize, invert, posterize, autocontrast, equalize: each value by a table, of its own or of the image's making."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cedar.core.errors import PipelineError, user_site
from cedar.operators.algebra import pointwise
from cedar.operators.draws import Draws
from cedar.operators.image.color import PixelTransform, applied, set_random
from cedar.operators.image.layout import Sizes
from cedar.operators.image.pixels_steps import AUTOCONTRAST, EQUALIZE, NONE, POSTERIZE, SOLARIZE, Steps, one_step
from cedar.operators.image.spatial import check_share


@pointwise
@dataclass(frozen=True)
class Solarize(PixelTransform):
    """Invert values from ``threshold`` on: torchvision.transforms.v2.RandomSolarize.

    Images (height, width, channels) of uint8, any channels.

    Args:
        threshold: up to 255.
        p: the probability that a row is changed.

    Raises:
        PipelineError: other arguments, or a column of anything but images of uint8.

    Examples:
        >>> Solarize(128, p=1.0)(np.array([[[0], [127], [128], [255]]], dtype=np.uint8))[0, :, 0].tolist()
        [0, 127, 127, 0]
    """

    threshold: float
    p: float = 0.5
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_share("solarize", "p", self.p)
        if not isinstance(self.threshold, int | float | np.number) or not self.threshold <= 255:
            raise PipelineError(f"solarize(threshold={self.threshold!r}): a number up to 255", site=user_site())
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), SOLARIZE, self.threshold, applied(draws, self.p))


@pointwise
@dataclass(frozen=True)
class Invert(PixelTransform):
    """255 - value: torchvision.transforms.v2.RandomInvert.

    Images (height, width, channels) of uint8, any channels.

    Args:
        p: the probability that a row is changed.

    Raises:
        PipelineError: another probability, or a column of anything but images of uint8.

    Examples:
        >>> Invert(p=1.0)(np.array([[[0], [127], [255]]], dtype=np.uint8))[0, :, 0].tolist()
        [255, 128, 0]
    """

    p: float = 0.5
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_share("invert", "p", self.p)
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), SOLARIZE, 0.0, applied(draws, self.p))


@pointwise
@dataclass(frozen=True)
class Posterize(PixelTransform):
    """Keep the highest ``bits`` of each value: torchvision.transforms.v2.RandomPosterize.

    Images (height, width, channels) of uint8, any channels.

    Args:
        bits: 0 .. 8.
        p: the probability that a row is changed.

    Raises:
        PipelineError: other arguments, or a column of anything but images of uint8.

    Examples:
        >>> Posterize(2, p=1.0)(np.array([[[63], [64], [255]]], dtype=np.uint8))[0, :, 0].tolist()
        [0, 64, 192]
    """

    bits: int
    p: float = 0.5
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_share("posterize", "p", self.p)
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            raise PipelineError(f"posterize(bits={self.bits!r}): an integer from 0 to 8", site=user_site())
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(
            len(sizes), POSTERIZE if self.bits < 8 else NONE, 2.0 ** (8 - self.bits), applied(draws, self.p)
        )


@dataclass(frozen=True)
class Autocontrast(PixelTransform):
    """Stretch each channel to 0 .. 255: torchvision.transforms.v2.RandomAutocontrast.

    Images (height, width, 1 or 3) of uint8. (value - lowest) / ((highest - lowest) / 255) in float32, rounded down; a
    channel of one value stays.

    Args:
        p: the probability that a row is changed.

    Raises:
        PipelineError: another probability, or a column of anything but such images.

    Examples:
        >>> Autocontrast(p=1.0)(np.array([[[50], [60], [100]]], dtype=np.uint8))[0, :, 0].tolist()
        [0, 50, 254]
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_share("autocontrast", "p", self.p)
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), AUTOCONTRAST, applied=applied(draws, self.p))


@dataclass(frozen=True)
class Equalize(PixelTransform):
    """Make the values of each channel equally frequent: torchvision.transforms.v2.RandomEqualize, which is Pillow's.

    Images (height, width, channels) of uint8, any channels.

    Args:
        p: the probability that a row is changed.

    Raises:
        PipelineError: another probability, or a column of anything but images of uint8.

    Examples:
        >>> image = np.repeat(np.array([10, 20, 30], dtype=np.uint8), 255).reshape(1, -1, 1)
        >>> np.unique(Equalize(p=1.0)(image)).tolist()
        [0, 128, 255]
    """

    p: float = 0.5
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_share("equalize", "p", self.p)
        set_random(self, self.p < 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        return one_step(len(sizes), EQUALIZE, applied=applied(draws, self.p))
