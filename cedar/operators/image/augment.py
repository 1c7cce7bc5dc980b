"""rand_augment and trivial_augment: operators chosen at random for each image, of a list that both share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from cedar.core.errors import PipelineError, user_site
from cedar.operators.draws import Draws
from cedar.operators.image.layout import Sizes
from cedar.operators.image.pixels_steps import (
    AUTOCONTRAST,
    BRIGHTNESS,
    CONTRAST,
    EQUALIZE,
    NONE,
    POSTERIZE,
    SATURATION,
    SHARPEN,
    SOLARIZE,
    WARP,
    Steps,
)
from cedar.operators.image.spatial import drawn
from cedar.operators.image.warp import Fill, Taken, Warp, check_warp, matrices, warps

# The order is torchvision's.
OPERATORS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
_CODES = np.array([
    NONE, WARP, WARP, WARP, WARP, WARP, BRIGHTNESS, SATURATION, CONTRAST, SHARPEN, POSTERIZE, SOLARIZE, AUTOCONTRAST,
    EQUALIZE,
])  # fmt: skip
_TWO_WAYS = np.array([0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)


class _Most(NamedTuple):
    """What the largest magnitude stands for."""

    shear: float
    shift: float  # pixels; up to 1: a share of the side
    angle: float
    factor: float
    bits: int


class _Augment(Warp):
    """Some operators for each image."""

    takes: ClassVar[tuple[int, ...]] = (1, 3)
    most: ClassVar[_Most]
    num_magnitude_bins: int

    def chosen(self, draws: Draws) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Which operators each row gets, one after the other, and how much of the largest magnitude, -1 .. 1."""
        raise NotImplementedError

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        which, shares = self.chosen(drawn(draws))
        parts = [self._step(sizes, *each) for each in zip(which.T, shares.T, strict=True)]
        nothing = Steps(np.zeros((len(sizes), 0), dtype=np.int64), np.zeros((len(sizes), 0, 2)))
        return reduce(Steps.then, parts, nothing)

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        del columns
        which, shares = self.chosen(draws)
        rows = zip(which.tolist(), shares.tolist(), strict=True)
        return [{"operators": [(OPERATORS[i], share) for i, share in zip(*row, strict=True)]} for row in rows]

    def _step(self, sizes: Sizes, which: npt.NDArray[np.int64], share: npt.NDArray[np.float64]) -> Steps:
        """One operator for each row."""
        most, codes = self.most, _CODES[which]
        amount = np.where(codes == SOLARIZE, 255 * (1 - share), 1 + most.factor * share)
        amount[codes == POSTERIZE] = 2 ** np.rint(most.bits * share[codes == POSTERIZE])
        axes = np.eye(len(OPERATORS))[which] * share[:, None]
        sides = sizes[:, ::-1] if most.shift <= 1 else 1
        made = matrices(
            sizes,
            -most.angle * axes[:, 5],
            shifts=np.trunc(np.round(most.shift * axes[:, 3:5] * sides, 6)),  # what is all but whole is so
            tangents=most.shear * axes[:, 1:3],
            center=np.where((which < 3)[:, None], 0, sizes[:, ::-1] / 2),  # shears leave the corner where it is
        )
        steps = warps(made, self.interpolation, self.fill, codes == WARP)
        others = codes != WARP
        steps.codes[others, 0], steps.numbers[others, 0, 0] = codes[others], amount[others]
        return steps


@dataclass(frozen=True)
class RandAugment(_Augment):
    """Apply ``num_ops`` operators drawn from fourteen, all of one magnitude: torchvision.transforms.v2.RandAugment.

    Images (height, width, 1 or 3) of uint8. The operators are ``OPERATORS``: those of this module of the same names,
    with torchvision's largest magnitudes; each row draws which, and in which direction.

    Args:
        num_ops: how many, one after the other.
        magnitude: 0 .. num_magnitude_bins - 1.
        num_magnitude_bins: how many magnitudes there are, at least 2.
        interpolation: "nearest" or "bilinear", of those that move pixels.
        fill: of pixels from outside the image: a number, one for each channel, or None for black.

    Raises:
        PipelineError: other arguments, or a column of anything but such images.

    Examples:
        >>> image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> RandAugment()(image, draws=Draws(np.array([5], dtype=np.uint64))).shape
        (4, 4, 3)
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Taken = "nearest"
    fill: Fill = None
    most: ClassVar[_Most] = _Most(0.3, 150 / 331, 30, 0.9, 4)

    def __post_init__(self) -> None:
        check_warp("rand_augment", self)
        _whole("rand_augment", "num_magnitude_bins", self.num_magnitude_bins, 2, 1 << 20)
        _whole("rand_augment", "num_ops", self.num_ops, 0, 99)
        _whole("rand_augment", "magnitude", self.magnitude, 0, self.num_magnitude_bins - 1)

    def chosen(self, draws: Draws) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        uniform = draws.uniform(2 * self.num_ops).reshape(len(draws), self.num_ops, 2)
        which = (uniform[:, :, 0] * len(OPERATORS)).astype(np.int64)
        share = np.full(which.shape, self.magnitude / (self.num_magnitude_bins - 1))
        return which, np.where(_TWO_WAYS[which] & (uniform[:, :, 1] < 0.5), -share, share)


@dataclass(frozen=True)
class TrivialAugment(_Augment):
    """Apply one operator drawn from fourteen, of a random magnitude: torchvision.transforms.v2.TrivialAugmentWide.

    Images (height, width, 1 or 3) of uint8. The operators are those of ``rand_augment``, with larger magnitudes.

    Args:
        num_magnitude_bins: how many magnitudes there are, at least 2.
        interpolation: "nearest" or "bilinear", of those that move pixels.
        fill: of pixels from outside the image: a number, one for each channel, or None for black.

    Raises:
        PipelineError: other arguments, or a column of anything but such images.

    Examples:
        >>> image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> TrivialAugment()(image, draws=Draws(np.array([5], dtype=np.uint64))).shape
        (4, 4, 3)
    """

    num_magnitude_bins: int = 31
    interpolation: Taken = "nearest"
    fill: Fill = None
    most: ClassVar[_Most] = _Most(0.99, 32, 135, 0.99, 6)

    def __post_init__(self) -> None:
        check_warp("trivial_augment", self)
        _whole("trivial_augment", "num_magnitude_bins", self.num_magnitude_bins, 2, 1 << 20)

    def chosen(self, draws: Draws) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        uniform = draws.uniform(3)
        which = (uniform[:, :1] * len(OPERATORS)).astype(np.int64)
        share = np.floor(uniform[:, 1:2] * self.num_magnitude_bins) / (self.num_magnitude_bins - 1)
        return which, np.where(_TWO_WAYS[which] & (uniform[:, 2:] < 0.5), -share, share)


def _whole(name: str, parameter: str, value: Any, low: int, high: int) -> None:
    """Refuse what is not an integer within bounds.

    Raises:
        PipelineError: at the user's line.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PipelineError(f"{name}({parameter}={value!r}): an integer, {low} .. {high}", site=user_site())
