"""rand_augment and trivial_augment: apply operators that are drawn for each image from a common list."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from cedar.core.errors import invalid_call
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
from cedar.operators.image.spatial import require_draws
from cedar.operators.image.warp import Fill, Warp, WarpInterpolation, check_warp, matrices, warp_steps

# In torchvision's order, since operators are drawn by index.
OPERATORS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
_CODES = np.array([
    NONE, WARP, WARP, WARP, WARP, WARP, BRIGHTNESS, SATURATION, CONTRAST, SHARPEN, POSTERIZE, SOLARIZE, AUTOCONTRAST,
    EQUALIZE,
])  # fmt: skip
_HAS_SIGN = np.array([0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)


class _MaxAmounts(NamedTuple):
    """The amounts by which operators change an image at the maximum magnitude."""

    shear: float
    shift: float  # in pixels if above 1, else as a fraction of the side
    angle: float
    factor: float
    bits: int


class _Augment(Warp):
    """Base class: applies randomly drawn operators to each image."""

    takes: ClassVar[tuple[int, ...]] = (1, 3)
    max_amounts: ClassVar[_MaxAmounts]
    num_magnitude_bins: int

    def choose_operators(self, draws: Draws) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return each row's operator indices in order, and magnitudes as fractions (-1 .. 1) of the maximum."""
        raise NotImplementedError

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        operators, shares = self.choose_operators(require_draws(draws))
        parts = [self._operator_steps(sizes, *each) for each in zip(operators.T, shares.T, strict=True)]
        nothing = Steps(np.zeros((len(sizes), 0), dtype=np.int64), np.zeros((len(sizes), 0, 2)))
        return reduce(Steps.followed_by, parts, nothing)

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        del columns
        operators, shares = self.choose_operators(draws)
        rows = zip(operators.tolist(), shares.tolist(), strict=True)
        return [{"operators": [(OPERATORS[i], share) for i, share in zip(*row, strict=True)]} for row in rows]

    def _operator_steps(self, sizes: Sizes, operators: npt.NDArray[np.int64], share: npt.NDArray[np.float64]) -> Steps:
        """Return the steps of all rows, given the index of one operator per row."""
        max_amounts, codes = self.max_amounts, _CODES[operators]
        amount = np.where(codes == SOLARIZE, 255 * (1 - share), 1 + max_amounts.factor * share)
        amount[codes == POSTERIZE] = 2 ** np.rint(max_amounts.bits * share[codes == POSTERIZE])
        axes = np.eye(len(OPERATORS))[operators] * share[:, None]
        sides = sizes[:, ::-1] if max_amounts.shift <= 1 else 1
        transforms = matrices(
            sizes,
            -max_amounts.angle * axes[:, 5],
            shifts=np.trunc(np.round(max_amounts.shift * axes[:, 3:5] * sides, 6)),  # truncate 2.9999999 to 3
            tangents=max_amounts.shear * axes[:, 1:3],
            center=np.where((operators < 3)[:, None], 0, sizes[:, ::-1] / 2),  # shears leave the corner in place
        )
        steps = warp_steps(transforms, self.interpolation, self.fill, codes == WARP)
        others = codes != WARP
        steps.codes[others, 0], steps.numbers[others, 0, 0] = codes[others], amount[others]
        return steps


@dataclass(frozen=True)
class RandAugment(_Augment):
    """Apply ``num_ops`` of fourteen operators with a fixed magnitude: torchvision.transforms.v2.RandAugment.

    Takes uint8 images (height, width, 1 or 3). ``OPERATORS`` lists the names of the fourteen operators; maximum
    magnitudes are torchvision's. Operators and their directions are drawn for each row.

    Args:
        num_ops: number of operators to apply, one after the other.
        magnitude: from 0 to num_magnitude_bins - 1.
        num_magnitude_bins: number of magnitudes, at least 2.
        interpolation: "nearest" or "bilinear", for operators that move pixels.
        fill: value for pixels that come from outside the image: one number, one per channel, or None for black.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain such images.

    Examples:
        >>> image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> RandAugment()(image, draws=Draws(np.array([5], dtype=np.uint64))).shape
        (4, 4, 3)
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: WarpInterpolation = "nearest"
    fill: Fill = None
    max_amounts: ClassVar[_MaxAmounts] = _MaxAmounts(0.3, 150 / 331, 30, 0.9, 4)

    def __post_init__(self) -> None:
        check_warp("rand_augment", self)
        _check_integer("rand_augment", "num_magnitude_bins", self.num_magnitude_bins, 2, 1 << 20)
        _check_integer("rand_augment", "num_ops", self.num_ops, 0, 99)
        _check_integer("rand_augment", "magnitude", self.magnitude, 0, self.num_magnitude_bins - 1)

    def choose_operators(self, draws: Draws) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        uniform = draws.uniform(2 * self.num_ops).reshape(len(draws), self.num_ops, 2)
        operators = (uniform[:, :, 0] * len(OPERATORS)).astype(np.int64)
        share = np.full(operators.shape, self.magnitude / (self.num_magnitude_bins - 1))
        return operators, np.where(_HAS_SIGN[operators] & (uniform[:, :, 1] < 0.5), -share, share)


@dataclass(frozen=True)
class TrivialAugment(_Augment):
    """Apply one of fourteen operators with a random magnitude: torchvision.transforms.v2.TrivialAugmentWide.

    Takes uint8 images (height, width, 1 or 3). Uses the operators of ``rand_augment`` with larger maximum magnitudes.

    Args:
        num_magnitude_bins: number of magnitudes, at least 2.
        interpolation: "nearest" or "bilinear", for operators that move pixels.
        fill: value for pixels that come from outside the image: one number, one per channel, or None for black.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain such images.

    Examples:
        >>> image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> TrivialAugment()(image, draws=Draws(np.array([5], dtype=np.uint64))).shape
        (4, 4, 3)
    """

    num_magnitude_bins: int = 31
    interpolation: WarpInterpolation = "nearest"
    fill: Fill = None
    max_amounts: ClassVar[_MaxAmounts] = _MaxAmounts(0.99, 32, 135, 0.99, 6)

    def __post_init__(self) -> None:
        check_warp("trivial_augment", self)
        _check_integer("trivial_augment", "num_magnitude_bins", self.num_magnitude_bins, 2, 1 << 20)

    def choose_operators(self, draws: Draws) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        uniform = draws.uniform(3)
        operators = (uniform[:, :1] * len(OPERATORS)).astype(np.int64)
        share = np.floor(uniform[:, 1:2] * self.num_magnitude_bins) / (self.num_magnitude_bins - 1)
        return operators, np.where(_HAS_SIGN[operators] & (uniform[:, 2:] < 0.5), -share, share)


def _check_integer(name: str, parameter: str, value: Any, low: int, high: int) -> None:
    """Check that an argument is an integer within bounds.

    Raises:
        PipelineError: the check fails; the error names the user's line.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid_call(f"{name}({parameter}={value!r}): must be an integer from {low} to {high}")
