"""color_jitter: change brightness, contrast, saturation and hue by random amounts in random order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cedar.core.errors import invalid_call
from cedar.operators.draws import Draws
from cedar.operators.image.layout import Sizes
from cedar.operators.image.pixel_transform import PixelTransform, pair, set_pointwise, set_random
from cedar.operators.image.pixels_steps import BRIGHTNESS, CONTRAST, HUE, NONE, SATURATION, Steps
from cedar.operators.image.spatial import check_probability, require_draws

Amount: TypeAlias = float | Sequence[float] | None
CODES = (BRIGHTNESS, CONTRAST, SATURATION, HUE)


@dataclass(frozen=True)
class ColorJitter(PixelTransform):
    """Change brightness, contrast, saturation and hue in random order: torchvision.transforms.v2.ColorJitter.

    Takes uint8 images (height, width, 1 or 3). With one channel, saturation and hue do not change. The result of each
    change is clamped to 0 .. 255 and rounded down:

    - brightness: value * factor;
    - contrast: value * factor + mean * (1 - factor), where mean is the image's mean gray, from an exact sum;
    - saturation: value * factor + gray * (1 - factor), where gray is the pixel's gray value (see ``grayscale``);
    - hue: the shift is added to the hue in HSV, in float32 (Smith, Color Gamut Transform Pairs, 1978).

    Sums of two products use fused multiply-add, as torch does on processors that have the instruction.

    Args:
        brightness: range of the factor: (min, max) with min at least 0, or x for max(0, 1 - x) to 1 + x.
        contrast: range of the factor, as for brightness.
        saturation: range of the factor, as for brightness.
        hue: range of the shift in fractions of the color circle, -0.5 .. 0.5: (min, max), or x for -x to x.
        p: probability that a row is changed, as in RandomApply([ColorJitter(...)], p).

    Without contrast, the operator changes each pixel independently, and the optimizer may move crops before it.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain such images.

    Examples:
        >>> image = np.array([[[200, 100, 50]]], dtype=np.uint8)
        >>> draws = Draws(np.array([5], dtype=np.uint64))
        >>> ColorJitter(brightness=(0.5, 0.5))(image, draws=draws)[0, 0].tolist()
        [100, 50, 25]
    """

    brightness: Amount = None
    contrast: Amount = None
    saturation: Amount = None
    hue: Amount = None
    p: float = 1.0

    def __post_init__(self) -> None:
        check_probability("color_jitter", "p", self.p)
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, _factor_range(name, getattr(self, name)))
        object.__setattr__(self, "hue", _shift_range("color_jitter", self.hue))
        set_random(self, self.p < 1 or any(amount is not None for amount in self._amounts()))
        if self.contrast is None:
            set_pointwise(self)

    def _amounts(self) -> list[Any]:
        return [self.brightness, self.contrast, self.saturation, self.hue]

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        amounts, rows = self._amounts(), len(sizes)
        codes = np.full((rows, 4), NONE, dtype=np.int64)
        numbers = np.zeros((rows, 4, 2))
        if any(amount is not None for amount in amounts):
            # Draws per row: whether to change the image, four amounts, and four numbers that determine the order.
            uniform = require_draws(draws).uniform(9)
            positions = np.argsort(np.argsort(uniform[:, 5:], axis=1, kind="stable"), axis=1)
            every = np.arange(rows)
            for i, (code, amount) in enumerate(zip(CODES, amounts, strict=True)):
                if amount is not None:
                    low, high = amount
                    codes[every, positions[:, i]] = code
                    numbers[every, positions[:, i], 0] = low + (high - low) * uniform[:, 1 + i]
            codes[uniform[:, 0] >= self.p] = NONE
        return Steps(codes, numbers)


def _factor_range(name: str, amount: Any) -> tuple[float, float] | None:
    """Return the range of a factor; None if it is always 1."""
    if amount is None:
        return None
    ends = pair("color_jitter", name, amount)
    if isinstance(amount, int | float | np.number):
        if amount < 0:
            raise invalid_call(f"color_jitter({name}={amount!r}): must be at least 0")
        ends = (max(0.0, 1.0 - amount), 1.0 + amount)
    return None if ends == (1.0, 1.0) else check_factors("color_jitter", name, ends)


def check_factors(operator: str, name: str, ends: tuple[float, float]) -> tuple[float, float]:
    """Check a range of factors and return it.

    Raises:
        PipelineError: the range is invalid; the error names the user's line.
    """
    if not 0 <= ends[0] <= ends[1] < np.inf:
        raise invalid_call(f"{operator}({name}={ends!r}): must be two factors of at least 0, (min, max)")
    return ends


def _shift_range(operator: str, amount: Any) -> tuple[float, float] | None:
    """Return the range of the hue shift; None if it is always 0."""
    if amount is None:
        return None
    ends = pair(operator, "hue", amount)
    if isinstance(amount, int | float | np.number):
        ends = (-float(amount), float(amount))
    return None if ends == (0.0, 0.0) else check_shifts(operator, ends)


def check_shifts(operator: str, ends: tuple[float, float]) -> tuple[float, float]:
    """Check a range of hue shifts and return it.

    Raises:
        PipelineError: the range is invalid; the error names the user's line.
    """
    if not -0.5 <= ends[0] <= ends[1] <= 0.5:
        raise invalid_call(
            f"{operator}(hue={ends!r}): must be (min, max) within -0.5 .. 0.5, as fractions of the color circle"
        )
    return ends
